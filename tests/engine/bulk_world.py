"""A changelog in memory, read by the product's own restore code into a real RocksDB."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from refold.core.session import initial
from refold.engine import bulk, changelogs, history, rows
from refold.engine.changelogs import Reading
from refold.engine.config import EngineConfig
from refold.engine.points import Points
from refold.engine.store import Memory, Store
from refold.engine.takeover import Marks, Stall
from refold.wire.snapshot import encode_snapshot

PARTITION = 3
NAMES = ("state", "history", "generations")
KINDS = {"t.state": rows.STATE, "t.history": rows.BLOCK, "t.generations": rows.SIDE}
KEYS = 60

#: Small enough that a changelog of some hundred records is several runs, some of them files.
SMALL_RUN = {"RUN_RECORDS_MAX": 25, "FILE_BYTES_MIN": 12_000}


class Record:
    """The part of ``confluent_kafka.Message`` a restore uses."""

    def __init__(
        self, topic: str, offset: int, key: bytes | None, value: bytes | None, *, error: Any = None
    ) -> None:
        self._topic, self._offset, self._key, self._value, self._error = topic, offset, key, value, error

    def __len__(self) -> int:
        return len(self._value or b"")

    def topic(self) -> str:
        return self._topic

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> Any:
        return self._error

    def headers(self) -> list[tuple[str, bytes]] | None:
        return [("other", b"x"), (history.HEADER, b"tail %d" % self._offset)] if self._value else None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000_000 + self._offset


def changelog(seed: int, records: int) -> dict[str, list[Record]]:
    """Three topics: writes, deletions, records without a key, and holes where markers were."""
    chance = random.Random(seed)
    logs: dict[str, list[Record]] = {f"t.{name}": [] for name in NAMES}
    offsets = dict.fromkeys(logs, 0)
    for number in range(records):
        topic = f"t.{chance.choice(NAMES)}"
        offsets[topic] += chance.choice((1, 1, 1, 2, 5))
        key = b"a/%03d" % chance.randrange(KEYS) if chance.random() > 0.02 else None
        value = None if chance.random() < 0.2 else b"%d " % number * 40
        if value is not None and topic == "t.state":
            session = initial("a", "s")
            session.seq = number + 1
            value = encode_snapshot(session)
        logs[topic].append(Record(topic, offsets[topic], key, value))
    return logs


def folded(logs: dict[str, list[Record]]) -> dict[bytes, bytes]:
    """The oracle: every record in its order, by itself."""
    held: dict[bytes, bytes] = {}
    for topic, records in logs.items():
        for record in records:
            key, value = record.key(), record.value()
            if key is None:
                continue
            if value is None:
                held.pop(KINDS[topic] + key, None)
            elif topic == "t.state":
                row = rows.pack(rows.snapshot_seq(value), b"tail %d" % record.offset(), value)
                held[KINDS[topic] + key] = row
            else:
                held[KINDS[topic] + key] = value
    return held


def marks_of(logs: dict[str, list[Record]]) -> Marks:
    """One marker after the last record of each."""
    end = {topic: records[-1].offset() + 2 if records else 0 for topic, records in logs.items()}
    return Marks(0, end["t.state"], 0, end["t.history"], 0, end["t.generations"], 0, 0, 0, 0)


class Reader:
    """Interleaves the topics; says where each ends."""

    def __init__(self, logs: dict[str, list[Record]], chance: random.Random) -> None:
        self._logs, self._chance = logs, chance
        self._left: list[list[Record]] = []

    def assign(self, wanted: Sequence[TopicPartition]) -> None:
        end = KafkaError(KafkaError._PARTITION_EOF)
        for tp in wanted:
            records = self._logs[tp.topic]
            left = [record for record in records if record.offset() >= tp.offset]
            # Behind the marker.
            left.append(Record(tp.topic, records[-1].offset() + 2, None, None, error=end))
            self._left.append(left)

    def poll(self, _timeout: float) -> Record | None:
        found = self.consume(1, 0)
        return found[0] if found else None

    def consume(self, count: int, _timeout: float) -> list[Record]:
        found: list[Record] = []
        for _ in range(min(count, self._chance.randint(1, 12))):
            self._left = [left for left in self._left if left]
            if self._left:
                found.append(self._chance.choice(self._left).pop(0))
        return found

    def close(self) -> None:
        return None


class Nobody:
    """A cluster that is not asked: nothing stalls here."""


def restore(
    directory: Path,
    logs: dict[str, list[Record]],
    *,
    points: Points | None = None,
    seed: int = 1,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[dict[bytes, bytes], int, rows.Frontier | None]:
    """Open what is there, read on to the marks, close. Rows, records read, and the frontier it began at."""
    store = Store(directory / f"p{PARTITION:05d}", Memory())
    try:
        before = store.frontier()
        frontier = before or rows.Frontier("ts", "th", "tg", -1, -1, 0, 0, 0, 0)
        reading = Reading(
            EngineConfig(kafka={}, prefix="t", instance="a", data_dir=directory),
            PARTITION,
            store,
            frontier,
            marks_of(logs),
            cancelled,
            lambda _: None,
            Stall(Nobody(), PARTITION, limit_ms=60_000),  # type: ignore[arg-type]
        )
        reading.points = points or Points()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in SMALL_RUN.items():
                patch.setattr(bulk, name, value)
            patch.setattr(changelogs.clients, "restore_reader", lambda _: Reader(logs, random.Random(seed)))
            records = reading.to_the_marks(stop_at_eof=False)
        return held(store), records, before
    finally:
        store.close(flush=False)


def held(store: Store) -> dict[bytes, bytes]:
    found = {bytes(key): bytes(value) for key, value in store._db.items()}
    found.pop(rows.FRONTIER_KEY, None)
    return found
