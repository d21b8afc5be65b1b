"""Reads a piece of one changelog partition forward, in read_committed, and keeps the last record of each key.

Blocks; runs on restore threads, one after the other. Memory is bounded by ``interval.RUN_*``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import clients, history
from refold.engine.admission import Pace
from refold.engine.config import EngineConfig
from refold.engine.takeover import Cancelled, Stall
from refold.engine.warming import interval
from refold.errors import StorageError
from refold.topology.failures import explain

#: Records per consume call, as in ``changelogs``.
CHUNK_RECORDS: Final = 2_000
POLL_S: Final = 0.02

#: Fetched ahead: beyond the end of a range lies what was read already. A fourth of a range of 8 MiB at most.
AHEAD_BYTES: Final = 2 * 1024 * 1024


class Last(NamedTuple):
    """The last record of a key: ``value`` ``None`` for a tombstone, ``header``: the history tail."""

    value: bytes | None
    header: bytes


class Run:
    """What was read from ``start`` on. ``next``: the position reached."""

    __slots__ = ("bytes", "count", "last", "next", "size", "start")

    def __init__(self, start: int) -> None:
        self.start = self.next = start
        self.last: dict[bytes, Last] = {}
        #: Of :attr:`last`: what is in memory.
        self.size = 0
        #: Records and bytes read.
        self.count = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        return len(self.last) > interval.RUN_RECORDS_MAX or self.size > interval.RUN_BYTES_MAX

    def take(self, message: Message) -> None:
        offset, key = message.offset(), message.key()
        self.next = (offset if offset is not None else self.next) + 1
        if key is None:
            return
        value, header = message.value(), b""
        for name, content in message.headers() or ():
            if name == history.HEADER:
                header = content or b""
        before = self.last.get(key)
        if before is not None:
            self.size -= _size(key, before)
        found = self.last[key] = Last(value, header)
        self.size += _size(key, found)
        self.count += 1
        self.bytes += len(key) + len(value or b"") + len(header)


def _size(key: bytes, record: Last) -> int:
    return len(key) + len(record.value or b"") + len(record.header)


def _short_sighted(config: EngineConfig) -> EngineConfig:
    """So that librdkafka fetches no more than that ahead (``clients.restore_reader`` has the arithmetic)."""
    rate = AHEAD_BYTES * 4 * config.restores_max
    return replace(config, restore_bytes_per_s_max=min(config.restore_bytes_per_s_max or rate, rate))


class RangeReader:
    """One consumer, outside of the group; made by the first read."""

    def __init__(
        self,
        config: EngineConfig,
        partition: int,
        *,
        cancelled: Callable[[], bool],
        stall: Stall,
        pace: Pace | None,
    ) -> None:
        self._config = config
        self._partition = partition
        self._cancelled = cancelled
        self._stall = stall
        self._pace = pace
        self._reader: Consumer | None = None

    def read(self, topic: str, start: int, end: int) -> Run:
        """The records in [start, end), or as many as memory is allowed for (``next`` is before ``end`` then).

        Waits while an open transaction holds the topic below ``end``. Raises :class:`Cancelled`,
        StorageError, UnavailableError, PermissionDenied.
        """
        try:
            if self._reader is None:
                self._reader = clients.restore_reader(_short_sighted(self._config))
            self._reader.assign([TopicPartition(topic, self._partition, start)])
            run = self._read(self._reader, Run(start), topic, end)
            # What was fetched ahead belongs to no range: gone before the next one is asked for.
            self._reader.unassign()
            while self._reader.consume(CHUNK_RECORDS, 0):
                pass
        except KafkaException as raised:
            raise explain(
                raised,
                doing=f"restoring partition {self._partition}",
                bootstrap=self._config.bootstrap,
            ) from None
        return run

    def _read(self, reader: Consumer, run: Run, topic: str, end: int) -> Run:
        while run.next < end and not run.full:
            if self._cancelled():
                raise Cancelled
            first = reader.poll(POLL_S)
            if first is None:
                self._held()
                continue
            before, size = run.next, run.bytes
            for message in [first, *reader.consume(CHUNK_RECORDS - 1, 0)]:
                if message.topic() == topic and self._take(run, message, end):
                    break
            if self._pace is not None:
                self._pace.spend(run.bytes - size, self._cancelled)
            if run.next != before:
                self._stall.moved()
            else:
                self._held()
        return run

    def _take(self, run: Run, message: Message, end: int) -> bool:
        """True: enough."""
        error, offset = message.error(), message.offset()
        if error is None:
            if offset is not None and offset >= end:
                run.next = end
                return True
            if offset is not None and offset >= run.next:
                run.take(message)
            return run.full
        if error.code() == KafkaError._PARTITION_EOF:
            run.next = max(run.next, min(end, offset or 0))
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise StorageError(
                f"the changelog of partition {self._partition} no longer holds the offset to go on from;"
                " delete the local directory and start again"
            )
        elif not error.retriable():
            raise KafkaException(error)
        return False

    def _held(self) -> None:
        self._stall.waiting(f"the changelog of partition {self._partition} is held by an open transaction")

    def close(self) -> None:
        """Blocks."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
