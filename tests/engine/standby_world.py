"""Changelogs in memory, and the product's own tail that copies them into real RocksDBs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from engine.bulk_world import Record
from engine.cluster import wait_for
from refold.core.session import initial
from refold.engine import clients, rows
from refold.engine.config import EngineConfig
from refold.engine.points import Points
from refold.engine.restore import TOMBSTONE_MARGIN_MS, Restorer, TopicFacts
from refold.engine.standby.copy import Copy, Look
from refold.engine.standby.tail import Tail
from refold.engine.store import Memory, Store
from refold.engine.takeover import Cluster, Marks
from refold.wire.snapshot import encode_snapshot

NAMES = ("state", "history", "generations")
#: How long tombstones stay, beyond the margin of rule Z.
LIFETIME_MS = 1_000


class Placed(Record):
    def __init__(self, partition: int, *record: Any, error: Any = None) -> None:
        super().__init__(*record, error=error)
        self._partition = partition

    def partition(self) -> int:
        return self._partition


def told(place: tuple[str, int], offset: int, code: int) -> Placed:
    """Not a record: what a consumer says of a partition."""
    return Placed(place[1], place[0], offset, None, None, error=KafkaError(code))


def snapshot(name: str, seq: int) -> bytes:
    session = initial("t", name)
    session.seq = seq
    return encode_snapshot(session)


class Log:
    """The three changelogs of any partition. ``compact`` takes records out as Kafka would, tombstones too."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.starts: dict[tuple[str, int], int] = {}

    def put(self, name: str, partition: int, key: bytes, value: bytes | None) -> None:
        place = (f"t.{name}", partition)
        offset = self.ends.get(place, 0)
        self.records.setdefault(place, []).append(Placed(partition, place[0], offset, key, value))
        self.ends[place] = offset + 1

    def state(self, partition: int, name: str, seq: int) -> None:
        """``seq`` 0 deletes the session."""
        self.put("state", partition, f"t/{name}".encode(), snapshot(name, seq) if seq else None)

    def marker(self, name: str, partition: int) -> None:
        place = (f"t.{name}", partition)
        self.ends[place] = self.ends.get(place, 0) + 1

    def compact(self) -> None:
        """Only the newest of each key stays, and no tombstone at all."""
        for place, records in self.records.items():
            newest = {record.key(): record for record in records}
            self.records[place] = [record for record in newest.values() if record.value() is not None]

    def marks(self, partition: int) -> Marks:
        bounds = []
        for name in NAMES:
            place = (f"t.{name}", partition)
            bounds += [self.starts.get(place, 0), self.ends.get(place, 0)]
        return Marks(*bounds, 0, 0, 0, 0)

    def stable(self, partition: int) -> tuple[int, int, int]:
        state, history, generations = (self.ends.get((f"t.{name}", partition), 0) for name in NAMES)
        return state, history, generations


class Consumer:
    """An assigned consumer of a :class:`Log`, as librdkafka behaves: an end-of-partition once per end."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.at: dict[tuple[str, int], int] = {}
        self._said: dict[tuple[str, int], int] = {}
        #: Handed out before anything else.
        self.injected: deque[Any] = deque()
        #: While set, nothing arrives: the broker is away.
        self.silent = threading.Event()
        self.polls = 0

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            assert (tp.topic, tp.partition) not in self.at
            self.at[tp.topic, tp.partition] = tp.offset

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            del self.at[tp.topic, tp.partition]
            self._said.pop((tp.topic, tp.partition), None)

    def consume(self, count: int, _timeout: float) -> list[Any]:
        found: list[Any] = []
        while len(found) < count and (message := self.poll(0)) is not None:
            found.append(message)
        return found

    def poll(self, timeout: float) -> Any:
        self.polls += timeout > 0
        if self.injected:
            return self.injected.popleft()
        if self.silent.is_set():
            return self._idle(timeout)
        for place, at in self.at.items():
            if at < self._log.starts.get(place, 0):
                # Said once: librdkafka stops fetching it.
                self.at[place] = self._log.ends.get(place, 0)
                self._said[place] = self.at[place]
                return told(place, at, KafkaError._AUTO_OFFSET_RESET)
            for record in self._log.records.get(place, ()):
                if record.offset() >= at:
                    self.at[place] = record.offset() + 1
                    return record
            end = self._log.ends.get(place, 0)
            if self._said.get(place) != end:
                self.at[place] = self._said[place] = end
                return told(place, end, KafkaError._PARTITION_EOF)
        return self._idle(timeout)

    @staticmethod
    def _idle(timeout: float) -> None:
        threading.Event().wait(min(timeout, 0.002))

    def close(self) -> None:
        self.at.clear()


class Said:
    """A log that remembers its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, _level: str) -> Callable[..., None]:
        return lambda event, **fields: self.events.append((event, fields))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


class World:
    """One worker's copies. ``clock`` is its wall clock in milliseconds."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 2_000_000_000_000
        self.log = Log()
        self.said = Said()
        self.lost: list[tuple[int, str]] = []
        self.consumer = Consumer(self.log)
        monkeypatch.setattr(clients, "standby_reader", lambda _config: self.consumer)
        self.config = EngineConfig(kafka={}, prefix="t", instance="a", data_dir=directory, standby_replicas=1)
        self.memory = Memory()
        self.restorer = Restorer(
            self.config,
            Cluster(self.config, None, None, log=self.said),  # type: ignore[arg-type]
            TopicFacts("ts", "th", "tg", TOMBSTONE_MARGIN_MS + LIFETIME_MS),
            self.memory,
            Points(),
            log=self.said,
            now_ms=lambda: self.clock,
        )
        self.tail = self._tail()

    def _tail(self) -> Tail:
        tail = Tail(
            self.config,
            self.restorer,
            Points(),
            lost=lambda number, why, _error: self.lost.append((number, why)),
            log=self.said,
        )
        tail.start()
        return tail

    def again(self) -> None:
        """The worker stops and starts."""
        self.end()
        self.consumer = Consumer(self.log)
        self.tail = self._tail()

    def end(self) -> None:
        self.tail.stop()
        self.tail.join(20)

    def open(self, partition: int) -> Copy:
        self.tail.open(partition, self.log.marks(partition), self.clock)
        wait_for(f"a copy of {partition}", lambda: partition in self.tail.copies)
        return self.tail.copies[partition]

    def silence(self) -> None:
        """Nothing arrives from here on, and the tail has nothing in its hands."""
        self.consumer.silent.set()
        polls = self.consumer.polls
        wait_for("the tail to be idle", lambda: self.consumer.polls > polls + 1)

    def whole(self, copy: Copy) -> None:
        """Until everything that is in the log now is in the copy, and the copy knows."""
        ends = self.log.stable(copy.partition)
        wait_for("a whole copy", lambda: all(a >= b for a, b in zip(copy.written, ends, strict=True)))
        copy.looked(Look(0.0, self.clock, ends))

    def close(self, partition: int) -> None:
        self.tail.close(partition).result(20)

    def rows(self, partition: int) -> dict[bytes, bytes | None]:
        """The sessions in the closed directory: snapshots by key."""
        store = Store(self.restorer.path(partition), self.memory)
        try:
            keys = store.keys()
            return {key: rows.snapshot_of(store.row(key) or b"") for key in keys}
        finally:
            store.close(flush=False)

    def frontier(self, partition: int) -> rows.Frontier:
        store = Store(self.restorer.path(partition), self.memory)
        try:
            found = store.frontier()
        finally:
            store.close(flush=False)
        assert found is not None
        return found
