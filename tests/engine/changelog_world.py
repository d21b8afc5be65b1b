"""Changelogs of one partition in memory, and what a restore and a validation ask of a cluster: real RocksDB,
no broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from engine.checkpoint_world import Told
from refold.engine import changelogs, history, rows
from refold.engine.commitmeta import CommitMeta
from refold.engine.config import EngineConfig
from refold.engine.points import Points
from refold.engine.restore import Restored, Restorer, TopicFacts
from refold.engine.store import Batch, Memory, Store
from refold.engine.takeover import Committed, Marks
from refold.topology.names import TopicNames
from refold.wire.varint import zlong

PREFIX = "t"
PARTITION = 3
TOPICS = TopicNames(PREFIX)
NOW = 2_000_000_000_000
DAY = 86_400_000

#: Key, value, history header.
Entry = tuple[bytes, bytes | None, bytes]


def snapshot(key: bytes, seq: int, text: bytes) -> bytes:
    """As far as a restore looks into it: the frame, tenant, session, seq."""
    tenant, _, session = key.partition(b"/")
    names = b"".join(zlong(len(name)) + name for name in (tenant, session))
    return b"\0" * rows.FRAME_BYTES + names + zlong(seq) + text


class Message:
    def __init__(self, topic: str, offset: int, entry: Entry | None) -> None:
        self._topic, self._offset, self._entry = topic, offset, entry

    def error(self) -> KafkaError | None:
        return None if self._entry is not None else KafkaError(KafkaError._PARTITION_EOF)

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return PARTITION

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None if self._entry is None else self._entry[0]

    def value(self) -> bytes | None:
        return None if self._entry is None else self._entry[1]

    def headers(self) -> list[tuple[str, bytes]]:
        return [] if self._entry is None or not self._entry[2] else [(history.HEADER, self._entry[2])]

    def timestamp(self) -> tuple[int, int]:
        return 2, NOW

    def __len__(self) -> int:
        return len(self.value() or b"")


class Log:
    """A changelog: entries by offset; what compaction took, and markers, are gaps."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.end = 0

    def append(self, key: bytes, value: bytes | None, header: bytes = b"") -> int:
        self.entries[self.end] = (key, value, header)
        self.end += 1
        return self.end - 1

    def marker(self) -> None:
        self.end += 1

    def compact(self, until: int | None = None, *, tombstones: bool = False) -> None:
        """Keep the last record of every key among those before ``until``; of deletions none, on demand."""
        last: dict[bytes, int] = {}
        until = self.end if until is None else until
        for offset, (key, _, _) in self.entries.items():
            if offset < until:
                last[key] = offset
        for offset in [at for at in self.entries if at < until]:
            key, value, _ = self.entries[offset]
            if last[key] != offset or (tombstones and value is None):
                del self.entries[offset]


class Logs:
    """The three changelogs of one partition."""

    def __init__(self) -> None:
        self.by_topic = {topic: Log() for topic in (TOPICS.state, TOPICS.history, TOPICS.generations)}
        #: Called before every piece that is read: what a test does meanwhile.
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def state(self) -> Log:
        return self.by_topic[TOPICS.state]

    @property
    def history(self) -> Log:
        return self.by_topic[TOPICS.history]

    @property
    def generations(self) -> Log:
        return self.by_topic[TOPICS.generations]

    def reader(self, _config: Any) -> Reader:
        return Reader(self)


class Reader:
    """A restore's consumer, in pieces of ten."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._next: dict[str, int] = {}
        self._at_end: set[str] = set()

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._next = {one.topic: one.offset for one in partitions}
        self._at_end = set()

    def unassign(self) -> None:
        self.assign([])

    def poll(self, _timeout: float) -> Message | None:
        self._logs.meanwhile()
        found = self.consume(1, 0)
        return found[0] if found else None

    def consume(self, count: int, _timeout: float) -> list[Message]:
        found: list[Message] = []
        for topic, at in self._next.items():
            log = self._logs.by_topic[topic]
            for offset in sorted(offset for offset in log.entries if offset >= at)[: min(count, 10)]:
                found.append(Message(topic, offset, log.entries[offset]))
                self._next[topic] = offset + 1
                self._at_end.discard(topic)
                if len(found) >= count:
                    return found
            if topic not in self._at_end and not any(one >= self._next[topic] for one in log.entries):
                self._at_end.add(topic)
                self._next[topic] = max(self._next[topic], log.end)
                found.append(Message(topic, log.end, None))
                if len(found) >= count:
                    return found
        return found

    def close(self) -> None:
        return None


class Cluster:
    """What a restore asks first. The inbox is one record per change of a session."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self.inbox_next = 0

    def commit_meta(self) -> CommitMeta:
        logs = self._logs
        return CommitMeta("t-other", logs.state.end, logs.history.end, logs.generations.end, 0)

    def stable_offset(self, *_: Any) -> Committed:
        return Committed(self.inbox_next, self.commit_meta(), 0)

    def committed(self, *_: Any, **__: Any) -> Committed:
        return self.stable_offset()

    def marks(self, _partition: int) -> Marks:
        logs, at = self._logs, self.inbox_next
        return Marks(0, logs.state.end, 0, logs.history.end, 0, logs.generations.end, 0, at, 0, 0)

    def outputs_closed(self, *_: Any) -> None:
        return None


class World:
    """Sessions that live in changelogs, the DB of their owner, and what both must agree on (``expected``)."""

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        seed: int = 1,
        modules: tuple[Any, ...] = (),
    ) -> None:
        self.directory = directory
        self.logs = Logs()
        self.cluster = Cluster(self.logs)
        self.memory = Memory()
        self.told = Told()
        self.chance = random.Random(seed)
        self.expected: dict[bytes, bytes] = {}
        self._seqs: dict[bytes, int] = {}
        self.facts = TopicFacts("ts", "th", "tg", DAY)
        self.store: Store | None = None
        for module in (changelogs, *modules):
            monkeypatch.setattr(module.clients, "restore_reader", self.logs.reader)

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(kafka={}, prefix=PREFIX, instance="a", data_dir=self.directory)

    @property
    def path(self) -> Path:
        return self.restorer().path(PARTITION)

    @property
    def aside(self) -> Path:
        return self.path.with_name(self.path.name + ".aside")

    def restorer(self, facts: TopicFacts | None = None) -> Restorer:
        return Restorer(
            self.config,
            self.cluster,  # type: ignore[arg-type]
            facts or self.facts,
            self.memory,
            Points(),
            log=self.told,
            now_ms=lambda: NOW,
        )

    def restore(self, facts: TopicFacts | None = None) -> Restored:
        """What a start does with the directory; the DB is open afterwards as :attr:`store`."""
        self.close()
        restored = self.restorer(facts).run(PARTITION, lambda: False, lambda _: None)
        self.store = restored.written.store
        return restored

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None

    # --- commits: to the changelogs, then to the DB where one is open ------------------------------------

    def commit(self, *changes: tuple[bytes, bytes | None]) -> None:
        """Full row keys and texts; ``None`` deletes."""
        batch = Batch()
        for full_key, text in changes:
            kind, key = full_key[:1], full_key[1:]
            log = {rows.STATE: self.logs.state, rows.BLOCK: self.logs.history}.get(
                kind, self.logs.generations
            )
            if text is None:
                log.append(key, None)
                self.expected.pop(full_key, None)
                self._seqs.pop(key, None)
                batch.delete(full_key)
                continue
            value, header, row = text, b"", text
            if kind == rows.STATE:
                seq = self._seqs[key] = self._seqs.get(key, 0) + 1
                value, header = snapshot(key, seq, text), b"tail"
                row = rows.pack(seq, header, value)
            log.append(key, value, header)
            self.expected[full_key] = row
            batch.put(full_key, row)
        for log in self.logs.by_topic.values():
            log.marker()
        self.cluster.inbox_next += 1
        if self.store is not None:
            batch.frontier(self.frontier())
            self.store.write(batch)

    def frontier(self, **changes: Any) -> rows.Frontier:
        logs, facts = self.logs, self.facts
        values = {
            "state_topic": facts.state_id,
            "history_topic": facts.history_id,
            "generations_topic": facts.generations_id,
            "inbox_next": self.cluster.inbox_next,
            "batches_next": 0,
            "state_next": logs.state.end,
            "history_next": logs.history.end,
            "generations_next": logs.generations.end,
            "applied_ms": NOW,
            **changes,
        }
        return rows.Frontier(**values)

    def live_on(self, commits: int = 20, sessions: int = 30) -> None:
        """Commits as traffic makes them: sessions written, now and then deleted and opened again."""
        for _ in range(commits):
            changes: dict[bytes, bytes | None] = {}
            for _ in range(self.chance.randint(1, 4)):
                key = b"a/%d" % self.chance.randrange(sessions)
                if self.chance.random() < 0.15 and rows.STATE + key in self.expected:
                    changes[rows.STATE + key] = changes[rows.BLOCK + key + b"#0"] = None
                else:
                    changes[rows.STATE + key] = self.chance.randbytes(300)
                    if self.chance.random() < 0.3:
                        changes[rows.BLOCK + key + b"#0"] = self.chance.randbytes(40)
                    if self.chance.random() < 0.3:
                        changes[rows.SIDE + key + b"#g"] = self.chance.randbytes(60)
                    if self.chance.random() < 0.3:
                        self._arm(key, changes)
            self.commit(*changes.items())

    def _arm(self, key: bytes, changes: dict[bytes, bytes | None]) -> None:
        """A side row without a slash: the session's former one goes with the one that comes."""
        first, last = rows.SIDE + b"timer#", b"#" + key.replace(b"/", b"%2F")
        for row in list(self.expected) + list(changes):
            if row.startswith(first) and row.endswith(last):
                changes[row] = None
        changes[first + b"%013d" % self.chance.randrange(10**13) + last] = self.chance.randbytes(30)

    def found(self) -> dict[bytes, bytes]:
        """All rows of the open DB but the notes."""
        assert self.store is not None
        cursor, found = self.store._db.iter(), {}
        cursor.seek_to_first()
        while cursor.valid():
            if not bytes(cursor.key()).startswith(rows.NOTE):
                found[bytes(cursor.key())] = bytes(cursor.value())
            cursor.next()
        return found
