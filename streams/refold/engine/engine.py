"""The engine: fold, seal, commit, and what a rebalance does to them. One per process, on one event loop.

Threads and what they own::

    event loop      fold, overlays, cache, rulings, ownership table
    polling thread  the group consumer                                  (poll.py)
    commit thread   the transactional producer, RocksDB writes          (commit.py)
    restore threads their own readers, a DB that is not live yet        (restore.py)

Two overlays: k is committed while k + 1 is filled; at most one commit is in flight. A *barrier* (revoke,
lost) keeps the next commit from starting, waits for k, and drops k + 1 of its partitions (rule R).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from refold.core.slots import SlotMap
from refold.engine.assignment import Assignment, Partition
from refold.engine.cache import SessionCache
from refold.engine.cadence import Cadence
from refold.engine.chunks import Chunk, record_of
from refold.engine.commit import COMMIT_SECONDS_MAX, Aborted, Committed, Transactor
from refold.engine.config import EngineConfig
from refold.engine.lifecycle import State
from refold.engine.metrics import Metrics
from refold.engine.overlay import Overlay, apply
from refold.engine.points import Points
from refold.engine.poll import CHUNK_RECORDS, POLL_S, Poller
from refold.engine.quarantine import QuarantineLimit
from refold.engine.restore import Restored, Restorer
from refold.engine.rulings import RulingBook
from refold.engine.seal import SLICE_S, Sealer
from refold.engine.sessions import Sessions
from refold.engine.step import Limits, step
from refold.engine.takeover import Cancelled
from refold.engine.waits import SeqWaits
from refold.errors import InvariantViolation, StorageError, TransientError, UnavailableError

#: How often a fold looks at the clock: 16 records are half a millisecond.
CLOCK_EVERY: Final = 16

#: A revoke waits for the commit in flight; that one is bounded, and this adds its abort and some closing.
BARRIER_SECONDS_MAX: Final = COMMIT_SECONDS_MAX * 2 + 10.0

#: After an abort, before the next commit: doubled for each further one in a row, so that a broken cluster is
#: not hammered.
ABORT_BACKOFF_MS: Final = 10
ABORT_BACKOFF_MS_MAX: Final = 1_000

#: More than a minute of nothing but aborts is no rebalance: a topic is gone, or a limit does not fit.
ABORTS_IN_A_ROW_MAX: Final = 70

#: Between two tries of a takeover that failed for a reason that passes.
RESTORE_AGAIN_S: Final = 0.5

JITTER_SLICE_S: Final = 0.05


class Engine:
    """Implements :class:`refold.engine.poll.Listener`. Everything without a comment runs on the event
    loop."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        slots: SlotMap,
        limits: Limits,
        restorer: Restorer,
        points: Points,
        metrics: Metrics,
        log: Any,
    ) -> None:
        self.config = config
        self.slots = slots
        self.assignment = Assignment()
        self.cache = SessionCache(config.cache_bytes_max)
        self.book = RulingBook()
        self.seq_waits = SeqWaits()
        self.current = Overlay()
        self.inflight: Overlay | None = None
        self.sessions = Sessions(
            config.topics, limits, slots, self.assignment, self.cache, self._overlays, config.sabotage
        )
        self.joined = False
        self.stopping = False
        self.last_commit = 0.0
        self.quarantined = 0
        self._sealer = Sealer(self.sessions)
        self._restorer = restorer
        self._points = points
        self._metrics = metrics
        self._log = log
        self._cadence = Cadence(config.commit_interval_min_ms)
        self._quarantines = QuarantineLimit()
        self._random = random.Random(config.seed)
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[BaseException] = self._loop.create_future()
        self._commit_pool = ThreadPoolExecutor(1, "refold-commit")
        self._restore_pool = ThreadPoolExecutor(config.restores_max, "refold-restore")
        self._disk_pool = ThreadPoolExecutor(1, "refold-disk")
        self._admission = asyncio.Semaphore(config.restores_max)
        self._dirty = asyncio.Event()
        self._go = asyncio.Event()
        self._go.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._barriers = 0
        self._no_barrier = asyncio.Event()
        self._no_barrier.set()
        self._claims: dict[int, asyncio.Future[bool]] = {}
        self._aborts_in_a_row = 0
        self._commit_started = 0.0
        self._previous_event = 0.0
        self._last_event = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._transactor: Transactor
        self.poller: Poller
        #: Told (awaited) before the first chunk of new partitions can arrive, and after some are gone.
        self.on_ownership: Callable[[Sequence[int]], Awaitable[None]] = _no_hook
        #: Where chunks go: the transport's queue.
        self.on_chunks: Callable[[list[Chunk]], None] = _no_chunks

    def start(self, poller: Poller, transactor: Transactor) -> None:
        """Begin to poll and to commit."""
        self.poller = poller
        self._transactor = transactor
        self._spawn(self._pump())
        poller.start()

    def _overlays(self) -> Sequence[Overlay]:
        return [self.current] if self.inflight is None else [self.inflight, self.current]

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

    # --- fold --------------------------------------------------------------------------------------

    async def fold(self, chunk: Chunk) -> None:
        """The agent's body. Slices of at most ``SLICE_S``; waits while an overlay is sealed or full."""
        try:
            await self._fold(chunk)
        finally:
            self.poller.flow.done(chunk)

    async def _fold(self, chunk: Chunk) -> None:
        messages, at, count = chunk.messages, 0, len(chunk.messages)
        live = self.assignment.live
        while at < count:
            if not self._go.is_set():
                await self._go.wait()
                continue
            owner = live(chunk.partition, chunk.epoch, chunk.fetch_epoch)
            if owner is None or self.stopping:
                return
            if at == 0 and chunk.follows != owner.position:
                # A chunk went missing between poll and fold (Faust's queues can be cleared): read it again.
                self._log.error(
                    "chunk_missing", partition=chunk.partition, expected=owner.position, follows=chunk.follows
                )
                self._rewind(owner, owner.position)
                return
            at = self._slice(owner, messages, at, count)
            if at == count:
                owner.position = chunk.next_offset
            await asyncio.sleep(0)

    def _slice(self, owner: Partition, messages: Sequence[Any], at: int, count: int) -> int:
        overlay, view = self.current, self.sessions
        now = time.monotonic()
        if not overlay.records:
            overlay.first_event, self._previous_event = now, self._last_event
        part = overlay.part(owner.number, owner.epoch, owner.position)
        until = time.perf_counter() + SLICE_S
        half = self.config.overlay_bytes_max // 2
        record = None
        while at < count:
            message = messages[at]
            record = record_of(message)
            effects = step(view, record)
            apply(overlay, part, record, effects)
            if effects.quarantined is not None:
                self._quarantine(record.partition, effects.quarantined)
            at += 1
            if at % CLOCK_EVERY == 0 and (time.perf_counter() > until or overlay.bytes >= half):
                break
        if record is not None:
            owner.position = part.next_offset
            owner.ruled_ms = record.append_ms
        self._last_event = now
        if overlay.bytes >= half:
            self._go.clear()
        self._dirty.set()
        return at

    def _quarantine(self, partition: int, error: BaseException) -> None:
        self._log.error(
            "session_quarantined", partition=partition, error=type(error).__name__, exc_info=error
        )
        self._metrics.count("refold_quarantines_total")
        self.quarantined += 1
        self._metrics.gauge("refold_quarantined_sessions", self.quarantined)
        self._quarantines.add(time.monotonic())

    # --- seal and commit ---------------------------------------------------------------------------

    async def _pump(self) -> None:
        """One commit after the other, for ever."""
        while True:
            await self._dirty.wait()
            await self._no_barrier.wait()
            if not self.current:
                self._dirty.clear()
                continue
            delay = self._delay()
            if delay > 0:
                await asyncio.sleep(delay)
                continue
            self._idle.clear()
            try:
                overlay, self.current = self.current, Overlay()
                self._dirty.clear()
                self.inflight = overlay
                self._commit_started = time.monotonic()
                await self._seal(overlay)
                outcome = await self._loop.run_in_executor(
                    self._commit_pool, self._transactor.commit, overlay
                )
                self.inflight = None
                if isinstance(outcome, Aborted):
                    self._abandon(overlay, outcome)
                else:
                    self._confirm(overlay, outcome)
            finally:
                self.inflight = None
                self._idle.set()
            if self.current:
                self._dirty.set()
            if self._aborts_in_a_row:
                backoff = min(ABORT_BACKOFF_MS << (self._aborts_in_a_row - 1), ABORT_BACKOFF_MS_MAX)
                await asyncio.sleep(backoff / 1000)

    def _delay(self) -> float:
        if self.stopping or self._claims or self.current.bytes * 2 >= self.config.overlay_bytes_max:
            return 0.0
        owned = max(1, len(self.assignment))
        return self._cadence.delay_s(
            time.monotonic(),
            last_start=self._commit_started,
            first_event=self.current.first_event,
            previous_event=self._previous_event,
            saturated=self.poller.flow.records > CHUNK_RECORDS,
            workers=-(-self.slots.partitions // owned),
            partitions=len(self.current.parts),
        )

    async def _seal(self, overlay: Overlay) -> None:
        self._go.clear()
        for _, error in await self._sealer.seal(overlay):
            self._quarantine(-1, error)
        self._let_go()

    def _let_go(self) -> None:
        if self.current.bytes * 2 < self.config.overlay_bytes_max:
            self._go.set()

    def _confirm(self, overlay: Overlay, outcome: Committed) -> None:
        """Committed and on disk: what it holds may be served, and evicted."""
        self._aborts_in_a_row = 0
        self.last_commit = time.monotonic()
        cache, tails = self.cache, outcome.tails
        for part in overlay.parts.values():
            owner = self.assignment.get(part.partition)
            if owner is None or owner.epoch != part.epoch:
                if self.config.sabotage.revoke_without_barrier:
                    continue
                raise InvariantViolation(
                    f"partition {part.partition} was given up while its commit was in flight"
                )
            owner.committed = part.next_offset
            for key, touched in part.touched.items():
                entry = touched.entry
                entry.unconfirmed -= 1
                entry.tail = tails[key]
                cache.resize(entry, len(touched.encoded or b""))
            self.book.publish(part)
            self.seq_waits.publish(part)
            if part.claim:
                self._settle_claim(part.partition, True)
        cache.confirmed()
        self._report(overlay, outcome)
        for number, error in outcome.failures.items():
            self._reopen(number, error)

    def _report(self, overlay: Overlay, outcome: Committed) -> None:
        metrics = self._metrics
        accepted = sum(len(part.journal) for part in overlay.parts.values())
        metrics.count("refold_commits_total")
        metrics.observe("refold_commit_seconds", outcome.seconds)
        metrics.observe("refold_store_write_seconds", outcome.store_seconds)
        metrics.observe("refold_commit_events", overlay.records)
        metrics.count("refold_records_folded_total", accepted)
        metrics.count("refold_state_bytes_total", self._sealer.take_bytes())
        if overlay.duplicates:
            metrics.count("refold_duplicates_total", overlay.duplicates)
        if overlay.forwards:
            metrics.count("refold_forwards_total", overlay.forwards)
        if overlay.opaque:
            metrics.count("refold_unknown_types_total", overlay.opaque)
        for code, number in overlay.rejected.items():
            metrics.count("refold_rejected_total", number, code=code)
        if outcome.queue_full:
            metrics.count("refold_queue_full_total", outcome.queue_full)
        if outcome.resent:
            metrics.count("refold_commit_aborts_total", outcome.resent, reason="resent")

    def _abandon(self, overlay: Overlay, outcome: Aborted) -> None:
        """Rule A: nothing of k is visible and k + 1 was folded on top of it: forget both, read again."""
        self._aborts_in_a_row += 1
        if self._aborts_in_a_row > ABORTS_IN_A_ROW_MAX:
            raise UnavailableError(
                f"{self._aborts_in_a_row} commits in a row were aborted, the last one because of"
                f" {outcome.reason}."
                " Nothing was lost. Check the topics and the brokers, then start again"
            )
        self._log.warning("commit_aborted", reason=outcome.reason, events=overlay.records)
        self._metrics.count("refold_commit_aborts_total", reason="aborted")
        both = (overlay, self.current)
        for one in both:
            self.cache.discard(one.keys())
        self.current = Overlay()
        for number in sorted({n for one in both for n in one.parts}):
            owner = self.assignment.get(number)
            if owner is not None and owner.state is State.LIVE:
                self._rewind(owner, owner.committed)
            self._settle_claim(number, False)
        self._let_go()

    def _rewind(self, owner: Partition, offset: int) -> None:
        owner.fetch_epoch += 1
        owner.position = offset
        self.poller.begin(owner.number, owner.epoch, owner.fetch_epoch, offset)

    def _reopen(self, number: int, error: StorageError) -> None:
        """RocksDB could not be written after the commit: the transaction stands, so the partition is
        restored."""
        owner = self.assignment.get(number)
        if owner is None or owner.cancelled.is_set():
            # A barrier waits for this commit: the disk is closed as it is, behind, and catches up later.
            return
        self._log.error("store_write_failed", partition=number, error=str(error))
        self.current.drop(number)
        self._let_go()
        self.cache.discard_partition(number)
        self.book.close(number)
        owner.move(State.WAITING)
        owner.fetch_epoch += 1
        written, owner.written = owner.written, None
        owner.task = self._spawn(self._bring_up(owner, broken=written))

    # --- ownership (rules T and R) -----------------------------------------------------------------

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
        new = [self.assignment.add(number, epoch) for number, epoch in partitions]
        self._log.info("partitions_assigned", partitions=[number for number, _ in partitions])
        told = self._loop.create_task(self._tell_ownership())
        for owner in new:
            owner.task = self._spawn(self._bring_up(owner, after=told))

    async def _tell_ownership(self) -> None:
        await self.on_ownership(sorted(owner.number for owner in self.assignment))

    async def _give_up(self, numbers: Sequence[int], to: State) -> None:
        if self.config.sabotage.revoke_without_barrier:
            return
        owners = [owner for number in numbers if (owner := self.assignment.get(number)) is not None]
        for owner in owners:
            owner.cancelled.set()
            owner.move(to)
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
                self.book.close(owner.number)
                self.assignment.forget(owner)
                if owner.written is not None:
                    await self._loop.run_in_executor(self._disk_pool, owner.written.store.close)
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
        self, owner: Partition, *, after: asyncio.Task[None] | None = None, broken: Any = None
    ) -> None:
        """ASSIGNED → WAITING → RESTORING → LIVE."""
        if after is not None:
            await after
        if broken is not None:
            await self._loop.run_in_executor(self._disk_pool, lambda: broken.store.close(flush=False))
        if owner.cancelled.is_set():
            return
        if owner.state is State.ASSIGNED:
            owner.move(State.WAITING)
        owner.restoring_since = time.monotonic()
        try:
            await self._jitter(owner)
            restored = await self._restore(owner)
        except Cancelled:
            return
        owner.written = restored.written
        owner.position = owner.committed = restored.offset
        self._metrics.count("refold_restores_total", outcome="done")
        self._metrics.count("refold_restore_records_total", restored.records)
        self._metrics.observe("refold_takeover_wait_seconds", restored.waited_s)
        if restored.set_aside is not None:
            self._metrics.count("refold_store_dead_opens_total", reason=restored.set_aside)
        if restored.claim:
            await self._claim_until_done(owner)
        if owner.cancelled.is_set() or owner.written is not restored.written:
            # Taken away meanwhile, or the claim's disk write failed and another task restores it again.
            return
        self.book.open(owner.number, restored.offset)
        owner.move(State.LIVE)
        seconds = time.monotonic() - owner.restoring_since
        self._metrics.observe("refold_restore_seconds", seconds)
        self._log.info(
            "partition_live",
            partition=owner.number,
            offset=restored.offset,
            records=restored.records,
            seconds=round(seconds, 3),
            waited_seconds=round(restored.waited_s, 3),
        )
        self.poller.begin(owner.number, owner.epoch, owner.fetch_epoch, restored.offset)

    async def _jitter(self, owner: Partition) -> None:
        """Spread restores, scaled by how much is missing here: a warm disk does not wait."""
        if self.config.restore_jitter_ms_max == 0:
            return
        missing = await self._loop.run_in_executor(self._restore_pool, self._restorer.missing, owner.number)
        end = time.monotonic() + self._random.uniform(0, self.config.restore_jitter_ms_max * missing) / 1000
        while time.monotonic() < end:
            if owner.cancelled.is_set():
                raise Cancelled
            await asyncio.sleep(min(JITTER_SLICE_S, max(0.0, end - time.monotonic())))

    async def _restore(self, owner: Partition) -> Restored:
        def progress(fraction: float) -> None:
            owner.progress = fraction

        until = time.monotonic() + self.config.takeover_stall_ms_max / 1000
        while True:
            async with self._admission:
                if owner.cancelled.is_set():
                    raise Cancelled
                owner.move(State.RESTORING)
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
                    owner.move(State.WAITING)
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
        self.current.part(owner.number, owner.epoch, owner.position).claim = True
        self._dirty.set()
        done: bool = await future
        return done

    def _settle_claim(self, number: int, done: bool) -> None:
        future = self._claims.pop(number, None)
        if future is not None and not future.done():
            future.set_result(done)

    async def flush_stores(self) -> None:
        """Bound, in time, what a killed process has to read again; the memtable bounds it in bytes."""
        for owner in self.assignment:
            if owner.state is State.LIVE and owner.written is not None:
                await self._loop.run_in_executor(self._disk_pool, owner.written.store.flush)

    # --- stop --------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Commit what is folded, leave the group, close the disks. Nothing is lost if it is cut short."""
        self.stopping = True
        while self.current or not self._idle.is_set():
            self._dirty.set()
            await asyncio.sleep(0.005)
        await self._loop.run_in_executor(None, self.poller.stop, BARRIER_SECONDS_MAX)
        for owner in self.assignment:
            owner.cancelled.set()
            if owner.task is not None:
                await owner.task
            if owner.written is not None:
                await self._loop.run_in_executor(self._disk_pool, owner.written.store.close)
        for task in list(self._tasks):
            task.cancel()
        for pool in (self._commit_pool, self._restore_pool, self._disk_pool):
            pool.shutdown(wait=False)


async def _no_hook(_numbers: Sequence[int]) -> None:
    return None


def _no_chunks(_chunks: list[Chunk]) -> None:
    return None
