"""Topics as they are, read from the beginning to the end that was there when the read began."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from refold.errors import UnavailableError

BATCH_RECORDS: Final = 5_000
#: No progress for this long: an open transaction holds the last stable offset (10 s until it times out, 10
#: s until the broker looks), or the broker is gone.
STALL_S_MAX: Final = 40.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``time_ms``: the broker's append time or the producer's, as the topic is set up."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    time_ms: int

    def header(self, name: str) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


def read_topic(
    kafka: Mapping[str, Any], topic: str, partitions: int, *, committed: bool = True
) -> dict[int, list[Record]]:
    """Every record per partition, in order. Blocks; raises :class:`UnavailableError` after a stall.

    ``committed=False`` shows records of open and aborted transactions too. The end is the high watermark
    at the beginning of the read, and it must be reached: a last stable offset that stays below it is a
    stall.
    """
    found: dict[int, list[Record]] = {p: [] for p in range(partitions)}
    scan_topic(
        kafka, topic, found, lambda record: found[record.partition].append(record), committed=committed
    )
    return found


def scan_topic(
    kafka: Mapping[str, Any],
    topic: str,
    partitions: Collection[int],
    take: Callable[[Record], None],
    *,
    committed: bool = True,
) -> None:
    """As :func:`read_topic`, of these partitions, a record at a time: for what does not fit into memory."""
    consumer = Consumer(
        {
            **kafka,
            "group.id": f"{topic}-readback",  # required by the client; nothing is joined or committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        ends = {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30.0)[1] for p in partitions
        }
        open_ = {p for p, end in ends.items() if end > 0}
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in open_])
        deadline = time.monotonic() + STALL_S_MAX
        while open_:
            for message in consumer.consume(BATCH_RECORDS, 0.2):
                error = message.error()
                if error is None:
                    take(_record(message))
                    deadline = time.monotonic() + STALL_S_MAX
                elif error.code() == KafkaError._PARTITION_EOF:
                    # The event carries the next offset, past control records that are never delivered.
                    if message.offset() >= ends[message.partition()]:
                        open_.discard(message.partition())
                else:
                    raise KafkaException(error)
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{topic}: partitions {sorted(open_)} do not become readable to their end within "
                    f"{STALL_S_MAX:.0f} s; a transaction stays open, or the broker does not answer"
                )
    finally:
        consumer.close()


def _record(message: Any) -> Record:
    return Record(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
    )
