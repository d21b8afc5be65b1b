"""Reading the rejected topic and sending its records to the source they came from again.

Reading is ``read_committed`` up to the end as it was when the command began; nothing is committed and no
group is joined. A replay sends the original bytes with the original key and headers to the partition of the
key, so the worker judges them again; it remembers nothing, because de-duplication makes a second replay
harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from refold.cli.rejected_records import RejectedRecord, Selection, source_topic, target_partition
from refold.core.slots import SlotMap
from refold.errors import UnavailableError
from refold.topology.failures import explain
from refold.topology.names import TopicNames
from refold.topology.reach import Reach

if TYPE_CHECKING:
    from refold.settings import Settings

#: No record and no end of a partition for this long: the cluster has stopped answering.
SILENCE_SECONDS_MAX: Final = 20.0
METADATA_SECONDS_MAX: Final = 6.0
#: Records handed over per call; each is at most 1.1 MB, so this bounds memory at about 70 MB in the worst
#: case.
BATCH: Final = 64
#: A replayed record that is not acknowledged by then is reported; replaying it again is safe.
DELIVERY_SECONDS_MAX: Final = 60.0


class RejectedTopic:
    """``with RejectedTopic(settings) as topic: for record in topic.read(selection): …``"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = TopicNames(settings.topic_prefix)
        self._bootstrap = settings.kafka.bootstrap
        self._reach = Reach(self._bootstrap)
        # Fixed at the first read: a replay that is rejected again must not be read by the same command, and
        # what was counted before asking is what is sent after.
        self._ends: dict[int, int] | None = None
        self._consumer = Consumer(
            {
                "log_level": 2,
                **settings.kafka_config("reader"),
                # librdkafka wants a name; with assign() and no commits no group is ever joined.
                "group.id": f"{settings.topic_prefix}-operator",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                # The end of a partition is reported by an empty fetch; the default lets it wait 500 ms.
                "fetch.wait.max.ms": 20,
                "error_cb": self._reach.told,
            }
        )

    def __enter__(self) -> RejectedTopic:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, selection: Selection) -> Iterator[RejectedRecord]:
        """Selected records, each partition in offset order, up to the end as of the first call. Blocks."""
        if self._ends is None:
            count = self.partitions(self._names.rejected)
            self._ends = {partition: self._end(partition) for partition in range(count)}
        ends = self._ends
        positions = self._positions(selection, ends)
        self._consumer.assign(positions)
        open_partitions = {position.partition for position in positions}
        silent_since = time.monotonic()
        while open_partitions:
            messages = self._call("reading rejected records", self._batch)
            if not messages and time.monotonic() - silent_since > SILENCE_SECONDS_MAX:
                raise UnavailableError(
                    f"{self._bootstrap} sent nothing for {SILENCE_SECONDS_MAX:.0f} s while reading"
                    f" {self._names.rejected}. Check the broker and try again."
                )
            for message in messages:
                silent_since = time.monotonic()
                error = message.error()
                if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # librdkafka looks for the coordinator of a group that is never joined; no rights are
                    # needed.
                    continue
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
                elif error is not None:
                    raise explain(error, doing="reading rejected records", bootstrap=self._bootstrap)
                elif message.offset() >= ends[message.partition()]:
                    open_partitions.discard(message.partition())
                else:
                    record = _record(message)
                    if selection.takes(record):
                        yield record

    def _batch(self) -> list[Any]:
        # consume(n, t) waits for all of t unless n records arrive, so the first is polled for.
        first = self._consumer.poll(0.5)
        return [] if first is None else [first, *self._consumer.consume(BATCH - 1, 0)]

    def partitions(self, topic: str) -> int:
        """Raises :class:`NotFound` when the topic does not exist."""
        metadata = self._reach.ask(
            f"looking for {topic}",
            lambda timeout: self._consumer.list_topics(topic, timeout=timeout),
            self._consumer.poll,
        ).topics[topic]
        if metadata.error is not None:
            raise explain(metadata.error, doing=f"looking for {topic}", bootstrap=self._bootstrap)
        return len(metadata.partitions)

    def replay(self, records: Iterable[RejectedRecord], *, on_sent: Callable[[int], None]) -> int:
        """Send ``records`` to their source again; returns how many were acknowledged. A failure raises.

        ``on_sent`` is told the count now and then.
        """
        slots = SlotMap(self.partitions(self._names.inbox))
        failures: list[KafkaError] = []
        delivered = 0

        def delivery(error: KafkaError | None, _: Any) -> None:
            nonlocal delivered
            if error is None:
                delivered += 1
            else:
                failures.append(error)

        producer = Producer(
            {
                "log_level": 2,
                **self._settings.kafka_config("producer"),
                "enable.idempotence": True,
                "message.timeout.ms": int(DELIVERY_SECONDS_MAX * 1000),
                # The inbox takes 1.1 MB; the client's own default is 1 MB.
                "message.max.bytes": 2 * 1024 * 1024,
                "error_cb": self._reach.told,
            }
        )
        for sent, record in enumerate(records, start=1):
            self._send(producer, record, slots, delivery)
            if failures:
                break
            if sent % 1_000 == 0:
                on_sent(sent)
        left = producer.flush(DELIVERY_SECONDS_MAX)
        if failures:
            raise explain(failures[0], doing="replaying rejected records", bootstrap=self._bootstrap)
        if left:
            raise UnavailableError(
                f"{left} records were not acknowledged in {DELIVERY_SECONDS_MAX:.0f} s; {delivered} were. Run"
                " the replay again: what arrived already is recognised as a duplicate."
            )
        return delivered

    def _send(
        self, producer: Producer, record: RejectedRecord, slots: SlotMap, delivery: Callable[..., None]
    ) -> None:
        while True:
            try:
                producer.produce(
                    source_topic(record, self._names),
                    value=record.value,
                    key=record.key,
                    headers=record.original_headers,
                    partition=target_partition(record, slots),
                    on_delivery=delivery,
                )
            except BufferError:
                producer.poll(0.1)  # full: wait for acknowledgements
                continue
            except KafkaException as err:
                raise explain(err, doing=f"replaying {record.reference}", bootstrap=self._bootstrap) from err
            producer.poll(0)
            return

    def _positions(self, selection: Selection, ends: Mapping[int, int]) -> list[TopicPartition]:
        """Where to start in every partition that can hold something selected."""
        topic = self._names.rejected
        if selection.references:
            wanted: dict[int, int] = {}
            for reference in selection.references:
                partition, offset = (int(part) for part in reference.split("/"))
                if offset < ends.get(partition, 0):
                    wanted[partition] = min(offset, wanted.get(partition, offset))
            return [TopicPartition(topic, partition, offset) for partition, offset in sorted(wanted.items())]
        filled = [partition for partition, end in ends.items() if end > 0]
        if selection.since_ms is None:
            return [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in filled]
        asked = [TopicPartition(topic, partition, selection.since_ms) for partition in filled]
        return list(
            self._call(
                "looking up offsets by time",
                lambda: self._consumer.offsets_for_times(asked, timeout=METADATA_SECONDS_MAX),
            )
        )

    def _end(self, partition: int) -> int:
        _, high = self._call(
            "looking up the end",
            lambda: self._consumer.get_watermark_offsets(
                TopicPartition(self._names.rejected, partition), timeout=METADATA_SECONDS_MAX
            ),
        )
        return int(high)

    def _call(self, doing: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KafkaException as err:
            raise self._reach.explain(doing, err, self._consumer.poll) from err


def _record(message: Any) -> RejectedRecord:
    kind, timestamp = message.timestamp()
    headers = message.headers() or []
    return RejectedRecord(
        partition=message.partition(),
        offset=message.offset(),
        time_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        key=message.key(),
        value=message.value(),
        headers=tuple((name, b"" if value is None else bytes(value)) for name, value in headers),
    )
