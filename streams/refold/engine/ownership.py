"""Which partitions are ours: brought up by rule T, given up by rule R. The base of the engine.

A partition goes ASSIGNED → WAITING → RESTORING → LIVE (:mod:`refold.engine.lifecycle`) in a task of its own,
on the event loop; restores run on threads and open a DB that is not live yet. Giving up is a *barrier*: it
keeps the next commit from starting, waits for the one in flight, and drops what was folded since.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from refold.engine.admission import Turns, plan
from refold.engine.assignment import Assignment, Partition
from refold.engine.batchsource import BatchSource
from refold.engine.cache import SessionCache
from refold.engine.chunks import Chunk
from refold.engine.commit import COMMIT_SECONDS_MAX
from refold.engine.config import EngineConfig
from refold.engine.lifecycle import REOPENED, TABLE, Reopened, State
from refold.engine.metrics import Metrics
from refold.engine.onloop import on_loop
from refold.engine.overlay import Overlay, PartitionOverlay
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.poll import POLL_S, Poller
from refold.engine.restore import Restored, Restorer
from refold.engine.rulings import RulingBook
from refold.engine.sides import Sides
from refold.engine.standby.service import Standbys
from refold.engine.store import UnreadableStore
from refold.engine.takeover import Cancelled
from refold.engine.warming.warmer import Warmer
from refold.errors import StorageError, TransientError, UnavailableError

#: A revoke waits for the commit in flight; that one is bounded, and this adds its abort and some closing.
BARRIER_SECONDS_MAX: Final = COMMIT_SECONDS_MAX * 2 + 10.0

#: After an abort, before the next commit: a broken cluster must not be hammered.
ABORT_BACKOFF_MS: Final = 10

#: Between two tries of a takeover that failed for a reason that passes.
RESTORE_AGAIN_S: Final = 0.5

JITTER_SLICE_S: Final = 0.05


class Ownership(ABC):
    """Implements :class:`refold.engine.poll.Listener`. Everything without a comment runs on the event
    loop."""

    #: What is being sealed or committed.
    inflight: Overlay | None = None

    def __init__(
        self, config: EngineConfig, *, restorer: Restorer, points: Points, metrics: Metrics, log: Any
    ) -> None:
        self.config = config
        self.assignment = Assignment()
        self.cache = SessionCache(config.cache_bytes_max)
        self.sides = Sides(config.topics, self.assignment)
        self.book = RulingBook()
        #: What is folded and not yet sealed.
        self.current = Overlay()
        self.joined = False
        self._restorer = restorer
        self._points = points
        self._metrics = metrics
        self._log = log
        self._random = random.Random(config.seed)
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[BaseException] = self._loop.create_future()
        self._restore_pool = ThreadPoolExecutor(config.restores_max, "refold-restore")
        self._disk_pool = ThreadPoolExecutor(1, "refold-disk")
        self._turns = Turns(config.restores_max, self._loop)
        #: Partitions that are restored before others (`admission.core_partitions`).
        self._core: frozenset[int] = frozenset()
        #: There is something to commit.
        self._dirty = asyncio.Event()
        #: No commit is in flight.
        self._idle = asyncio.Event()
        self._idle.set()
        self._barriers = 0
        self._no_barrier = asyncio.Event()
        self._no_barrier.set()
        self._claims: dict[int, asyncio.Future[bool]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.poller: Poller
        self.batches: BatchSource
        #: Copies of other workers' partitions in the same directories; ``None`` where none are kept.
        self.standbys: Standbys | None = None
        #: Told (awaited) before the first chunk of new partitions can arrive, and after some are gone.
        self.on_ownership: Callable[[Sequence[int]], Awaitable[None]] = _no_hook
        #: Where chunks go: the transport's queue.
        self.on_chunks: Callable[[list[Chunk]], None] = lambda _chunks: None

    @abstractmethod
    async def _serve(self, owner: Partition, restored: Restored, warmer: Warmer) -> None:
        """RESTORING, fed, and read on in the background until it is LIVE (rule H2)."""

    @abstractmethod
    def _let_go(self) -> None:
        """Folding may go on if nothing is being sealed and the overlay has room again."""

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        async def guarded() -> Any:
            try:
                return await work
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.failed(error)
                return None

        task = self._loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def failed(self, error: BaseException) -> None:
        """Any thread: the process must end. The first error counts."""

        def tell() -> None:
            if not self.failure.done():
                self.failure.set_result(error)

        self._loop.call_soon_threadsafe(tell)

    # --- told by the polling thread ------------------------------------------------------------------

    def next_epoch(self) -> int:
        """Polling thread; only it takes numbers."""
        return self.assignment.next_epoch()

    def deliver(self, chunks: list[Chunk]) -> None:
        """Polling thread."""
        self._loop.call_soon_threadsafe(self.on_chunks, chunks)

    def assigned(self, partitions: Sequence[tuple[int, int]]) -> None:
        """Polling thread."""
        self._loop.call_soon_threadsafe(self._assigned, partitions)

    def revoked(self, partitions: Sequence[int]) -> None:
        """Polling thread; returns when the partitions are written and closed."""
        self._settle(partitions, State.REVOKED)

    def lost(self, partitions: Sequence[int]) -> None:
        """Polling thread; as :meth:`revoked`, after the group has given the partitions away."""
        self._log.warning("partitions_lost_fenced", partitions=list(partitions))
        self._metrics.count("refold_fenced_total")
        self._settle(partitions, State.LOST)

    def _settle(self, partitions: Sequence[int], to: State) -> None:
        self._points.reach("on_revoke" if to is State.REVOKED else "on_lost")
        work = asyncio.run_coroutine_threadsafe(self._give_up(partitions, to), self._loop)
        end = time.monotonic() + BARRIER_SECONDS_MAX
        while True:
            try:
                work.result(POLL_S)
                return
            except TimeoutError:
                if work.done():
                    raise
                if time.monotonic() > end:
                    raise UnavailableError(
                        f"partitions {list(partitions)} could not be given up within"
                        f" {BARRIER_SECONDS_MAX:.0f} s: a commit is still in flight. Stopping is safe;"
                        " check the brokers"
                    ) from None
                # The commit that is waited for may itself wait for group metadata, which only this thread
                # reads.
                self.poller.serve_metadata()

    def _assigned(self, partitions: Sequence[tuple[int, int]]) -> None:
        self.joined = True
        if self.standbys is not None:
            self.standbys.withhold(number for number, _ in partitions)
        new = [self.assignment.add(number, epoch) for number, epoch in partitions]
        self._log.info("partitions_assigned", partitions=[number for number, _ in partitions])
        told = self._loop.create_task(self._introduce(new))
        for owner in new:
            owner.task = self._spawn(self._bring_up(owner, after=told))

    def _move(self, owner: Partition, to: State, why: str | None = None) -> None:
        """One step of the lifecycle, told to the log and the metrics. ``why``: where the table has several
        reasons."""
        before, spent = owner.state, time.monotonic() - owner.moved_at
        owner.move(to)
        self._metrics.count("refold_partition_transitions_total", before=before.value, state=to.value)
        self._log.info(
            "partition_moved",
            partition=owner.number,
            before=before.value,
            state=to.value,
            why=why or TABLE[before][to],
            seconds=round(spent, 3),
        )

    def _call_off(self, owner: Partition) -> None:
        """End its restore, also where it still waits for its turn: others' may take minutes."""
        owner.cancelled.set()
        self._turns.withdraw(owner.ticket.rank)

    async def _introduce(self, new: Sequence[Partition]) -> None:
        """Tell of the new partitions, and draw the order and the jitter of their restores."""
        await self._tell_ownership()
        unread: dict[int, int] = {}
        if len(new) > self.config.restores_max:
            numbers = [owner.number for owner in new]
            try:
                # Not on restore threads, here and below: others' restores may have all of them, for minutes,
                # and a rebalance that takes the partition away waits for this.
                unread = await self._loop.run_in_executor(None, self._restorer.unread, numbers)
            except (TransientError, UnavailableError) as error:
                self._log.warning("restore_order_unknown", error=str(error), order="by number")
        tickets = plan((owner.number for owner in new), self._core, unread, self._random)
        for owner in new:
            owner.ticket = tickets[owner.number]
            owner.lag = unread.get(owner.number)

    async def _tell_ownership(self) -> None:
        await self.on_ownership(sorted(owner.number for owner in self.assignment))

    async def _give_up(self, numbers: Sequence[int], to: State) -> None:
        if self.config.sabotage.revoke_without_barrier:
            return
        owners = [owner for number in numbers if (owner := self.assignment.get(number)) is not None]
        for owner in owners:
            self._call_off(owner)
            self._move(owner, to)
            owner.wake()
            self.batches.end(owner.number, owner.epoch)
            self._settle_claim(owner.number, False)
        self._barriers += 1
        self._no_barrier.clear()
        try:
            # A task that restores ends when it sees the flag: its DB must be closed before the partition can
            # be opened here again.
            for owner in owners:
                if owner.task is not None:
                    await owner.task
            await self._idle.wait()
            for owner in owners:
                self.current.drop(owner.number)
                self.cache.discard_partition(owner.number)
                self.sides.discard_partition(owner.number)
                self.book.close(owner.number)
                self.assignment.forget(owner)
                if owner.written is not None:
                    await self._loop.run_in_executor(self._disk_pool, owner.written.store.close)
                if self.standbys is not None:
                    self.standbys.permit(owner.number)
                for state in State:
                    self._metrics.forget(
                        "refold_partition_state", partition=str(owner.number), state=state.value
                    )
                for name in ("refold_lag_records", "refold_staleness_seconds"):
                    self._metrics.forget(name, partition=str(owner.number))
        finally:
            self._barriers -= 1
            if self._barriers == 0:
                self._no_barrier.set()
        self._let_go()
        self._log.info("partitions_given_up", partitions=list(numbers), how=to.value)
        await self._tell_ownership()

    async def _bring_up(
        self,
        owner: Partition,
        *,
        after: asyncio.Task[None] | None = None,
        broken: Written | None = None,
        aside: str | None = None,
    ) -> None:
        """ASSIGNED → WAITING → RESTORING → LIVE. ``broken``: to be closed first, and with ``aside`` set
        aside."""
        if after is not None:
            await after
        if broken is not None:
            # The commit in flight may hold the partition and write to it: a transaction that stands.
            await self._idle.wait()
            owner.written = None
            # Also what its seal and its confirmation have looked up and remembered since.
            self.cache.discard_partition(owner.number)
            self.sides.discard_partition(owner.number)
            await self._loop.run_in_executor(self._disk_pool, self._close, owner.number, broken, aside)
        if self.standbys is not None:
            # Rule S3: one user of the directory at a time, and who estimates what is missing is one already.
            await self.standbys.closed(owner.number)
        if owner.cancelled.is_set():
            return
        if owner.state is State.ASSIGNED:
            self._move(owner, State.WAITING)
        owner.restoring_since = time.monotonic()
        try:
            await self._jitter(owner)
            restored = await self._restore(owner)
        except Cancelled:
            return
        owner.written = restored.written
        owner.begin(restored.offset, restored.beyond)
        owner.batches_position = owner.batches_committed = restored.batches
        self._metrics.count("refold_restores_total", outcome="done")
        self._metrics.count("refold_restore_records_total", restored.records)
        self._metrics.observe("refold_takeover_wait_seconds", restored.waited_s)
        if restored.set_aside is not None:
            self._metrics.count("refold_store_dead_opens_total", reason=restored.set_aside)
        if restored.warmer is not None:
            await self._serve(owner, restored, restored.warmer)
            return
        if restored.claim:
            await self._claim_until_done(owner)
        if owner.cancelled.is_set() or owner.written is not restored.written:
            # Taken away meanwhile, or the claim's disk write failed and another task restores it again.
            return
        restored.written.store.on_unreadable = lambda error: self._unreadable(owner, restored.written, error)
        self.book.open(owner.number, restored.offset)
        self._live(owner, restored)
        self._feed(owner, restored)

    def _live(self, owner: Partition, restored: Restored) -> None:
        owner.progress = 1.0
        self._move(owner, State.LIVE)
        seconds = time.monotonic() - owner.restoring_since
        self._metrics.observe("refold_restore_seconds", seconds)
        self._log.info(
            "partition_live",
            partition=owner.number,
            offset=restored.offset,
            batches=restored.batches,
            records=restored.records,
            seconds=round(seconds, 3),
            waited_seconds=round(restored.waited_s, 3),
        )

    def _feed(self, owner: Partition, restored: Restored) -> None:
        self.poller.begin(owner.number, owner.epoch, owner.fetch_epoch, restored.offset)
        self.batches.begin(owner.number, owner.epoch, owner.fetch_epoch, restored.batches)

    async def _jitter(self, owner: Partition) -> None:
        """Spread restores, scaled by how much is missing here: a warm disk does not wait."""
        longest_ms = self.config.restore_jitter_ms_max * owner.ticket.draw
        if longest_ms == 0:
            return
        try:
            missing = await self._loop.run_in_executor(None, self._restorer.missing, owner.number)
        except (TransientError, UnavailableError) as error:
            # Only pacing: the restore itself asks again, and is tried again.
            self._log.warning("missing_unknown", partition=owner.number, error=str(error), taken_for="all")
            missing = 1.0
        end = time.monotonic() + longest_ms * missing / 1000
        while time.monotonic() < end:
            if owner.cancelled.is_set():
                raise Cancelled
            await asyncio.sleep(min(JITTER_SLICE_S, max(0.0, end - time.monotonic())))

    async def _restore(self, owner: Partition) -> Restored:
        def progress(fraction: float) -> None:
            owner.progress = fraction

        until = time.monotonic() + self.config.takeover_stall_ms_max / 1000
        while True:
            await self._turns.take(owner.ticket.rank)
            with self._turns.held():
                if owner.cancelled.is_set():
                    raise Cancelled
                self._move(owner, State.RESTORING)
                try:
                    return await self._loop.run_in_executor(
                        self._restore_pool,
                        self._restorer.run,
                        owner.number,
                        owner.cancelled.is_set,
                        progress,
                    )
                except (TransientError, UnavailableError) as error:
                    self._metrics.count("refold_restores_total", outcome="failed")
                    if time.monotonic() > until:
                        raise
                    if owner.cancelled.is_set():
                        raise Cancelled from None
                    self._log.warning("restore_again", partition=owner.number, error=str(error))
                    self._move(owner, State.WAITING)
            await asyncio.sleep(RESTORE_AGAIN_S)

    async def _claim_until_done(self, owner: Partition) -> None:
        while not owner.cancelled.is_set():
            if await self._claim(owner):
                return
            await asyncio.sleep(ABORT_BACKOFF_MS / 1000)

    async def _claim(self, owner: Partition) -> bool:
        """Commit the unchanged offset under our name, so that whoever takes over from us knows whom to
        fence."""
        future = self._claims[owner.number] = self._loop.create_future()
        self.part_of(self.current, owner).claim = True
        self._dirty.set()
        done: bool = await future
        return done

    def _settle_claim(self, number: int, done: bool) -> None:
        future = self._claims.pop(number, None)
        if future is not None and not future.done():
            future.set_result(done)

    async def on_disk(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` on the disk thread, where DBs are closed: none is meanwhile."""
        return await self._loop.run_in_executor(self._disk_pool, work)

    async def flush_stores(self) -> None:
        """Bound, in time, what a killed process has to read again; the memtable bounds it in bytes."""
        for owner in self.assignment:
            if owner.state is State.LIVE and (written := owner.written) is not None:
                try:
                    await self._loop.run_in_executor(self._disk_pool, written.store.flush)
                except StorageError as error:
                    self.distrust(owner, written, error, Reopened.WRITE)

    @staticmethod
    def part_of(overlay: Overlay, owner: Partition) -> PartitionOverlay:
        """What is folded of the partition: made with both sources' offsets, which go with its commit."""
        return overlay.part(owner.number, owner.epoch, owner.position, owner.batches_position)

    def read_anew(self, owner: Partition) -> None:
        """The consumers have lost the partition: have them fetch it from where it stands."""
        if owner.fed:
            self._rewind(owner, owner.position, owner.batches_position, anew=True)

    def _rewind(self, owner: Partition, offset: int, batches: int, *, anew: bool = False) -> None:
        """Both sources: their chunks share the fetch epoch."""
        owner.fetch_epoch += 1
        owner.position, owner.batches_position = offset, batches
        # What had been read to its end has not been any more.
        owner.caught_up = -1
        owner.wake()
        self.poller.begin(owner.number, owner.epoch, owner.fetch_epoch, offset, anew=anew)
        self.batches.begin(owner.number, owner.epoch, owner.fetch_epoch, batches)

    def distrust(self, owner: Partition, written: Written, error: StorageError, why: Reopened) -> None:
        """Close and restore a live partition whose store ``written`` was found bad; nothing where it is
        another one by now."""
        now = self.assignment.get(owner.number)
        if now is owner and owner.written is written and owner.fed:
            self._reopen(owner.number, error, why)

    def _unreadable(self, owner: Partition, written: Written, error: UnreadableStore) -> None:
        """A read of a store that is served failed; whoever read is about to be told. Any thread: the disk
        thread reads for readers, a restore thread for itself."""
        on_loop(self._loop, self.distrust, owner, written, error, Reopened.READ)

    def _close(self, number: int, broken: Written, aside: str | None) -> None:
        """Disk thread."""
        broken.store.close(flush=False)
        if aside is not None:
            self._restorer.set_aside(number, aside)

    def _reopen(self, number: int, error: StorageError, why: Reopened = Reopened.WRITE) -> None:
        """Close and restore. Where RocksDB could not be written after a commit the transaction stands; what
        cannot be read, or is not what the changelogs say, is set aside besides."""
        owner = self.assignment.get(number)
        if owner is None or owner.cancelled.is_set() or owner.state is State.WAITING:
            # A barrier waits for this commit: the disk is closed as it is, behind, and catches up later. Or
            # it was found bad before this commit's write failed too.
            return
        event, aside = REOPENED[why]
        say = self._log.info if why is Reopened.ARRIVED else self._log.error
        say(event, partition=number, error=str(error))
        if isinstance(error, UnreadableStore):
            aside = "damaged"
        if aside is not None:
            self._metrics.count("refold_store_dead_opens_total", reason=aside)
        self.current.drop(number)
        self._let_go()
        self.cache.discard_partition(number)
        self.sides.discard_partition(number)
        self.book.close(number)
        self._move(owner, State.WAITING, why.value)
        owner.progress = 0.0
        owner.fetch_epoch += 1
        owner.caught_up = -1
        owner.wake()
        self.batches.end(number, owner.epoch)
        written = owner.written
        if self.inflight is None:
            owner.written = None
        # Of one that was served while it was restored: it must have let go of the disk.
        reading = None if owner.warming is None else owner.task
        if reading is not None:
            self._turns.withdraw(owner.ticket.rank)
        owner.warming = owner.parking = None
        owner.task = self._spawn(self._bring_up(owner, after=reading, broken=written, aside=aside))


async def _no_hook(_numbers: Sequence[int]) -> None:
    return None
