"""Who restores when, and how fast: order, jitter, at most R at once, at most B bytes/s. One per worker.

- *Order*: core partitions first (``worker.restore_first``), then those with more unread records in the inbox:
  what came while nobody read is the traffic that is known before anything is restored.
- *Jitter*: one draw per partition, from the seed, the smallest to the first in the order, so that spreading
  does not undo the order; times the longest jitter times what is missing locally. Core partitions have none.
- *R*: :class:`Turns`. *B*: :class:`Pace`, over the restores of a worker together.

What is core cannot be told from a tenant: its sessions are on every partition. A session names one.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from refold.core.slots import SlotMap
from refold.engine.takeover import Cancelled
from refold.errors import ConfigError

#: What may be read at once after a pause: a quarter of a second's worth, so that in any window of T seconds
#: at most B * (T + 0.25) bytes are read, plus one chunk per restore that ran when the bucket ran dry.
BURST_S: Final = 0.25

#: Longest sleep of a restore that waits for bytes before it looks whether it is still wanted.
SLICE_S: Final = 0.05


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Smaller is earlier."""

    later: bool
    unread_negative: int
    partition: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """``draw``: 0 … 1, the fraction of the longest jitter."""

    rank: Rank
    draw: float


def background(rank: Rank) -> Rank:
    """The rank of a partition that is served already: after all that are not."""
    return Rank(True, 1, rank.partition)


def core_partitions(text: str, slots: SlotMap) -> frozenset[int]:
    """Partitions named by ``worker.restore_first``: ``"0,4-7,acme/front desk"``.

    Raises ConfigError for what is neither a partition of this topic, a range, nor ``tenant/session``.
    """
    found: set[int] = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if "/" in entry:
            found.add(slots.partition(entry.encode()))
            continue
        low, _, high = entry.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal() or int(high or low) >= slots.partitions:
            raise ConfigError(
                f"worker.restore_first: {entry!r} is not one of the {slots.partitions} partitions"
                f" (0 to {slots.partitions - 1}), a range such as 4-7, or a session as tenant/session"
            )
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def plan(
    partitions: Iterable[int], core: Collection[int], unread: Mapping[int, int], chance: random.Random
) -> dict[int, Ticket]:
    """The order and jitter of partitions that were assigned together; a function of its arguments."""
    ranks = sorted(Rank(number not in core, -unread.get(number, 0), number) for number in partitions)
    draws = iter(sorted(chance.random() for rank in ranks if rank.later))
    return {rank.partition: Ticket(rank, next(draws) if rank.later else 0.0) for rank in ranks}


class Turns:
    """At most ``at_once`` hold a turn; a free one goes to the smallest rank that waits. Event loop only.

    Granted at the end of the loop's round and not at once: of those that ask in the same round the first in
    rank is served, not the first to ask.
    """

    def __init__(self, at_once: int, loop: asyncio.AbstractEventLoop) -> None:
        self._free = at_once
        self._loop = loop
        self._waiting: list[tuple[Rank, int, asyncio.Future[None]]] = []
        self._asked = 0
        self._due = False

    async def take(self, rank: Rank) -> None:
        """Wait for a turn. Raises :class:`Cancelled` when it was withdrawn meanwhile."""
        turn = self._loop.create_future()
        self._asked += 1
        heapq.heappush(self._waiting, (rank, self._asked, turn))
        self._soon()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._back()
            turn.cancel()
            raise

    def withdraw(self, rank: Rank) -> None:
        """Who waits with this rank waits no longer; nothing happens where nobody does."""
        for waiting, _, turn in self._waiting:
            if waiting == rank and not turn.done():
                turn.set_exception(Cancelled())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Around the work, after :meth:`take`: gives the turn back."""
        try:
            yield
        finally:
            self._back()

    def _back(self) -> None:
        self._free += 1
        self._soon()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._grant)

    def _grant(self) -> None:
        self._due = False
        while self._free and self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


class Bucket:
    """A token bucket in bytes that may go into debt: what was read is known afterwards. Not thread-safe."""

    def __init__(self, bytes_per_s: int, now: float) -> None:
        self._rate = bytes_per_s
        self._burst = bytes_per_s * BURST_S
        self._level = self._burst
        self._at = now

    def spend(self, size: int, now: float) -> float:
        """Take ``size`` bytes; seconds until the debt is paid, 0 where there is none."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - size
        self._at = now
        return max(0.0, -self._level / self._rate)


class Pace:
    """Counts what restore threads read, and makes them wait so that together they read at most
    ``bytes_per_s`` (0: no limit). Thread-safe."""

    def __init__(
        self,
        bytes_per_s: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self.bytes_per_s = bytes_per_s
        self._bucket = Bucket(bytes_per_s, monotonic()) if bytes_per_s else None
        self._lock = threading.Lock()
        #: Told of every read, in bytes, on the thread that read.
        self.told: Callable[[int], None] = _nobody

    def spend(self, size: int, cancelled: Callable[[], bool]) -> None:
        """Say that ``size`` bytes were read; blocks until more may be, or ``cancelled`` says it is moot."""
        self.told(size)
        self.wait(size, cancelled)

    def wait(self, size: int, cancelled: Callable[[], bool]) -> None:
        """The same for bytes that did not come from the brokers."""
        if self._bucket is None:
            return
        with self._lock:
            now = self._monotonic()
            until = now + self._bucket.spend(size, now)
        while (left := until - self._monotonic()) > 0 and not cancelled():
            self._sleep(min(left, SLICE_S))


def _nobody(_size: int) -> None:
    return None
