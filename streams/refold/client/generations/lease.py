"""The right to write a generation's text, renewed by journal events; measured here on a monotonic clock.

The clock begins *before* a renewal is sent, so this side's lease is over before the fold's: a process that
was stopped (SIGSTOP, a paused machine) finds it over when it wakes, hands nothing out and asks first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from refold.client.generations.journalling import LOST
from refold.client.generations.limits import RENEWALS_PER_LEASE
from refold.client.receipts import Ruling
from refold.errors import FencedError, RefoldError, TransientError, UnavailableError

log = logging.getLogger("refold.client")

Renew = Callable[[float], Awaitable[Ruling]]
"""Append a renewal and wait for its ruling, at most the given seconds."""


class LeaseLost(FencedError):
    """This process may not write the generation any more; another attempt goes on. Nothing is to be undone:
    what it wrote late is ignored by the fold and by every follower."""

    def __init__(self, generation: str, attempt: int, why: str) -> None:
        super().__init__(
            f"attempt {attempt} of generation {generation} was taken over ({why}): stop, do not retry; the "
            "other attempt finishes it. A longer lease= gives a process that pauses more time"
        )
        self.generation = generation
        self.attempt = attempt


class Lease:
    """Held from ``since`` (monotonic, before it was asked for) for ``seconds``. Use from one event loop."""

    def __init__(self, generation: str, attempt: int, seconds: float, since: float) -> None:
        self.seconds = seconds
        self.until = since + seconds
        self.lost: LeaseLost | None = None
        self._generation = generation
        self._attempt = attempt
        self._changed = asyncio.Event()
        self._on_lost: list[Callable[[], None]] = []

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call it once, at once when the lease turns out to be lost."""
        self._on_lost.append(call)

    def lose(self, why: str) -> None:
        """Another attempt was granted, or the fold refused this one."""
        if self.lost is not None:
            return
        self.lost = LeaseLost(self._generation, self._attempt, why)
        self._changed.set()
        for call in self._on_lost:
            call()

    def check(self) -> None:
        """Raises :class:`LeaseLost`."""
        if self.lost is not None:
            raise self.lost

    async def valid(self) -> None:
        """Return while the lease holds; where it is over, wait for the fold's word. Raises LeaseLost."""
        loop = asyncio.get_running_loop()
        while True:
            self.check()
            if loop.time() < self.until:
                return
            self._changed.clear()
            await self._changed.wait()

    async def keep(self, renew: Renew) -> None:
        """Renew until it is lost; cancel it when the generation has ended."""
        loop = asyncio.get_running_loop()
        pause = self.seconds / RENEWALS_PER_LEASE
        while self.lost is None:
            await asyncio.sleep(max(0.0, min(pause, self.until - loop.time() - pause)))
            asked = loop.time()
            try:
                ruling = await renew(self.seconds)
            except (TransientError, UnavailableError):
                # No worker, or no broker: nobody else can be granted it meanwhile. Ask again.
                await asyncio.sleep(pause / 4)
                continue
            except RefoldError as error:
                # Refused by Kafka, say. Without a lease, and not replaced: who waits for it must not do so
                # for ever because nobody asks any more.
                log.warning("generation_not_renewed id=%s: %s", self._generation, error)
                await asyncio.sleep(pause)
                continue
            if ruling.in_effect:
                self.until = asked + self.seconds
                self._changed.set()
            elif ruling.code in LOST:
                self.lose(str(ruling.code))
            else:
                # Quarantined, or a code of a later version: without a lease, but not replaced either.
                await asyncio.sleep(pause)
