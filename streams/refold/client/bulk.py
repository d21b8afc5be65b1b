"""Reading a whole topic with restart points: all partitions, ``read_committed``, in batches.

``follow=False`` ends at the log end *as of the start*: every partition is read until its position has passed
the high watermark taken before the first record. End-of-partition alone is not enough: in ``read_committed``
it fires at the last stable offset, and what another transaction has committed behind a still open one would
be missed. A ``read_committed`` consumer reports the last stable offset as its watermark too (measured), so
the mark is taken ``read_uncommitted``, through the admin client.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from refold.client.limits import BULK_RECORDS, READ_STALL_S
from refold.client.positions import Position
from refold.client.reader import HARMLESS, POLL_S, consumer_config, read_failure
from refold.errors import NotFound, TransientError
from refold.topology.logends import offset_of

#: Per partition and fetch. 1 MiB: a state record is below it by contract, and librdkafka's own default.
FETCH_BYTES: Final = 1024 * 1024
FETCH_WAIT_MS: Final = 100

#: Memory librdkafka may fill ahead of us, over all partitions.
QUEUED_KBYTES_MAX: Final = 64 * 1024

METADATA_TIMEOUT_S: Final = 10.0


class Batch:
    """Records of one poll. ``position(i)`` is the place after record ``i``; made only when asked for."""

    def __init__(self, topic: str, before: dict[int, int], records: list[Message]) -> None:
        self._topic = topic
        self._before = before
        self.records = records

    def __iter__(self) -> Iterator[tuple[int, Message]]:
        return enumerate(self.records)

    def position(self, index: int) -> Position:
        offsets = dict(self._before)
        for message in self.records[: index + 1]:
            offsets[_partition(message)] = _offset(message) + 1
        return Position(self._topic, offsets)


class TopicReader:
    """Blocking; :func:`batches` is its asyncio face. ``read`` and ``close`` may come from different threads:
    a cancelled reader closes while its last read is still on the way."""

    def __init__(self, config: dict[str, Any], topic: str, since: Position, *, follow: bool) -> None:
        self._topic = topic
        self._follow = follow
        self._consumer = Consumer(
            {
                **consumer_config(config, fetch_bytes=FETCH_BYTES, fetch_wait_ms=FETCH_WAIT_MS),
                "queued.max.messages.kbytes": QUEUED_KBYTES_MAX,
            }
        )
        self._next: dict[int, int] = {}
        self._unfinished: dict[int, int] = {}
        self._progress_at = time.monotonic()
        self._in_use = threading.Lock()
        try:
            self._open(config, since)
        except BaseException:
            self._consumer.close()
            raise

    def _open(self, config: dict[str, Any], since: Position) -> None:
        try:
            metadata = self._consumer.list_topics(self._topic, timeout=METADATA_TIMEOUT_S).topics[self._topic]
            if metadata.error is not None:
                raise read_failure(metadata.error, self._topic)
            marks = self._watermarks(config, sorted(metadata.partitions))
            for partition, (low, high) in marks.items():
                wanted = since.offsets.get(partition, low)
                if wanted > high:
                    raise NotFound(
                        f"the position is past the end of {self._topic}[{partition}] ({wanted} > {high}): "
                        "the topic was recreated; start again without a position"
                    )
                # On a compacted topic what lies before `low` has been superseded or deleted for good.
                self._next[partition] = max(wanted, low)
                if self._next[partition] < high:
                    self._unfinished[partition] = high
        except KafkaException as error:
            raise read_failure(error.args[0], self._topic) from None
        self._consumer.assign([TopicPartition(self._topic, p, at) for p, at in self._next.items()])

    def _watermarks(self, config: dict[str, Any], partitions: list[int]) -> dict[int, tuple[int, int]]:
        """First offset and high watermark per partition."""
        admin = AdminClient(config)
        places = [TopicPartition(self._topic, partition) for partition in partitions]
        first, end = (
            admin.list_offsets(
                dict.fromkeys(places, spec),
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=METADATA_TIMEOUT_S,
            )
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return {place.partition: (offset_of(first[place]), offset_of(end[place])) for place in places}

    @property
    def finished(self) -> bool:
        return not self._follow and not self._unfinished

    def read(self) -> Batch:
        """The next records; empty when nothing came within a poll."""
        with self._in_use:
            return self._read()

    def _read(self) -> Batch:
        before = dict(self._next)
        first = self._consumer.poll(POLL_S)
        messages = [] if first is None else [first, *self._consumer.consume(BULK_RECORDS, 0)]
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                self._passed(_partition(message), _offset(message) + 1)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Its offset counts transaction markers, which no record shows.
                self._passed(_partition(message), _offset(message))
            elif error.code() not in HARMLESS:
                raise read_failure(error, self._topic)
        if messages:
            self._progress_at = time.monotonic()
        elif not self._follow and time.monotonic() - self._progress_at > READ_STALL_S:
            raise TransientError(
                f"reading {self._topic} made no progress for {READ_STALL_S:g} s: the broker does not answer, "
                "or an open transaction holds the last stable offset back"
            )
        return Batch(self._topic, before, records)

    def _passed(self, partition: int, next_offset: int) -> None:
        self._next[partition] = next_offset
        if next_offset >= self._unfinished.get(partition, next_offset + 1):
            del self._unfinished[partition]

    def close(self) -> None:
        # librdkafka frees the consumer: nobody may be inside a poll.
        with self._in_use:
            self._consumer.close()


async def batches(
    config: dict[str, Any], topic: str, since: Position, *, follow: bool
) -> AsyncGenerator[Batch, None]:
    """Non-empty batches until the log end, or for ever with ``follow``. Close it (``aclosing``) when done."""
    reader = await asyncio.to_thread(lambda: TopicReader(config, topic, since, follow=follow))
    try:
        while not reader.finished:
            batch = await asyncio.to_thread(reader.read)
            if batch.records:
                yield batch
    finally:
        await asyncio.to_thread(reader.close)


def _partition(message: Message) -> int:
    return message.partition() or 0


def _offset(message: Message) -> int:
    return message.offset() or 0
