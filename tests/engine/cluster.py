"""Topics and reading for the engine's broker tests: small, synchronous, no refold client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from refold.topology.groupoffsets import GroupOffsets
from refold.topology.names import TopicNames

PARTITIONS = 4
CONFIGS = {
    "inbox": {"message.timestamp.type": "LogAppendTime"},
    "journal": {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "1179648"},
    "state": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
    "history": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
    "rejected": {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "1179648"},
    "batches": {"message.timestamp.type": "LogAppendTime"},
    "generations": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
    "review": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
    "work": {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
}


#: What takes a second alone takes half a minute beside nine others. Only a test that fails waits so long.
WAIT_S_MAX = 120.0

#: One answer of the broker.
ANSWER_S_MAX = 60.0


def wait_for(
    what: str, condition: Callable[[], bool], seconds: float = WAIT_S_MAX, every: float = 0.02
) -> None:
    """Wait on a condition, with a deadline that fails the test by name."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain for: {what}")
        time.sleep(every)


@dataclass
class Cluster:
    bootstrap: str
    prefix: str
    partitions: int = PARTITIONS

    def __post_init__(self) -> None:
        # Kept: futures of an AdminClient fail when it is collected.
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.offsets = GroupOffsets({"bootstrap.servers": self.bootstrap}, self.prefix)

    @property
    def topics(self) -> TopicNames:
        return TopicNames(self.prefix)

    def create(self, **changes: dict[str, str]) -> None:
        new = [
            NewTopic(
                f"{self.prefix}.{name}",
                self.partitions,
                1,
                config={**config, **changes.get(name, {})},
            )
            for name, config in CONFIGS.items()
        ]
        for future in self.admin.create_topics(new).values():
            future.result(ANSWER_S_MAX)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Everything up to the end of each partition, in partition order."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "engine-tests-read",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(self.partitions)])
        left, found = set(range(self.partitions)), []
        try:
            while left:
                message = consumer.poll(ANSWER_S_MAX)
                assert message is not None, f"{topic} cannot be read to its end"
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise AssertionError(error)
        finally:
            consumer.close()
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def committed(self, topic: str | None = None) -> dict[int, int]:
        """Of the inbox, where no other topic is named."""
        topic = topic or self.topics.inbox
        asked = [TopicPartition(topic, number) for number in range(self.partitions)]
        return {tp.partition: tp.offset for tp in self.offsets.newest(asked, ANSWER_S_MAX)}

    def pending(self) -> set[int]:
        """Partitions of the inbox whose offset of the group an open transaction holds."""
        return {number for number in range(self.partitions) if self._pending(number)}

    def _pending(self, number: int) -> bool:
        return self.offsets.stable([TopicPartition(self.topics.inbox, number)], ANSWER_S_MAX) is None

    def members(self) -> dict[str, list[int]]:
        """Instance → owned partitions, as the group says."""
        description = self.admin.describe_consumer_groups([self.prefix])[self.prefix].result(ANSWER_S_MAX)
        return {
            member.group_instance_id: sorted(tp.partition for tp in member.assignment.topic_partitions)
            for member in description.members
            if member.assignment is not None
        }

    def stable(self, *topics: str) -> bool:
        """Whether no transaction is open on the topics: stable ends equal high watermarks."""
        everything = [TopicPartition(topic, number) for topic in topics for number in range(self.partitions)]
        ends = []
        for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
            request = {tp: OffsetSpec.latest() for tp in everything}
            answer = self.admin.list_offsets(request, isolation_level=isolation)
            ends.append(
                {
                    (tp.topic, tp.partition): future.result(ANSWER_S_MAX).offset
                    for tp, future in answer.items()
                }
            )
        return ends[0] == ends[1]

    def inbox_ends(self) -> dict[int, int]:
        """One past the last *data* record of each inbox partition (markers of forwards not counted)."""
        return self.data_ends(self.topics.inbox)

    def data_ends(self, topic: str) -> dict[int, int]:
        ends = dict.fromkeys(range(self.partitions), 0)
        for message in self.read(topic):
            ends[message.partition()] = message.offset() + 1
        return ends


def by_key(messages: list[Message]) -> Iterator[tuple[bytes, list[Message]]]:
    groups: dict[bytes, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.key() or b"", []).append(message)
    yield from groups.items()
