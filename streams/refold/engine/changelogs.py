"""Step (3) of rule T for one partition: its changelogs, from where the local copy ends to the marks.

Read in read_committed until the *position* of each reaches its mark: end-of-partition fires at the last
stable offset and is not an end. What is read goes to RocksDB in batches that carry how far the copy is, so
that a restore that was cut short goes on from there. Blocks; runs on a restore thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import clients, history, rows
from refold.engine.admission import Pace
from refold.engine.config import EngineConfig
from refold.engine.store import Batch, Store
from refold.engine.takeover import Cancelled, Marks, Stall
from refold.errors import StorageError
from refold.topology.failures import explain

#: Records per consume call and WriteBatch: 2 000 snapshots of 1.6 KB are 3 MB.
CHUNK_RECORDS: Final = 2_000
POLL_S: Final = 0.02


class Reading:
    """``next`` and ``end`` map a changelog's full name to the position read to, and to its mark."""

    def __init__(
        self,
        config: EngineConfig,
        partition: int,
        store: Store,
        frontier: rows.Frontier,
        marks: Marks,
        cancelled: Callable[[], bool],
        progress: Callable[[float], None],
        stall: Stall,
    ) -> None:
        topics = config.topics
        self._config = config
        self._partition = partition
        self._store = store
        #: As stored: what a further batch carries, with new positions.
        self._frontier = frontier
        self._cancelled = cancelled
        self._progress = progress
        self._stall = stall
        self.end = {
            topics.state: marks.state_end,
            topics.history: marks.history_end,
            topics.generations: marks.generations_end,
        }
        self.next = {
            topics.state: max(frontier.state_next, marks.state_start),
            topics.history: max(frontier.history_next, marks.history_start),
            topics.generations: max(frontier.generations_next, marks.generations_start),
        }
        #: Bounds how fast this and all other restores of the worker read together.
        self.pace: Pace | None = None
        self._applied_ms = frontier.applied_ms
        #: Whether any session record exists (tombstones and aborted records do not count).
        self.found_state = frontier.inbox_next >= 0 and not store.empty()

    @property
    def state_next(self) -> int:
        return self.next[self._config.topics.state]

    @property
    def history_next(self) -> int:
        return self.next[self._config.topics.history]

    @property
    def generations_next(self) -> int:
        return self.next[self._config.topics.generations]

    def _done(self) -> bool:
        return all(self.next[topic] >= end for topic, end in self.end.items())

    def to_the_marks(self, *, stop_at_eof: bool) -> int:
        """Records read. Raises :class:`Cancelled`, StorageError, UnavailableError, PermissionDenied."""
        if self._done():
            return 0
        reader = clients.restore_reader(self._config)
        try:
            return self._read(reader, stop_at_eof)
        except KafkaException as raised:
            raise explain(
                raised,
                doing=f"restoring partition {self._partition}",
                bootstrap=self._config.bootstrap,
            ) from None
        finally:
            reader.close()

    def _read(self, reader: Consumer, stop_at_eof: bool) -> int:
        wanted = [
            TopicPartition(topic, self._partition, self.next[topic])
            for topic, end in self.end.items()
            if self.next[topic] < end
        ]
        reader.assign(wanted)
        state = self._config.topics.state
        total = max(1, self.end[state] - self.next[state])
        at_eof: set[str] = set()
        count = 0
        while not self._done():
            if self._cancelled():
                raise Cancelled
            first = reader.poll(POLL_S)
            if first is None:
                self._held()
                continue
            before = dict(self.next)
            batch, size = Batch(), 0
            for message in [first, *reader.consume(CHUNK_RECORDS - 1, 0)]:
                error = message.error()
                if error is None:
                    self._apply(batch, message)
                    count += 1
                    size += len(message) + len(message.key() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._passed(message.topic(), message.offset())
                    at_eof.add(message.topic())
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise StorageError(
                        f"the changelog of partition {self._partition} no longer holds the offset to go"
                        " on from;"
                        " delete the local directory and start again"
                    )
                elif not error.retriable():
                    raise KafkaException(error)
            batch.frontier(
                replace(
                    self._frontier,
                    state_next=self.state_next,
                    history_next=self.history_next,
                    generations_next=self.generations_next,
                    applied_ms=self._applied_ms,
                )
            )
            self._store.write(batch)
            if self.pace is not None:
                self.pace.spend(size, self._cancelled)
            if self.next != before:
                self._stall.moved()
                self._progress(1.0 - max(0, self.end[state] - self.next[state]) / total)
            else:
                self._held()
            if stop_at_eof and at_eof == {item.topic for item in wanted}:
                break
        return count

    def _held(self) -> None:
        self._stall.waiting(f"the changelog of partition {self._partition} is held by an open transaction")

    def _apply(self, batch: Batch, message: Message) -> None:
        key, value, topic = message.key(), message.value(), message.topic()
        if key is None:
            self._passed(topic, message.offset() + 1)
            return
        topics = self._config.topics
        if topic == topics.state:
            if value is None:
                batch.delete_state(key)
            else:
                self.found_state = True
                header = b""
                for name, content in message.headers() or ():
                    if name == history.HEADER:
                        header = content or b""
                batch.put_state(key, rows.pack(rows.snapshot_seq(value), header, value))
        elif topic == topics.generations:
            if value is None:
                batch.delete_generation(key)
            else:
                batch.put_generation(key, value)
        elif value is None:
            batch.delete_block(key)
        else:
            batch.put_block(key, value)
        self._applied_ms = max(self._applied_ms, message.timestamp()[1])
        self._passed(topic, message.offset() + 1)

    def _passed(self, topic: str, position: int) -> None:
        self.next[topic] = max(self.next[topic], position)
