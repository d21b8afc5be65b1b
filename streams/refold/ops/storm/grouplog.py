"""How many times did the group rebalance? Kafka writes every generation down in a topic of its own.

The group description does not tell the generation. A user who may not read ``__consumer_offsets`` gets
``None`` instead of a number.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

TOPIC: Final = "__consumer_offsets"
#: Version of the key of a group's own record (0 and 1 are committed offsets).
GROUP_KEY: Final = 2
BATCH_RECORDS: Final = 5_000
REQUEST_S: Final = 10.0
#: Reading what came since the last look.
READ_S_MAX: Final = 20.0


def java_hash(text: str) -> int:
    """``String.hashCode`` of ASCII text, as Kafka places a group by it."""
    value = 0
    for letter in text.encode():
        value = (value * 31 + letter) & 0xFFFFFFFF
    return value


def generation_of(key: bytes | None, value: bytes | None, group: str) -> int | None:
    """The generation in a record of the topic; ``None`` for another kind, another group, a deletion."""
    name = group.encode()
    if key is None or value is None or int.from_bytes(key[:2]) != GROUP_KEY or key[4:] != name:
        return None
    at = 4 + int.from_bytes(value[2:4])  # version, then the protocol type with its length
    return int.from_bytes(value[at : at + 4], signed=True)


class GroupLog:
    """Blocking. ``look`` reads on from where the last one ended. Close it."""

    def __init__(self, kafka: Mapping[str, Any], group: str) -> None:
        self._group = group
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": f"{group}-log",  # required by the client; nothing is committed or joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_uncommitted",
            }
        )
        self._place: TopicPartition | None = None
        self._generation = 0
        # Where the topic is not there yet, on a new cluster, it is read from its beginning later.
        self._begin = -1
        with contextlib.suppress(KafkaException):
            if (place := self._find()) is not None:
                self._begin = self._consumer.get_watermark_offsets(place, timeout=REQUEST_S)[1]

    def look(self) -> int | None:
        """The group's present generation; ``None`` when that cannot be read."""
        try:
            if self._place is None:
                self._place = self._find()
                if self._place is None:
                    return None
                self._place.offset = max(0, self._begin)
            _, end = self._consumer.get_watermark_offsets(self._place, timeout=REQUEST_S)
            self._consumer.assign([self._place])
            until = time.monotonic() + READ_S_MAX
            while self._place.offset < end:
                for message in self._consumer.consume(BATCH_RECORDS, 0.2):
                    error = message.error()
                    if error is None:
                        found = generation_of(message.key(), message.value(), self._group)
                        self._generation = self._generation if found is None else found
                        self._place.offset = (message.offset() or 0) + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        self._place.offset = max(self._place.offset, message.offset() or 0)
                    else:
                        return None
                if time.monotonic() > until:
                    return None
        except KafkaException:
            return None
        return self._generation

    def close(self) -> None:
        self._consumer.close()

    def _find(self) -> TopicPartition | None:
        topic = self._consumer.list_topics(TOPIC, timeout=REQUEST_S).topics[TOPIC]
        if topic.error is not None or not topic.partitions:
            return None
        return TopicPartition(TOPIC, (java_hash(self._group) & 0x7FFFFFFF) % len(topic.partitions))
