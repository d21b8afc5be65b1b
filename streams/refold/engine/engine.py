"""The engine: fold, seal, commit. One per process, on one event loop; what a rebalance does to it is in
:mod:`refold.engine.ownership`.

Threads and what they own::

    event loop      fold, overlays, cache, rulings, ownership table
    polling thread  the group consumer                                  (poll.py)
    second polling thread  the consumer of batches                      (batchsource.py)
    commit thread   the transactional producer, RocksDB writes          (commit.py)
    restore threads their own readers, a DB that is not live yet        (restore.py)

Two overlays: k is committed while k + 1 is filled; at most one commit is in flight. A *barrier* (revoke,
lost) keeps the next commit from starting, waits for k, and drops k + 1 of its partitions (rule R).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from refold.core.slots import SlotMap
from refold.engine.admission import core_partitions
from refold.engine.assignment import Partition
from refold.engine.batchsource import BatchSource
from refold.engine.cadence import Cadence
from refold.engine.chunks import Chunk, record_of
from refold.engine.commit import Aborted, Committed, Transactor
from refold.engine.config import EngineConfig
from refold.engine.lifecycle import State
from refold.engine.metrics import Metrics
from refold.engine.overlay import Overlay, apply
from refold.engine.ownership import ABORT_BACKOFF_MS, BARRIER_SECONDS_MAX
from refold.engine.plain import fold_plain
from refold.engine.points import Points
from refold.engine.poll import CHUNK_RECORDS, Flow, Poller
from refold.engine.quarantine import QuarantineLimit
from refold.engine.restore import Restorer
from refold.engine.seal import SLICE_S, Sealer
from refold.engine.sessions import Sessions
from refold.engine.side import kind_of
from refold.engine.step import BatchesBehind, Limits, step
from refold.engine.store import UnreadableStore
from refold.engine.ticks import TimerTicks
from refold.engine.usagesweep import UsageSweep
from refold.engine.waits import Waits
from refold.engine.warming.fold import WarmFold
from refold.errors import InvariantViolation, UnavailableError

#: How often a fold looks at the clock: 16 records are a quarter of a millisecond.
CLOCK_EVERY: Final = 16

#: The wait after an abort is doubled for each further one in a row, up to this.
ABORT_BACKOFF_MS_MAX: Final = 1_000

#: More than a minute of nothing but aborts is no rebalance: a topic is gone, or a limit does not fit.
ABORTS_IN_A_ROW_MAX: Final = 70


class Engine(WarmFold, TimerTicks, UsageSweep):
    """Fold and commit of what :class:`refold.engine.ownership.Ownership` has brought up. Everything without
    a comment runs on the event loop."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        slots: SlotMap,
        limits: Limits,
        restorer: Restorer,
        batches_end: Callable[[int], int],
        points: Points,
        metrics: Metrics,
        log: Any,
    ) -> None:
        super().__init__(config, restorer=restorer, points=points, metrics=metrics, log=log)
        self.slots = slots
        self.batches_end = batches_end
        self.seq_waits = Waits()
        self.generation_waits = Waits()
        self.inflight: Overlay | None = None
        self.sessions = Sessions(
            config.topics,
            limits,
            slots,
            self.assignment,
            self.cache,
            self._overlays,
            config.sabotage,
            self.sides.generations.progress,
            self.sides.usages,
        )
        self._core = core_partitions(config.restore_first or "", slots)
        self.stopping = False
        self.held_flow = Flow()
        self._drain_phase = ""
        self.last_commit = 0.0
        self.quarantined = 0
        self._sealer = Sealer(self.sessions, self.sides.timers)
        self._cadence = Cadence(config.commit_interval_min_ms)
        self._quarantines = QuarantineLimit()
        self._commit_pool = ThreadPoolExecutor(1, "refold-commit")
        self._go = asyncio.Event()
        self._go.set()
        self._aborts_in_a_row = 0
        self._commit_started = 0.0
        self._transaction_ended = 0.0
        self._previous_event = 0.0
        self._last_event = 0.0
        self._transactor: Transactor

    def start(self, poller: Poller, batches: BatchSource, transactor: Transactor) -> None:
        """Begin to poll and to commit."""
        self.poller = poller
        self.batches = batches
        self._transactor = transactor
        self._spawn(self._pump())
        self._spawn(self._tick())
        self._spawn(self._sweep_usage())
        batches.start()
        poller.start()

    @property
    def committing_since(self) -> float:
        """When the commit's call of librdkafka that is under way began, monotonic; 0: there is none."""
        return self._transactor.calling_since

    def _overlays(self) -> Sequence[Overlay]:
        return [self.current] if self.inflight is None else [self.inflight, self.current]

    # --- fold --------------------------------------------------------------------------------------

    async def fold(self, chunk: Chunk) -> None:
        """The agent's body. Slices of at most ``SLICE_S``; waits while an overlay is sealed or full."""
        owner = self.assignment.get(chunk.partition)
        if owner is not None and owner.held is not None and owner.epoch == chunk.epoch:
            # Behind a record that waits for batches: its task folds this too.
            self._keep(owner, chunk)
            return
        count = len(chunk)
        try:
            at = await self._fold_from(chunk, 0)
        finally:
            # Folded; or held, which is counted elsewhere, so that one partition's wait is not everybody's.
            self.poller.flow.done(chunk)
        owner = self.assignment.get(chunk.partition)
        if at < count and owner is not None:
            self._hold(owner, chunk, at)

    async def _fold_from(self, chunk: Chunk, at: int) -> int:
        messages, count = chunk.messages, len(chunk.messages)
        live = self.assignment.live
        while at < count:
            if not self._go.is_set():
                await self._go.wait()
                continue
            owner = live(chunk.partition, chunk.epoch, chunk.fetch_epoch)
            if owner is None or self.stopping or owner.full == chunk.fetch_epoch:
                return count
            if at == 0 and chunk.follows != owner.position:
                # A chunk went missing between poll and fold (Faust's queues can be cleared): read it again.
                self._log.error(
                    "chunk_missing", partition=chunk.partition, expected=owner.position, follows=chunk.follows
                )
                self._rewind(owner, owner.position, owner.batches_position)
                return count
            if owner.parking is None:
                at, behind = self._slice(owner, messages, at, count)
                if behind:
                    return at
            elif (at := self._warm_slice(owner, messages, at, count)) < 0:
                # No more can be parked: read again when there is room.
                return count
            if at == count:
                owner.position = chunk.next_offset
            await asyncio.sleep(0)
        return count

    def _arrives(self, now: float) -> None:
        overlay = self.current
        if not overlay.records and not overlay.batches:
            overlay.first_event, self._previous_event = now, self._last_event
        self._last_event = now

    def _slice(self, owner: Partition, messages: Sequence[Any], at: int, count: int) -> tuple[int, bool]:
        """The place reached, and whether the record there has to wait for batches (rule G10)."""
        overlay, view = self.current, self.sessions
        self._arrives(time.monotonic())
        part = self.part_of(overlay, owner)
        until = time.perf_counter() + SLICE_S
        behind = False
        try:
            while at < count:
                stop = min(at + CLOCK_EVERY, count)
                while (at := fold_plain(view, overlay, part, messages, at, stop)) < stop:
                    record = record_of(messages[at])
                    effects = step(view, record)
                    apply(overlay, part, record, effects)
                    if effects.quarantined is not None:
                        self._quarantine(record.partition, effects.quarantined)
                    at += 1
                if time.perf_counter() > until or self._is_full(overlay):
                    break
        except BatchesBehind:
            behind = True
        except UnreadableStore:
            # The partition is being restored already: what was folded of it is dropped.
            return count, False
        owner.position = part.next_offset
        if at:
            owner.ruled_ms = messages[at - 1].timestamp()[1]
        self._fills(overlay)
        self._dirty.set()
        return at, behind

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
                await self._rest(delay)
                continue
            self._idle.clear()
            try:
                overlay, self.current = self.current, Overlay()
                self._dirty.clear()
                self._bound(overlay)
                self.inflight = overlay
                self._commit_started = time.monotonic()
                try:
                    await self._seal(overlay)
                except UnreadableStore:
                    # Its partition is being restored already; what is sealed half is forgotten like an abort.
                    self.inflight = None
                    self._abandon(overlay, Aborted("a store could not be read"))
                    continue
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

    async def _rest(self, seconds: float) -> None:
        """No longer than this: an overlay that is full is committed at once."""
        resting = self._resting = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._end_rest)
        try:
            await resting
        finally:
            timer.cancel()

    def _delay(self) -> float:
        if self.stopping or self._claims or self._is_full(self.current):
            return 0.0
        owned = max(1, len(self.assignment))
        return self._cadence.delay_s(
            time.monotonic(),
            last_start=self._commit_started,
            last_end=self._transaction_ended,
            first_event=self.current.first_event,
            previous_event=self._previous_event,
            saturated=self.poller.flow.records > CHUNK_RECORDS,
            workers=-(-self.slots.partitions // owned),
            partitions=len(self.current.parts),
        )

    async def _seal(self, overlay: Overlay) -> None:
        self._go.clear()
        self._sealing = True
        try:
            for _, error in await self._sealer.seal(overlay):
                self._quarantine(-1, error)
        finally:
            self._sealing = False
        self._let_go()

    def _confirm(self, overlay: Overlay, outcome: Committed) -> None:
        """Committed and on disk: what it holds may be served, and evicted."""
        self._aborts_in_a_row = 0
        self.last_commit = time.monotonic()
        self._transaction_ended = outcome.ended
        cache, tails = self.cache, outcome.tails
        for part in overlay.parts.values():
            owner = self.assignment.get(part.partition)
            if owner is None or owner.epoch != part.epoch:
                if self.config.sabotage.revoke_without_barrier:
                    continue
                raise InvariantViolation(
                    f"partition {part.partition} was given up while its commit was in flight"
                )
            owner.committed, owner.beyond = part.offset, part.beyond
            owner.batches_committed = part.batches_next
            for key, touched in part.touched.items():
                entry = touched.entry
                entry.unconfirmed -= 1
                entry.tail = tails[key]
                cache.resize(entry, len(touched.encoded or b""))
            self.book.publish(part)
            self.seq_waits.publish(part.touched)
            if part.side:
                for side in part.side.values():
                    side.confirm()
                self.generation_waits.publish(part.side)
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
        if overlay.batches:
            self._report_batches(overlay)
        for kind, number in self.sides.usages.take_counts().items():
            metrics.count("refold_usage_events_total", number, kind=kind)
        for kind, number in Counter(kind_of(key) for key, _ in overlay.side_rows()).items():
            metrics.count("refold_side_records_total", number, kind=kind)
        if outcome.queue_full:
            metrics.count("refold_queue_full_total", outcome.queue_full)
        if outcome.resent:
            metrics.count("refold_commit_aborts_total", outcome.resent, reason="resent")

    def _report_batches(self, overlay: Overlay) -> None:
        metrics = self._metrics
        metrics.count("refold_batches_total", overlay.batches)
        for why, number in overlay.ignored.items():
            metrics.count("refold_batches_ignored_total", number, reason=why)
        for code, number in overlay.refused.items():
            metrics.count("refold_batches_refused_total", number, code=code)

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
            for _, side in one.side_rows():
                side.discard()
        self.current = Overlay()
        for number in sorted({n for one in both for n in one.parts}):
            owner = self.assignment.get(number)
            if owner is not None and owner.fed:
                owner.begin(owner.committed, owner.beyond)
                self._rewind(owner, owner.committed, owner.batches_committed)
            self._settle_claim(number, False)
        self._let_go()

    # --- stop --------------------------------------------------------------------------------------

    async def drain(
        self, *, leave: bool = False, before_leaving: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Commit what is folded, leave the group, close the disks. Nothing is lost if it is cut short.

        Restores end; nothing more is folded. ``leave``: see :class:`refold.engine.drain.Order`.
        ``before_leaving``: done when everything is committed; the partitions are still ours, and nobody reads
        them meanwhile.
        """
        self.stopping = True
        self._drain_phase = "committing"
        for owner in self.assignment:
            owner.wake()
            if owner.state is not State.LIVE:
                self._call_off(owner)
        while self.current or not self._idle.is_set():
            self._dirty.set()
            await asyncio.sleep(0.005)
        if before_leaving is not None:
            self._drain_phase = "checkpointing"
            for owner in self.assignment:
                # What is fetched now is for the next owner.
                self.poller.park(owner.number, owner.epoch, owner.fetch_epoch)
                self.batches.end(owner.number, owner.epoch)
            await before_leaving()
        self._drain_phase = "leaving"
        await self._loop.run_in_executor(None, self.poller.stop, BARRIER_SECONDS_MAX, leave)
        await self._loop.run_in_executor(None, self.batches.stop, BARRIER_SECONDS_MAX)
        self._drain_phase = "closing"
        for owner in self.assignment:
            self._call_off(owner)
            if owner.task is not None:
                await owner.task
            # No longer answered for: its store is about to close.
            self._move(owner, State.REVOKED)
            if owner.written is not None:
                await self._loop.run_in_executor(self._disk_pool, owner.written.store.close)
        for task in list(self._tasks):
            task.cancel()
        for pool in (self._commit_pool, self._restore_pool, self._disk_pool):
            pool.shutdown(wait=False)

    def drain_progress(self) -> dict[str, str | int]:
        """For the log: what a drain is doing, folded records that are not committed, stores not closed."""
        waiting = 0 if self.inflight is None else self.inflight.records
        return {
            "phase": self._drain_phase,
            "records": self.current.records + waiting,
            "stores": sum(owner.state is State.LIVE for owner in self.assignment),
        }
