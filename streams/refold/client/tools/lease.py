"""A runner's lease on one call: judged by its own clock, renewed while the body runs.

The fold counts a lease from the append of *started* (or *claimed*); the runner counts from *before it sent*
that event, and ends a little early. So a runner that believes to hold its lease does hold it, however late
it learns of the ruling, as long as its clock and the brokers' run equally fast within ``SAFETY_SHARE``.

A lease is looked at directly before a body runs. What a process does after that look, when it is stopped
between two instructions, no lease can prevent: there the external system must refuse a key that it has
declared *not done* (rule L11), and a call without a lookup becomes *unknown*. See docs/guides/tools.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Self

from refold.client.tools.clocks import lease_clock
from refold.client.tools.outcomes import LeaseLost
from refold.errors import RefoldError

#: A lease a caller gets unless it asks for another: a dead runner's call is taken over after this long. Three
#: renewals fall into it, one event of about 150 bytes every 3.3 s and running call.
LEASE_S_DEFAULT: Final = 10.0
#: Shorter ones end before a busy fold has ruled on them: a ruling takes one to some hundred milliseconds.
LEASE_S_MIN: Final = 0.5
LEASE_S_MAX: Final = 3600.0

#: Part of a lease given away against clocks that do not run equally fast and two brokers' clocks that differ.
SAFETY_SHARE: Final = 0.1

#: A renewal is sent after this share of the lease: two may fail before it is over.
RENEW_SHARE: Final = 1 / 3

#: Sends a renewal. ``True``: granted, ``False``: refused, somebody else holds the call or it has its outcome.
Renew = Callable[[], Awaitable[bool]]


class Lease:
    """``sent_at``: :data:`lease_clock` before the event that got it was sent."""

    def __init__(
        self, operation_id: str, sent_at: float, length_s: float, renew: Renew, *,
        clock: Callable[[], float] = lease_clock,
    ) -> None:  # fmt: skip
        self._operation_id = operation_id
        self._length_s = length_s
        self._renew = renew
        self._clock = clock
        self._until = sent_at + length_s * (1 - SAFETY_SHARE)
        self._lost = False
        #: Most bodies end before the first renewal is due: there is no task until then.
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def held(self) -> bool:
        return not self._lost and self._clock() < self._until

    def check(self) -> None:
        """Raises :class:`LeaseLost`. Any thread; asks nobody."""
        if not self.held():
            raise LeaseLost(
                f"the lease on operation {self._operation_id} is over: this runner was stopped or cut off "
                "for longer than the lease. Nothing was started; whoever holds it now goes on"
            )

    def start(self) -> Self:
        """Renew it in the background from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._length_s * RENEW_SHARE, self._due, loop)
        return self

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._keep(), name="refold-lease")

    async def stop(self) -> None:
        """Renew it no more; it runs out by itself. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep(self) -> None:
        await self.renew()
        while not self._lost:
            await asyncio.sleep(self._length_s * RENEW_SHARE)
            await self.renew()

    async def renew(self) -> None:
        """One renewal. A refusal is final; where Kafka or the fold does not answer, the next may succeed."""
        sent_at = self._clock()
        try:
            granted = await self._renew()
        except RefoldError:
            return
        if granted:
            self._until = max(self._until, sent_at + self._length_s * (1 - SAFETY_SHARE))
        else:
            self._lost = True
