"""What an owner answers: :class:`refold.api.view.OwnerView` over the engine. Only committed state leaves
here.

Snapshots and history come from RocksDB, which is written only after a commit; rulings from the book, which is
published after it. So there is nothing here that could show an unconfirmed object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from refold.api.view import (
    GenerationAnswer,
    HistoryAnswer,
    PartitionRow,
    PartitionStatus,
    RulingLine,
    StandbyAnswer,
    WorkerHealth,
)
from refold.engine import history, rows
from refold.engine.engine import Engine
from refold.engine.lifecycle import State
from refold.engine.standby.service import Standbys
from refold.engine.store import Store
from refold.engine.usage import read_usage
from refold.telemetry.health import Vitals, judge
from refold.wire.batches import RECORD, generation_key
from refold.wire.codec import decode
from refold.wire.snapshot import decode_snapshot

RETRY_AFTER_MIN_S: Final = 0.05
#: Estimate while nothing is known of a restore yet.
RETRY_AFTER_UNKNOWN_S: Final = 0.5
RETRY_AFTER_MAX_S: Final = 60.0

_STATUS: Final[dict[State, PartitionStatus]] = {
    State.ASSIGNED: "waiting",
    State.WAITING: "waiting",
    State.RESTORING: "restoring",
    State.LIVE: "live",
    State.REVOKED: "absent",
    State.LOST: "absent",
}


class EngineView:
    def __init__(self, engine: Engine | None = None) -> None:
        #: Set when the engine is made; the HTTP port opens before, because its URL is part of the membership.
        self.engine = engine
        #: Set with the engine where copies of others' partitions are kept.
        self.standbys: Standbys | None = None
        self.staleness_s = 0.0
        #: Told to stop: not ready from that moment on, whatever the engine is doing.
        self.stopping = False
        self.beat = time.monotonic()

    def _engine(self) -> Engine:
        engine = self.engine
        if engine is None:
            raise RuntimeError("asked before the engine was made: status() says absent until then")
        return engine

    def _store(self, key: bytes) -> Store | None:
        engine = self._engine()
        owner = engine.assignment.get(engine.slots.partition(key))
        if owner is None or not owner.fed or owner.written is None or not owner.knows(key):
            return None
        return owner.written.store

    def partition_of(self, key: bytes) -> int:
        return -1 if self.engine is None else self.engine.slots.partition(key)

    def status(self, partition: int) -> PartitionStatus:
        if self.engine is None:
            return "absent"
        owner = self.engine.assignment.get(partition)
        if owner is None:
            return "absent"
        return "live" if owner.fed else _STATUS[owner.state]

    def session_status(self, key: bytes) -> PartitionStatus:
        partition = self.partition_of(key)
        status = self.status(partition)
        if status == "live":
            owner = self._engine().assignment.get(partition)
            if owner is not None and not owner.knows(key):
                return "restoring"
        return status

    def retry_after_s(self, partition: int) -> float:
        owner = None if self.engine is None else self.engine.assignment.get(partition)
        if owner is None or not owner.restoring_since or owner.progress <= 0:
            return RETRY_AFTER_UNKNOWN_S
        spent = time.monotonic() - owner.restoring_since
        left = spent / owner.progress * (1 - owner.progress)
        return min(max(left, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)

    def frontier(self, partition: int) -> int:
        return 0 if self.engine is None else self.engine.book.frontier(partition)

    def snapshot(self, key: bytes) -> bytes | None:
        store = self._store(key)
        row = None if store is None else store.row(key)
        return None if row is None else rows.snapshot_of(row)

    def seq_of(self, key: bytes) -> int:
        store = self._store(key)
        row = None if store is None else store.row(key)
        return 0 if row is None else rows.seq_of(row)

    def standby(self, key: bytes) -> StandbyAnswer | None:
        return None if self.standbys is None else self.standbys.answer(self.partition_of(key), key)

    def history(self, key: bytes, after: int, limit: int) -> HistoryAnswer:
        engine = self._engine()
        topic, partition = engine.config.topics.journal, engine.slots.partition(key)
        store = self._store(key)
        row = None if store is None else store.row(key)
        if store is None or row is None:
            return HistoryAnswer(topic, partition, ())
        tail = history.decode_tail(rows.tail_of(row))
        first = max(after, 0) + 1
        pairs: list[tuple[int, int]] = []

        def take(begin: int, offsets: Sequence[int]) -> None:
            pairs.extend((begin + at, offset) for at, offset in enumerate(offsets) if begin + at >= first)

        block = (first - 1) // history.BLOCK_EVENTS
        while block < tail.blocks and len(pairs) < limit:
            stored = self._block(store, key, block)
            if stored is None:
                # A block the index does not have (a topic from before the index, or one that is still read):
                # say where to scan from.
                return HistoryAnswer(topic, partition, tuple(pairs), pairs[-1][1] + 1 if pairs else 0)
            take(block * history.BLOCK_EVENTS + 1, history.decode_block(stored))
            block += 1
        if block >= tail.blocks:
            take(tail.first_seq, tail.offsets)
        wanted = pairs[:limit]
        complete = tail.last_seq >= rows.seq_of(row)
        ended_here = not wanted or wanted[-1][0] >= tail.last_seq
        scan_from = tail.bound if not complete and ended_here and len(wanted) < limit else None
        return HistoryAnswer(topic, partition, tuple(wanted), scan_from)

    def _block(self, store: Store, key: bytes, block: int) -> bytes | None:
        owner = self._engine().assignment.get(self.partition_of(key))
        warming = None if owner is None else owner.warming
        if warming is not None and not warming.done and not store.known_block(history.block_key(key, block)):
            # What a copy has may be of a session that was deleted and made anew since.
            return None
        return store.block(key, block)

    def generation(self, key: bytes, generation_id: str) -> GenerationAnswer | None:
        engine, store = self._engine(), self._store(key)
        if store is None:
            return None
        packed, record = store.with_generation(key, generation_key(key, generation_id))
        rows_of = () if packed is None else decode_snapshot(rows.snapshot_of(packed))["generations"]
        row = next((row for row in rows_of if row["generation_id"] == generation_id), None)
        if record is None and row is None:
            return None
        progress = None if record is None else decode(record, expect=RECORD).record
        return GenerationAnswer(engine.config.topics.batches, engine.slots.partition(key), row, progress)

    async def wait_generation(self, key: bytes, generation_id: str, timeout_s: float) -> bool:
        engine, full_key = self._engine(), generation_key(key, generation_id)
        end = time.monotonic() + timeout_s
        while True:
            store = self._store(key)
            if store is not None and store.side(full_key) is not None:
                return True
            left = end - time.monotonic()
            if left <= 0 or not await engine.generation_waits.changed(full_key, left):
                return False

    async def usage(self, tenant: str, subject: str, model: str) -> tuple[dict[int, list[bytes]], list[int]]:
        owners = [] if self.engine is None else list(self.engine.assignment)
        fed = [(owner.number, owner.written.store) for owner in owners if owner.fed and owner.written]
        # On the thread where stores are closed: none is meanwhile, and the fold does not wait for P rows.
        rows_of = (
            await self._engine().on_disk(partial(read_usage, tenant, subject, model, fed)) if fed else {}
        )
        kept = {number: found for number, found in rows_of.items() if self.status(number) == "live"}
        return kept, [owner.number for owner in owners if owner.number not in kept]

    async def wait_seq(self, key: bytes, min_seq: int, timeout_s: float) -> bool:
        engine = self._engine()
        end = time.monotonic() + timeout_s
        while self.seq_of(key) < min_seq:
            left = end - time.monotonic()
            if left <= 0 or not await engine.seq_waits.changed(key, left):
                return self.seq_of(key) >= min_seq
        return True

    def ruling(self, partition: int, offset: int) -> RulingLine | None:
        return None if self.engine is None else self.engine.book.get(partition, offset)

    async def wait_ruling(self, partition: int, offset: int, timeout_s: float) -> RulingLine | None:
        return await self._engine().book.wait(partition, offset, timeout_s)

    def subscribe_rulings(self, producer_id: str, sink: Callable[[bytes], None]) -> Callable[[], None]:
        return self._engine().book.subscribe(producer_id, sink)

    def partitions(self) -> list[PartitionRow]:
        owners = [] if self.engine is None else sorted(self.engine.assignment, key=lambda one: one.number)
        now = time.monotonic()
        copies = [] if self.standbys is None else self.standbys.partitions()
        return [
            PartitionRow(
                owner.number,
                owner.state.value,
                round(now - owner.moved_at, 3),
                round(owner.progress, 4),
                owner.position,
                owner.committed,
                owner.lag,
                served=owner.fed,
            )
            for owner in owners
        ] + copies

    def health(self) -> WorkerHealth:
        engine = self.engine
        counts = {} if engine is None else engine.assignment.counts()
        verdict = judge(
            Vitals(
                joined=engine is not None and engine.joined,
                stopping=self.stopping or (engine is not None and engine.stopping),
                loop_silence_s=time.monotonic() - self.beat,
                staleness_s=self.staleness_s,
                partitions={state: count for state, count in counts.items() if count},
            )
        )
        detail: dict[str, str | int | float | bool | None] = {
            f"partitions_{s}": n for s, n in counts.items() if n
        }
        if verdict.reasons:
            detail["reasons"] = "; ".join(verdict.reasons)
        if engine is not None:
            detail["instance"] = engine.config.instance
        return WorkerHealth(verdict.startup, verdict.ready, verdict.live, detail)
