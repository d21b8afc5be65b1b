"""``refold demo``: two hundred tool-calling conversations on a real Kafka while workers are killed.

The pieces, in the order a run meets them: :mod:`~refold.demo.dataset` (conversations and the expected
calls), :mod:`~refold.demo.simulators` (the stateful tools, with a ledger of what really ran),
:mod:`~refold.demo.model` (who writes the assistant's words), :mod:`~refold.demo.player` (one conversation
through the SDK), :mod:`~refold.demo.kills` (the schedule of deaths), :mod:`~refold.demo.control` (a plain
consumer beside it), :mod:`~refold.demo.judge` (the comparisons at the end), :mod:`~refold.demo.report`.
"""

from __future__ import annotations
