"""When Python's cycle collector runs: rarely, in small steps, and in full only when nobody waits.

Sessions in memory are hundreds of thousands of objects without cycles. The default collector walks all of
them again and again: it took a third of the fold's time and paused it for 0.15 s (measured with 60 000
messages held). Cycles do arise (tasks, exceptions, requests), nearly all of them young, so only the youngest
generation is collected by counting. Walking the middle one by counting as well, after 100 000 survivors, cost
3 to 4 us per event of 28 (measured): it goes by the clock.
"""

from __future__ import annotations

import gc
from typing import Final

#: Allocations between two collections of the youngest generation: 5 ms each, every 6 000 events (the default
#: is 700). Most of what an overlay holds has gone by then.
YOUNG: Final = 20_000
#: The older generations are never collected by counting.
NEVER: Final = 1_000_000_000

#: The middle generation, what has survived a young collection since the last time, goes when there was
#: nothing to do for a while, but not more often than this …
MIDDLE_EVERY_S: Final = 60.0
#: … and never later than this, however busy: at full speed that is a pause of 0.3 s in five minutes.
MIDDLE_AT_LEAST_S: Final = 300.0

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
        self._last_middle = 0.0

    def start(self, now: float) -> None:
        # Off since the process began (``refold.cli.worker``). What imports left in cycles is kept for good:
        # it is 0.8 MB, and to find it takes 40 ms in which partitions wait (measured).
        gc.freeze()
        gc.set_threshold(YOUNG, NEVER, NEVER)
        gc.enable()
        self._last_full = self._last_middle = now

    def due(self, now: float, last_work: float) -> bool:
        """Whether a full collection is to run now. All times are monotonic seconds."""
        return _due(now, last_work, self._last_full, FULL_EVERY_S, FULL_AT_LEAST_S)

    def middle_due(self, now: float, last_work: float) -> bool:
        """The same for the middle generation."""
        return _due(now, last_work, self._last_middle, MIDDLE_EVERY_S, MIDDLE_AT_LEAST_S)

    def beat(self, now: float, last_work: float) -> None:
        if self.due(now, last_work):
            gc.collect()
            self._last_full = self._last_middle = now
        elif self.middle_due(now, last_work):
            gc.collect(1)
            self._last_middle = now


def _due(now: float, last_work: float, last: float, every_s: float, at_least_s: float) -> bool:
    since = now - last
    if since >= at_least_s:
        return True
    return since >= every_s and now - last_work >= IDLE_S and last_work >= last
