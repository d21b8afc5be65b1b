"""``refold demo``: an answer, a refund and two hundred tool conversations survive kills, on a real Kafka.

The pieces, in the order a run meets them: :mod:`~refold.demo.stack` (broker, registry, workers), then the
:mod:`~refold.demo.opening` with its :mod:`~refold.demo.actors` (the processes that die), the
:mod:`~refold.demo.bank` and the :mod:`~refold.demo.panes`; then :mod:`~refold.demo.dataset` (conversations
and the expected calls), :mod:`~refold.demo.agents` (who plays them, with :mod:`refold.ops.effects`),
:mod:`~refold.demo.model` (who writes the assistant's words), :mod:`~refold.demo.simulators` (the stateful
tools), :mod:`~refold.demo.kills` (the schedule of workers' deaths), :mod:`~refold.demo.control` (a plain
consumer beside it), :mod:`~refold.demo.uninterrupted` (the same without deaths: :mod:`~refold.demo.player`,
:mod:`~refold.demo.reference`), :mod:`~refold.demo.judge` and :mod:`~refold.demo.report`.
"""

from __future__ import annotations
