"""Step (3) of rule T for one partition: its changelogs, from where the local copy ends to the marks.

Read in read_committed until the *position* of each reaches its mark: end-of-partition fires at the last
stable offset and is not an end. What is read goes to RocksDB in runs (:mod:`refold.engine.bulk`) that carry
how far the copy is, so that a restore that was cut short goes on from there. Blocks; runs on a restore
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import clients, rows
from refold.engine.admission import Pace
from refold.engine.bulk import Run
from refold.engine.config import EngineConfig
from refold.engine.points import Points
from refold.engine.store import Store
from refold.engine.takeover import Cancelled, Marks, Stall
from refold.errors import StorageError
from refold.topology.failures import explain

#: Records per consume call. What two restores hold at once should stay in the processor's cache between being
#: made by the consumer and being kept: with 2 000 records (3 MB of snapshots) two restores of 124 000 records
#: took 0.40 s, with 500 0.33, with 250 and 120 0.32 (measured, two cores).
CHUNK_RECORDS: Final = 250
POLL_S: Final = 0.02


class StoodStill(Exception):
    """The reading has lasted for so long that tombstones it should have seen may be gone (rule Z)."""


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
        self.points = Points()
        #: Whether tombstones that are to come may be gone. Asked after the last read and before it is kept: a
        #: process that was suspended in between reads a changelog from which deletions have vanished.
        self.expired: Callable[[], bool] = lambda: False
        #: Which rows a changelog's keys are, by its full name.
        self._kinds = {
            topics.state: rows.STATE,
            topics.history: rows.BLOCK,
            topics.generations: rows.SIDE,
        }
        self._run = Run(config.restore_bytes_per_s_max)
        self._at_eof: set[str] = set()
        self._applied_ms = frontier.applied_ms
        #: Whether any session record exists (tombstones and aborted records do not count).
        self.found_state = not store.empty()

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
        """Records read. Raises :class:`Cancelled`, :class:`StoodStill`, StorageError, UnavailableError,
        PermissionDenied."""
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
        count = 0
        while not self._done():
            if self._cancelled():
                raise Cancelled
            first = reader.poll(POLL_S)
            if first is None:
                self._held()
                continue
            before = dict(self.next)
            records, size = self._take([first, *reader.consume(CHUNK_RECORDS - 1, 0)])
            count += records
            if self._run.full:
                self._write()
            if self.pace is not None:
                self.pace.spend(size, self._cancelled)
            if self.next != before:
                self._stall.moved()
                self._progress(1.0 - max(0, self.end[state] - self.next[state]) / total)
            else:
                self._held()
            if stop_at_eof and self._at_eof == {item.topic for item in wanted}:
                break
        self._write()
        return count

    def _write(self) -> None:
        if self.expired():
            raise StoodStill
        if not self._run:
            # Markers alone: read again where the restore does not get to its end.
            return
        frontier = replace(
            self._frontier,
            state_next=self.state_next,
            history_next=self.history_next,
            generations_next=self.generations_next,
            applied_ms=self._applied_ms,
        )
        self._run.write(self._store, frontier, self.points)

    def _held(self) -> None:
        self._stall.waiting(f"the changelog of partition {self._partition} is held by an open transaction")

    def _take(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Records and their bytes. Costs most of a restore: what holds for the last record of a topic in the
        chunk, or of a key in the run, is not asked of each."""
        errors = [message for message in messages if message.error() is not None]
        good = messages
        if errors:
            good = [message for message in messages if message.error() is None]
            for message in errors:
                self._told(message, message.error())
        size, state = 0, self._config.topics.state
        for topic, records in _by_topic(good):
            last = records[-1]
            self._passed(topic, last.offset() + 1)
            self._applied_ms = max(self._applied_ms, last.timestamp()[1])
            keys = [record.key() for record in records]
            if None in keys:
                records = [record for record in records if record.key() is not None]
                keys = [record.key() for record in records]
            size += self._run.put_all(self._kinds[topic], keys, records)
            if not self.found_state and topic == state:
                self.found_state = any(record.value() is not None for record in records)
        return len(good), size

    def _told(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._passed(message.topic(), message.offset())
            self._at_eof.add(message.topic())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise StorageError(
                f"the changelog of partition {self._partition} no longer holds the offset to go on from;"
                " delete the local directory and start again"
            )
        elif not error.retriable():
            raise KafkaException(error)

    def _passed(self, topic: str, position: int) -> None:
        self.next[topic] = max(self.next[topic], position)


def _by_topic(messages: Sequence[Message]) -> Iterable[tuple[str, Sequence[Message]]]:
    """As they came, in runs of one topic; mostly one."""
    topics = [message.topic() for message in messages]
    if topics and topics.count(topics[0]) == len(topics):
        return [(topics[0], messages)]
    return [
        (topic, [message for _, message in run])
        for topic, run in groupby(zip(topics, messages, strict=True), itemgetter(0))
    ]
