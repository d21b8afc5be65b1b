"""Reads a piece of one changelog partition forward, in read_committed, and keeps the last record of each key.

Blocks; runs on restore threads, one after the other. Memory is bounded by ``interval.RUN_*``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import clients
from refold.engine.admission import Pace
from refold.engine.bulk import RECORD_OVERHEAD_BYTES
from refold.engine.config import EngineConfig
from refold.engine.takeover import Cancelled, Stall
from refold.engine.warming import interval
from refold.errors import StorageError
from refold.topology.failures import explain

#: Records per consume call, as in ``changelogs``.
CHUNK_RECORDS: Final = 2_000
POLL_S: Final = 0.02

_KEY: Final = methodcaller("key")
_OFFSET: Final = methodcaller("offset")

#: Fetched ahead: beyond the end of a range lies what was read already. A fourth of a range of 8 MiB at most.
AHEAD_BYTES: Final = 2 * 1024 * 1024


class Sink(Protocol):
    """What is read into. ``next``: the position reached; ``count``, ``bytes``: records and bytes read."""

    next: int
    count: int
    bytes: int

    def take(self, messages: Sequence[Message]) -> int:
        """Records in their order; how many of them, until memory is full. Fewer: it is."""


class Run:
    """The last record of each key of what was read from ``start`` on."""

    __slots__ = ("bytes", "count", "last", "next", "size")

    def __init__(self, start: int) -> None:
        self.next = start
        self.last: dict[bytes, Message] = {}
        #: Of :attr:`last`: what is in memory.
        self.size = 0
        self.count = 0
        self.bytes = 0

    def take(self, messages: Sequence[Message]) -> int:
        """Costs much of a restore: most are taken without a loop in Python."""
        keys = list(map(_KEY, messages))
        if None not in keys:
            size = sum(map(len, messages)) + sum(map(len, keys))
            bound = self.size + size + len(keys) * RECORD_OVERHEAD_BYTES
            if bound <= interval.RUN_BYTES_MAX and len(self.last) + len(keys) <= interval.RUN_RECORDS_MAX:
                self.last.update(zip(keys, messages, strict=True))
                # What was replaced counts until it is counted anew.
                self.size = bound
                self.count += len(keys)
                self.bytes += size
                return len(messages)
        self.size = sum(map(len, self.last.values())) + sum(map(len, self.last))
        self.size += len(self.last) * RECORD_OVERHEAD_BYTES
        for taken, message in enumerate(messages, 1):
            if self._one(message):
                return taken
        return len(messages)

    def _one(self, message: Message) -> bool:
        """True: memory is full."""
        key = message.key()
        if key is None:
            return False
        last, size = self.last, len(message)
        before = last.get(key)
        if before is None:
            self.size += size + len(key) + RECORD_OVERHEAD_BYTES
        else:
            self.size += size - len(before)
        last[key] = message
        self.count += 1
        self.bytes += size + len(key)
        return self.size > interval.RUN_BYTES_MAX or len(last) > interval.RUN_RECORDS_MAX


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

    @property
    def paced(self) -> bool:
        """Whether what is read is read at the cost of another restore."""
        return self._pace is not None and self._pace.bytes_per_s > 0

    def read(self, topic: str, start: int, end: int) -> Run:
        """The records in [start, end), or as many as memory is allowed for (``next`` is before ``end`` then).

        Raises what :meth:`read_into` raises.
        """
        run = Run(start)
        self.read_into(run, topic, end)
        return run

    def read_into(self, sink: Sink, topic: str, end: int) -> None:
        """The records in [``sink.next``, end), unless its memory is full before.

        Waits while an open transaction holds the topic below ``end``. Raises :class:`Cancelled`,
        StorageError, UnavailableError, PermissionDenied.
        """
        try:
            if self._reader is None:
                self._reader = clients.restore_reader(_short_sighted(self._config))
            self._reader.assign([TopicPartition(topic, self._partition, sink.next)])
            self._read(self._reader, sink, topic, end)
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

    def _read(self, reader: Consumer, sink: Sink, topic: str, end: int) -> None:
        full = False
        while sink.next < end and not full:
            if self._cancelled():
                raise Cancelled
            first = reader.poll(POLL_S)
            if first is None:
                self._held()
                continue
            before, size = sink.next, sink.bytes
            full = self._take(sink, [first, *reader.consume(CHUNK_RECORDS - 1, 0)], topic, end)
            if self._pace is not None:
                self._pace.spend(sink.bytes - size, self._cancelled)
            if sink.next != before:
                self._stall.moved()
            else:
                self._held()

    def _take(self, sink: Sink, messages: Sequence[Message], topic: str, end: int) -> bool:
        """True: memory is full. Costs most of a restore, as in ``changelogs``: nothing is asked of each."""
        position = sink.next
        good = [message for message in messages if message.error() is None]
        if len(good) < len(messages):
            for message in messages:
                error = message.error()
                if error is not None and message.topic() == topic:
                    position = max(position, self._told(error, message.offset(), end))
        # Fetched for an earlier range, if others than of this topic, or from before the position, are left.
        good = [message for message in good if message.topic() == topic]
        offsets = list(map(_OFFSET, good))
        low, high = bisect_left(offsets, sink.next), bisect_left(offsets, end)
        taken = 0
        if low < high:
            taken = sink.take(good[low:high] if high - low < len(good) else good)
            position = max(position, offsets[low + taken - 1] + 1)
        full = low + taken < high
        sink.next = offsets[low + taken - 1] + 1 if full else end if high < len(offsets) else position
        return full

    def _told(self, error: KafkaError, offset: int | None, end: int) -> int:
        """The position that is reached by it."""
        if error.code() == KafkaError._PARTITION_EOF:
            return min(end, offset or 0)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise StorageError(
                f"the changelog of partition {self._partition} no longer holds the offset to go on from;"
                " delete the local directory and start again"
            )
        if not error.retriable():
            raise KafkaException(error)
        return 0

    def _held(self) -> None:
        self._stall.waiting(f"the changelog of partition {self._partition} is held by an open transaction")

    def close(self) -> None:
        """Blocks."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
