"""One followed generation: its frames, kept once for all its followers.

A follower is a position in the topic, not a queue: frames lie in one bounded ring, and who is further behind
than the ring reaches reads the topic. So a slow follower costs nothing here and holds nobody up.

How the beginning is joined to the live feed without gap or repeat: the hub's feed of the partition is at
offset P when the track is made; everything before P is read from the topic (``load``), what comes from P on
meanwhile waits in ``_pending``. Should too much come, it is dropped and P moves up to the feed's place: the
read goes on to there. All of it happens on one event loop, so nothing slips in between.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable

from refold.client.generations.frames import Frame, Item, Transcript
from refold.client.generations.limits import FRAMES_PER_TURN_MAX, PENDING_ITEMS_MAX

Placed = tuple[Item, int, int]
"""An item, its offset, its append time in ms."""

#: Items of the generation from one offset up to another (exclusive), and where to go on.
ReadPage = Callable[[int, int], Awaitable[tuple[list[Placed], int]]]


class Ring:
    """Frames by ascending offset, the oldest dropped when ``bytes_max`` is passed."""

    __slots__ = ("_frames", "_offsets", "_start", "complete_from", "size")

    def __init__(self, complete_from: int) -> None:
        self._offsets: list[int] = []
        self._frames: list[Frame] = []
        self._start = 0
        #: Every frame at or after this offset is here.
        self.complete_from = complete_from
        self.size = 0

    def append(self, offset: int, frame: Frame, bytes_max: int) -> None:
        self._offsets.append(offset)
        self._frames.append(frame)
        self.size += frame.size
        while self.size > bytes_max and self._start < len(self._frames) - 1:
            self.size -= self._frames[self._start].size
            self._start += 1
            self.complete_from = self._offsets[self._start]
        if self._start > 64 and self._start * 2 > len(self._frames):
            del self._offsets[: self._start]
            del self._frames[: self._start]
            self._start = 0

    def since(self, offset: int, count_max: int = FRAMES_PER_TURN_MAX) -> list[tuple[int, Frame]]:
        """Frames at or after ``offset``, at most ``count_max``."""
        first = bisect_left(self._offsets, offset, self._start)
        last = first + count_max
        return list(zip(self._offsets[first:last], self._frames[first:last], strict=True))


class Track:
    """Made by the hub. ``first`` is the offset of the ``begin`` its text began with, or one before it;
    ``live`` the place of the hub's feed when it was made. Use from one event loop."""

    def __init__(
        self, key: bytes, generation: str, partition: int, first: int, live: int, read_page: ReadPage
    ) -> None:
        self.key = key
        self.generation = generation
        self.partition = partition
        self.first = first
        self.transcript = Transcript(generation)
        self.ring = Ring(first)
        self.failure: BaseException | None = None
        self.users = 0
        self.bytes_max: Callable[[], int] = lambda: 0
        self._read_page = read_page
        self._next = first
        self._join_at = max(first, live)
        self._pending: list[Placed] | None = []
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def ended(self) -> bool:
        progress = self.transcript.progress
        return progress is not None and bool(progress.ended)

    @property
    def loaded(self) -> bool:
        return self._pending is None

    async def load(self) -> None:
        """Read what lies before the live feed, then join it. Failures are told to all who wait."""
        try:
            while self._next < self._join_at:
                placed, self._next = await self._read_page(self._next, self._join_at)
                for one in placed:
                    self._apply(*one)
                self._wake()
        except Exception as error:
            self.fail(error)
            return
        pending, self._pending = self._pending or [], None
        for one in pending:
            self._apply(*one)
        self._wake()

    def feed(self, item: Item, offset: int, append_ms: int) -> None:
        """An item of this generation from the hub's live feed."""
        if self._pending is not None:
            if len(self._pending) >= PENDING_ITEMS_MAX:
                self._pending.clear()
                self._join_at = offset + 1
            elif offset >= self._join_at:
                self._pending.append((item, offset, append_ms))
            return
        self._apply(item, offset, append_ms)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """The feed or the read behind it cannot go on; followers raise this."""
        self.failure = error
        self._wake()

    async def changed(self) -> None:
        """Wait for the next frame, marker or failure."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.done():
                waiter.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _apply(self, item: Item, offset: int, append_ms: int) -> None:
        frame = self.transcript.take(item, offset, append_ms)
        if frame is not None:
            self.ring.append(offset, frame, self.bytes_max())

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
