"""Who is told what became of a record: once, and by its time whatever the threads are doing.

A thread that sends may be held up by what has no limit (a name server) or a later one (a broker that hangs,
asked for other records). So the time of a record is looked after here, on the event loop; what a thread finds
out afterwards is told to nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from refold.client.delivery import Outcome, Tell
from refold.errors import RefoldError


class Promise:
    """``deadline``: monotonic seconds. ``tell``: ``None`` once it was called."""

    __slots__ = ("_kept", "deadline", "tell")

    def __init__(self, tell: Tell, deadline: float, kept: Callable[[], None]) -> None:
        self.tell: Tell | None = tell
        self.deadline = deadline
        self._kept = kept

    def __call__(self, outcome: Outcome) -> None:
        """The first outcome is told, others are not."""
        tell, self.tell = self.tell, None
        if tell is not None:
            self._kept()
            tell(outcome)


class Promises:
    """Use from one event loop."""

    def __init__(self, timeout_s: float, late: Callable[[], RefoldError], after: Callable[[], None]) -> None:
        """``late``: what is told when the time is over; ``after``: called when some were told so."""
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._late = late
        self._after = after
        #: By deadline; of those in the middle some are kept.
        self._made: deque[Promise] = deque()
        self._timer: asyncio.TimerHandle | None = None
        #: Made and not kept.
        self.count = 0

    def make(self, tell: Tell) -> Promise:
        promise = Promise(tell, time.monotonic() + self._timeout_s, self._kept)
        self._made.append(promise)
        self.count += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)
        return promise

    def end(self, error: RefoldError) -> None:
        """All that are not kept are told this."""
        if self._timer is not None:
            self._timer.cancel()
        for promise in list(self._made):
            promise(error)

    def _kept(self) -> None:
        self.count -= 1
        while self._made and self._made[0].tell is None:
            self._made.popleft()

    def _look(self) -> None:
        now, told = time.monotonic(), False
        try:
            while self._made and self._made[0].deadline <= now:
                told = True
                self._made[0](self._late())
        finally:
            # Only now: whoever is told may have another record sent.
            self._timer = None
            if self._made:
                self._timer = self._loop.call_later(self._made[0].deadline - now, self._look)
        if told:
            self._after()
