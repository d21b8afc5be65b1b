"""``refold verify storm``: a fleet restarts together with cold disks.

What does it ask of the brokers, and when are the sessions back that somebody waits for? The same restart in
three arms (:mod:`arms`): without a limit, with the limit alone, with the limit and all that a worker does to
be polite and to begin with what matters.

On real workers: :mod:`plan` says what will happen, :mod:`fill` and :mod:`load` send it, :mod:`sampling`,
:mod:`livewatch` and :mod:`grouplog` look on from outside, :mod:`run` runs it and compares every session with
the oracle of :mod:`refold.ops.verify`. For fleets beyond one machine: :mod:`model` is the fleet as numbers,
:mod:`simulate` plays it on a clock of its own (:mod:`virtual`) with the engine's own
:mod:`refold.engine.admission`. Both end in :mod:`curves`, :mod:`ratios`, :mod:`report` and :mod:`chart`.
"""

from __future__ import annotations
