"""A process's lease on one run, judged by its own clock.

The fold counts a lease from the append of ``RunLeased``; the process counts from *before it sent* that event
and gives a tenth away, on a clock that goes on while the process is stopped and while the machine sleeps. So
who believes to hold its lease does hold it, and two processes never believe it at once. It is looked at
directly before a step begins and before anything is written; the body is cancelled the moment it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Self

from refold.client.agents.outcomes import RunLeft
from refold.client.receipts import Ruling
from refold.client.tools.clocks import lease_clock
from refold.client.tools.lease import RENEW_SHARE, SAFETY_SHARE
from refold.errors import RefoldError

#: Sends a renewal, given how long its ruling may take; its ruling, or raises where nothing answers.
Renew = Callable[[float], Awaitable[Ruling]]

#: A look at the clock is this much late, so that it comes after the end and not just before.
LOOK_LATE_S: Final = 0.005


class RunLease:
    """``sent_at``: :data:`lease_clock` before the event that got it was sent. ``lost``: called once, with the
    reason, when it is over or another process has the run."""

    def __init__(
        self,
        length_s: float,
        sent_at: float,
        renew: Renew,
        lost: Callable[[str], None],
        *,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._length_s = length_s
        self._renew = renew
        self._tell = lost
        self._clock = clock
        self._until = sent_at + length_s * (1 - SAFETY_SHARE)
        self.lost: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def left(self) -> float:
        """Seconds for which it is held, 0 when it is not."""
        return 0.0 if self.lost is not None else max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Raises RunLeft where it is not held. Asks nobody."""
        if self.lost is None and self._clock() >= self._until:
            self.lose("this process was stopped or cut off for longer than the lease")
        if self.lost is not None:
            raise RunLeft("lost", f"the lease is over: {self.lost}")

    def lose(self, reason: str) -> None:
        """It is over, for this reason; the first one counts."""
        if self.lost is None:
            self.lost = reason
            self._tell(reason)

    def start(self) -> Self:
        """Renew it, and watch the clock, in the background from now on."""
        self._tasks = [
            asyncio.create_task(self._keep(), name="refold-run-lease"),
            asyncio.create_task(self._watch(), name="refold-run-lease-clock"),
        ]
        return self

    async def stop(self) -> None:
        """Renew it no more; it runs out by itself. Safe to call twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self) -> None:
        while self.lost is None:
            await asyncio.sleep(self._length_s * RENEW_SHARE)
            await self.renew()

    async def _watch(self) -> None:
        while self.lost is None:
            await asyncio.sleep(self.left() + LOOK_LATE_S)
            if self.left() == 0.0:
                self.lose("it could not be renewed in time")

    async def renew(self) -> None:
        """One renewal. A refusal is final; where nothing answers, the next may succeed."""
        sent_at = self._clock()
        try:
            ruling = await self._renew(max(0.1, self.left()))
        except RefoldError:
            return
        if ruling.in_effect:
            self._until = max(self._until, sent_at + self._length_s * (1 - SAFETY_SHARE))
        else:
            self.lose(f"{ruling.code}: {ruling.reason}")
