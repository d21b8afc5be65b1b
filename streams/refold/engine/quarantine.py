"""How many sessions may be quarantined before it is the build, and not the sessions, that is broken."""

from __future__ import annotations

from collections import deque
from typing import Final

from refold.errors import InvariantViolation

#: More than this many within a minute stops the worker: one bad session is contained, a bad build is not.
QUARANTINES_PER_MINUTE_MAX: Final = 20

WINDOW_S: Final = 60.0


class QuarantineLimit:
    def __init__(self, per_minute_max: int = QUARANTINES_PER_MINUTE_MAX) -> None:
        self._max = per_minute_max
        self._times: deque[float] = deque(maxlen=per_minute_max + 1)

    def add(self, now: float) -> None:
        """``now``: monotonic seconds. Raises :class:`InvariantViolation` past the limit."""
        self._times.append(now)
        if len(self._times) > self._max and now - self._times[0] < WINDOW_S:
            raise InvariantViolation(
                f"{len(self._times)} sessions were quarantined within a minute: this build does not fold"
                " what is in"
                " the inbox. Stopping before more are parked; go back to the build that did, then release"
                " them with"
                " `refold session release`"
            )
