"""librdkafka's consumer without a group: assigned partitions, ``read_committed``, end-of-partition events at
the last stable offset. What the engine reads `batches` with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from confluent_kafka import KafkaError, TopicPartition

from .broker import Broker
from .consumer import fetched, message_of
from .kafka import Message, error, raised
from .kernel import Kernel


class _Fetch:
    __slots__ = ("eof", "paused", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.paused = False
        #: Where end-of-partition was said last: once per place.
        self.eof = -1


class AssignedConsumer:
    def __init__(self, kernel: Kernel, broker: Broker, *, topic: str, fetch_records_max: int) -> None:
        self._kernel = kernel
        self._broker = broker
        self._process = kernel.caller
        self._topic = topic
        self._fetch_records_max = fetch_records_max
        self._parts: dict[int, _Fetch] = {}
        #: Given up while they were paused: librdkafka has them paused when they come back (measured).
        self._left_paused: set[int] = set()
        self._buffer: deque[Message] = deque()

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._kernel.alive()
        for tp in partitions:
            if tp.partition in self._parts:
                raise raised(KafkaError._CONFLICT, "already assigned")
            self._parts[tp.partition] = _Fetch(tp.offset)
            self._parts[tp.partition].paused = tp.partition in self._left_paused

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._kernel.alive()
        for tp in partitions:
            part = self._parts.pop(tp.partition, None)
            if part is None:
                raise raised(KafkaError._INVALID_ARG, "not assigned")
            (self._left_paused.add if part.paused else self._left_paused.discard)(tp.partition)
            self._purge(tp.partition)

    def get_watermark_offsets(self, where: TopicPartition, timeout: float) -> tuple[int, int]:
        """Asked only to have librdkafka fetch at once, which it does here anyway."""
        self._kernel.alive()
        return 0, 0

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Prefetched records are thrown away; they are fetched again."""
        for tp in partitions:
            part = self._parts[tp.partition]
            ours = [m for m in self._buffer if m.partition() == tp.partition]
            if ours:
                part.position = ours[0].offset()
                part.eof = -1
            self._purge(tp.partition)
            part.paused = True

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._parts[tp.partition].paused = False

    def _purge(self, number: int) -> None:
        self._buffer = deque(message for message in self._buffer if message.partition() != number)

    def poll(self, timeout: float) -> Message | None:
        if self._buffer or self._something():
            self._kernel.pause()
        if not self._buffer:
            self._kernel.wait(self._something, int(timeout * 1_000_000))
            self._fetch()
        return self._buffer.popleft() if self._buffer else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        self._kernel.alive()
        return [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]

    def _something(self) -> bool:
        for number, part in self._parts.items():
            if not self._broker.reaches(self._process, self._topic, number):
                continue
            stable = self._broker.log(self._topic, number).stable
            if not part.paused and (stable > part.position or part.eof != stable):
                return True
        return False

    def _fetch(self) -> None:
        chance = self._kernel.chance
        for number in sorted(self._parts, key=lambda _: chance.random()):
            part = self._parts[number]
            if part.paused or not self._broker.reaches(self._process, self._topic, number):
                continue
            log = self._broker.log(self._topic, number)
            if part.position < log.start or part.position > log.end:
                gone = error(KafkaError._AUTO_OFFSET_RESET, "no such offset")
                self._buffer.append(Message(self._topic, number, part.position, error=gone))
                continue
            found, part.position = log.read(part.position, fetched(chance, self._fetch_records_max))
            self._buffer.extend(message_of(self._topic, number, entry) for entry in found)
            if part.position >= log.stable and part.eof != part.position:
                part.eof = part.position
                end = error(KafkaError._PARTITION_EOF, "end")
                self._buffer.append(Message(self._topic, number, part.position, error=end))
            if found and chance.random() < 0.3:
                return

    def close(self) -> None:
        self._parts = {}
