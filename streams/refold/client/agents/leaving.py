"""Whether this process is leaving a run, why, and how: at once, or at the next boundary.

*At once* (lost, unavailable): the body is cancelled and nothing is written any more. *At a boundary*
(draining, suspended, review): no further step begins; those that run come to their end and are recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from refold.client.agents.outcomes import Leave, RunLeft
from refold.errors import InvariantViolation

AT_ONCE: Final[frozenset[Leave]] = frozenset({"lost", "unavailable"})


class Leaving:
    """Of one held run. Use from one event loop; :meth:`look` from any thread."""

    def __init__(self) -> None:
        self.left: RunLeft | None = None
        #: What ends this process's part in the run is on its way: what is heard of that is no surprise.
        self.over = False
        #: Running steps are not waited for any more.
        self.hurry = False
        #: Operations whose approval the run waits for, in the order asked.
        self.waiting_for: dict[str, None] = {}
        #: Set whenever something changed that the end of the run may hang on.
        self.moved = asyncio.Event()

    def leave(self, why: RunLeft) -> RunLeft:
        """Leave it; what must be at once comes before what may wait. Returns the reason that counts."""
        if self.left is None or (why.why in AT_ONCE and self.left.why not in AT_ONCE):
            self.left = why
        self.moved.set()
        return self.left

    @property
    def reason(self) -> RunLeft:
        if self.left is None:
            raise InvariantViolation("this run is not being left")
        return self.left

    def drain(self) -> None:
        """No further step begins here."""
        self.leave(RunLeft("draining", "this process is being drained"))

    def cut_short(self) -> None:
        """The drain has taken long enough: running steps are given up, to begin again elsewhere as the same
        attempt."""
        self.hurry = True
        self.drain()

    def suspend(self, operations: Sequence[str]) -> RunLeft:
        """The run waits for these calls' approval."""
        self.waiting_for.update(dict.fromkeys(operations))
        return self.leave(RunLeft("suspended", "calls wait for approval"))

    def check(self) -> None:
        """Raises RunLeft where nothing may begin any more."""
        if self.left is not None:
            raise self.left

    def look(self) -> None:
        """As :meth:`check`, for a step that runs: it may come to its end while no other begins."""
        left = self.left
        if left is not None and (left.why in AT_ONCE or self.hurry):
            raise left

    def due(self, *, busy: bool) -> bool:
        """Whether the body must end now. ``busy``: a step runs."""
        return self.left is not None and (self.left.why in AT_ONCE or self.hurry or not busy)
