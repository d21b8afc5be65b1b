"""When Python's cycle collector runs: rarely, in small steps, and in full only when nobody waits.

Sessions in memory are hundreds of thousands of objects without cycles. The default collector walks all of
them again and again: it took a third of the fold's time and paused it for 0.15 s (measured with 60 000
messages held). Cycles do arise (tasks, exceptions, requests), young, so the young generations are collected
as usual, in larger steps.
"""

from __future__ import annotations

import gc
from typing import Final

#: Allocations between two collections of the youngest generation: about 3 ms each (the default is 700).
YOUNG: Final = 5_000
#: Young collections before the middle generation goes with it: 100 000 survivors, about 60 ms.
MIDDLE: Final = 20
#: The oldest generation is never collected by counting.
OLD: Final = 1_000_000_000

#: With nothing to do for this long a full collection disturbs nobody …
IDLE_S: Final = 5.0
#: … but not more often than this, …
FULL_EVERY_S: Final = 600.0
#: … and never later than this, however busy: a pause of half a second an hour.
FULL_AT_LEAST_S: Final = 3_600.0


class Collector:
    """Call :meth:`start` once everything is imported, and :meth:`beat` about once a second."""

    def __init__(self) -> None:
        self._last_full = 0.0

    def start(self, now: float) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, MIDDLE, OLD)
        self._last_full = now

    def due(self, now: float, last_work: float) -> bool:
        """Whether a full collection is to run now. All times are monotonic seconds."""
        since = now - self._last_full
        if since >= FULL_AT_LEAST_S:
            return True
        return since >= FULL_EVERY_S and now - last_work >= IDLE_S and last_work >= self._last_full

    def beat(self, now: float, last_work: float) -> None:
        if self.due(now, last_work):
            gc.collect()
            self._last_full = now
