"""Folding the second source, and rule G10: the inbox of a partition waits until its batches have caught up.

Catching up: a ``GenerationFinished`` names batches that have not been folded yet. Its slice ends in front of
it with nothing applied; the chunk, and all that follow for the partition, are *held*. The high watermark of
the partition's batches is asked for, the fold of batches goes on as ever until it has passed that mark, and
the record is stepped again: what the rule says now stands, for it and for all that was here when the mark
was asked for, so that a flood of finishes that name batches nobody wrote costs one look and not one each.
Other partitions are not held: what is held is counted apart from what waits to be folded, and bounded. When
the wait is longer than a look takes, or the bound is reached, the partition is *parked*: what is held of it
is dropped, the poller fetches no more of it, and it is read again from the waiting record on when the batches
are there.

Nothing is locked meanwhile, so a full overlay, a barrier, an abort and a stop go on as ever; each of the
latter three wakes the waiting (``Partition.wake``), which then finds its chunks stale.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from refold.engine.assignment import Partition
from refold.engine.chunks import Chunk
from refold.engine.overlay import Overlay
from refold.engine.ownership import Ownership
from refold.engine.poll import Flow
from refold.engine.seal import SLICE_S
from refold.engine.sessions import Sessions
from refold.engine.store import UnreadableStore
from refold.errors import TransientError, UnavailableError

#: How often the fold of batches looks at the clock: 16 batches are half a millisecond.
CLOCK_EVERY: Final = 16

#: Catching up takes milliseconds. Longer, and the log says what it waits for (a producer's open transaction).
CATCH_UP_WARN_S: Final = 5.0

#: Holding for longer is no look at the end of batches any more, but a producer's open transaction, which may
#: last as long as the producer likes: the partition is parked. Reading it again costs one fetch.
HOLD_S_MAX: Final = 1.0

#: Between two tries to learn the mark while the cluster does not answer.
MARK_AGAIN_S: Final = 0.2


class BatchFold(Ownership):
    """Everything without a comment runs on the event loop."""

    sessions: Sessions
    stopping: bool
    #: What is held, of all partitions: as much as may wait to be folded besides, and no more.
    held_flow: Flow
    _go: asyncio.Event
    #: The pump waits for more records to commit; ``None`` before it does so for the first time.
    _resting: asyncio.Future[None] | None = None
    #: Sessions of the overlay that was taken are being encoded. Whatever makes room meanwhile (a store found
    #: bad, say): a record that is folded now would be in such a session and not in the commit's journal.
    _sealing: bool = False
    #: High watermark of a partition of batches; blocks, raises Unavailable- or TransientError.
    batches_end: Callable[[int], int]

    @abstractmethod
    def _arrives(self, now: float) -> None:
        """An event is folded at ``now`` (monotonic): for the cadence."""

    @abstractmethod
    async def _fold_from(self, chunk: Chunk, at: int) -> int:
        """Fold a chunk of the inbox from message ``at`` on. The place of a record that has to wait for
        batches; the chunk's length when there is none, or when the chunk is stale."""

    # --- batches -----------------------------------------------------------------------------------

    async def fold_batches(self, chunk: Chunk) -> None:
        """The agent's body for batches. Slices of at most ``SLICE_S``; waits while an overlay is sealed or
        full."""
        try:
            await self._fold_batches(chunk)
        finally:
            self.batches.flow.done(chunk)

    async def _fold_batches(self, chunk: Chunk) -> None:
        messages, at, count = chunk.messages, 0, len(chunk.messages)
        live = self.assignment.live
        while True:
            if not self._go.is_set():
                await self._go.wait()
                continue
            owner = live(chunk.partition, chunk.epoch, chunk.fetch_epoch)
            if owner is None or self.stopping:
                return
            if at == 0 and chunk.follows != owner.batches_position:
                self._log.error(
                    "chunk_missing",
                    topic=chunk.topic,
                    partition=chunk.partition,
                    expected=owner.batches_position,
                    follows=chunk.follows,
                )
                self._rewind(owner, owner.position, owner.batches_position)
                return
            if count:
                at = self._batch_slice(owner, messages, at, count)
            if at == count:
                break
            await asyncio.sleep(0)
        owner.batches_position = chunk.next_offset
        part = self.current.parts.get(owner.number)
        if part is not None:
            part.batches_next = chunk.next_offset
        owner.wake()
        await asyncio.sleep(0)

    def _batch_slice(self, owner: Partition, messages: Sequence[Any], at: int, count: int) -> int:
        overlay, view, fold = self.current, self.sessions, self.sides.generations.fold
        self._arrives(time.monotonic())
        part = self.part_of(overlay, owner)
        until = time.perf_counter() + SLICE_S
        try:
            while at < count:
                fold(view, overlay, part, messages[at])
                at += 1
                if at % CLOCK_EVERY == 0 and (time.perf_counter() > until or self._is_full(overlay)):
                    break
        except UnreadableStore:
            # The partition is being restored already: what was folded of it is dropped.
            return at
        owner.batches_position = part.batches_next
        self._fills(overlay)
        self._dirty.set()
        return at

    def _fills(self, overlay: Overlay) -> None:
        """``overlay`` has grown. Where it is full nothing more is folded until its commit, which then has
        nothing to wait for."""
        if self._is_full(overlay):
            self._go.clear()
            self._end_rest()

    def _is_full(self, overlay: Overlay) -> bool:
        """At half of the bytes for overlays: the one in flight may hold the other half."""
        return overlay.bytes >= self.config.overlay_bytes_max // 2

    def _let_go(self) -> None:
        if not self._sealing and not self._is_full(self.current):
            self._go.set()

    def _end_rest(self) -> None:
        if self._resting is not None and not self._resting.done():
            self._resting.set_result(None)

    # --- the inbox waits for batches (rule G10) ------------------------------------------------------

    def _hold(self, owner: Partition, chunk: Chunk, at: int) -> None:
        """The record at ``at`` has to wait, and everything of the partition behind it."""
        owner.held = deque()
        self._keep(owner, chunk)
        self._spawn(self._catch_up(owner, chunk, at))

    def _keep(self, owner: Partition, chunk: Chunk) -> None:
        """A chunk of a partition that is held: one more to fold later, or to read again later."""
        if owner.held is None or owner.parked == chunk.fetch_epoch:
            return
        owner.held.append(chunk)
        self.held_flow.add(chunk.bytes, len(chunk))
        if self.held_flow.full:
            self._park(owner)

    def _park(self, owner: Partition) -> None:
        held = owner.held
        if held is None or owner.parked == owner.fetch_epoch:
            return
        for chunk in held:
            self.held_flow.done(chunk)
        held.clear()
        owner.parked = owner.fetch_epoch
        self.poller.park(owner.number, owner.epoch, owner.fetch_epoch)
        self._log.info("inbox_parked", partition=owner.number, offset=owner.position)

    async def _catch_up(self, owner: Partition, chunk: Chunk, at: int) -> None:
        held = owner.held
        if held is None:
            return
        until = chunk.next_offset
        try:
            while True:
                if at < len(chunk):
                    # All that is here is older than the mark: one look serves every record of it.
                    until = held[-1].next_offset if held else until
                    await self._wait_for_batches(owner, chunk)
                    if self._waits_on(owner, chunk):
                        owner.caught_up = until
                if owner.parked < 0:
                    at = await self._fold_from(chunk, at)
                    if at < len(chunk):
                        continue
                if owner.parked >= 0:
                    if self._waits_on(owner, chunk):
                        self._unpark(owner, until)
                        return
                    # Rewound meanwhile: what came since is to be folded.
                    owner.parked = -1
                else:
                    self.held_flow.done(held.popleft())
                if not held:
                    return
                chunk, at = held[0], 0
                at = await self._fold_from(chunk, at)
        finally:
            owner.held, owner.parked = None, -1
            for left in held:
                self.held_flow.done(left)

    def _unpark(self, owner: Partition, until: int) -> None:
        """Read on from the waiting record. Nothing that is folded is taken back, so what batches say of the
        records before ``until`` still stands."""
        self._rewind(owner, owner.position, owner.batches_position)
        owner.caught_up = until
        self._log.info("inbox_resumed", partition=owner.number, offset=owner.position)

    def _waits_on(self, owner: Partition, chunk: Chunk) -> bool:
        return (
            not self.stopping
            and self.assignment.live(chunk.partition, chunk.epoch, chunk.fetch_epoch) is owner
        )

    async def _wait_for_batches(self, owner: Partition, chunk: Chunk) -> None:
        """Until batches are folded up to their end as of now, or the chunk is stale."""
        began = time.monotonic()
        mark = await self._mark(owner, chunk)
        warn = began + CATCH_UP_WARN_S
        while mark is not None and owner.batches_position < mark and self._waits_on(owner, chunk):
            moved = owner.batches_moved
            if moved is None or moved.done():
                moved = owner.batches_moved = self._loop.create_future()
            # Where nothing is held (rules H: only sessions wait) there is nothing to park after that time.
            look = warn if owner.parked >= 0 or owner.held is None else began + HOLD_S_MAX
            await asyncio.wait([moved], timeout=max(0.0, look - time.monotonic()))
            now = time.monotonic()
            if now >= began + HOLD_S_MAX and self._waits_on(owner, chunk) and not moved.done():
                self._park(owner)
            if now >= warn:
                warn = now + CATCH_UP_WARN_S
                self._log.warning(
                    "waiting_for_batches",
                    partition=owner.number,
                    position=owner.batches_position,
                    end=mark,
                    seconds=round(now - began, 1),
                    why="a transaction is open on the topic, or it cannot be read",
                )
        self._metrics.observe("refold_batches_wait_seconds", time.monotonic() - began)

    async def _mark(self, owner: Partition, chunk: Chunk) -> int | None:
        """``None``: the chunk is stale meanwhile."""
        while self._waits_on(owner, chunk):
            try:
                # Not on the restore threads: a restore takes seconds.
                return await self._loop.run_in_executor(None, self.batches_end, owner.number)
            except (TransientError, UnavailableError) as error:
                self._log.warning("batches_end_unknown", partition=owner.number, error=str(error))
                await asyncio.sleep(MARK_AGAIN_S)
        return None
