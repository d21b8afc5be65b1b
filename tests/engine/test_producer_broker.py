"""The producer on a real broker: what readers see of commits and aborts, where it is, and what each refusal
leaves behind."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from engine.producer_world import (
    ANSWER_S_MAX,
    committed,
    flushed,
    noting,
    patiently,
    producer,
    settled,
    topics,
    unjoined,
    visible,
)
from refold.broker import EmbeddedBroker
from refold.engine.producer.producer import WireProducer
from refold.protocol.dialect import FIRST, SECOND, Dialect
from refold.testing.kafka import Kafka
from refold.topology.logends import log_ends

pytestmark = pytest.mark.broker


def values(found: list[tuple[int, bytes | None]]) -> list[bytes | None]:
    return [value for _, value in found]


def error_of(raised: pytest.ExceptionInfo[KafkaException]) -> KafkaError:
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def works(made: WireProducer, kafka: Kafka, topic: str, before: list[bytes]) -> None:
    """The producer can go on after an abort."""
    made.begin_transaction()
    made.produce(topic, b"works", b"k", 0)
    patiently(made.commit_transaction, 5.0)
    assert values(settled(kafka.bootstrap, topic, 0, len(before) + 1)) == [*before, b"works"]


def test_commits_are_seen_in_order_aborts_are_not_and_callbacks_say_where(
    kafka: Kafka, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(kafka.bootstrap, topic)
    made = producer(kafka.bootstrap, topic)
    told: dict[bytes, int] = {}

    def send(turn: int) -> None:
        made.begin_transaction()
        for number in range(50):
            for partition in (0, 1):
                value = b"%d-%d-%d" % (partition, turn, number)
                made.produce(topic, value, None, partition, noting(told, value))
        flushed(made, 5.0)

    for turn in range(6):
        send(turn)
        if turn % 2:
            patiently(made.abort_transaction, 5.0)
        else:
            patiently(made.commit_transaction, 5.0)
    for partition in (0, 1):
        found = settled(kafka.bootstrap, topic, partition, 150)
        assert values(found) == [b"%d-%d-%d" % (partition, t, n) for t in (0, 2, 4) for n in range(50)]
        assert [told[value or b""] for _, value in found] == [offset for offset, _ in found]


def test_keys_headers_tombstones_and_empty_values_arrive_as_they_are(kafka: Kafka, topic_prefix: str) -> None:
    topic = f"{topic_prefix}t"
    topics(kafka.bootstrap, topic)
    made = producer(kafka.bootstrap, topic)
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b"k", b"v", [("a", b"1"), ("a", b""), ("b", None), ("ü", b"\0\xff")]),
        (b"k", None, []),
        (None, b"", []),
        (b"", b"\0" * 300, []),
    ]
    made.begin_transaction()
    for key, value, headers in records:
        made.produce(topic, value, key, 0, headers=headers)
    made.produce(topic, b"none", b"k", 0)
    patiently(made.commit_transaction, 5.0)
    settled(kafka.bootstrap, topic, 0, 5)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": "r", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.consume(5, ANSWER_S_MAX)
    finally:
        consumer.close()
    assert [(m.key(), m.value(), m.headers() or []) for m in found] == [*records, (b"k", b"none", [])]


def test_five_megabytes_of_one_partition_are_several_batches_in_order(
    kafka: Kafka, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(kafka.bootstrap, topic)
    made = producer(kafka.bootstrap, topic)
    offsets: list[int] = []
    made.begin_transaction()
    for number in range(500):
        made.produce(topic, b"%08d" % number * 1_250, b"k", 0, lambda _, m: offsets.append(m.offset()))
    # One that fills a batch alone.
    made.produce(topic, b"!" * 900_000, b"k", 0, lambda _, m: offsets.append(m.offset()))
    patiently(made.commit_transaction, 5.0)
    found = settled(kafka.bootstrap, topic, 0, 501)
    assert [value[:8] for _, value in found if value] == [
        *(b"%08d" % number for number in range(500)),
        b"!" * 8,
    ]
    assert offsets == [offset for offset, _ in found] == list(range(501))


def test_a_record_too_large_for_the_topic_fails_the_transaction_and_no_other(
    kafka: Kafka, topic_prefix: str
) -> None:
    topic, other = f"{topic_prefix}t", f"{topic_prefix}other"
    topics(kafka.bootstrap, topic, config={"max.message.bytes": "2000"})
    topics(kafka.bootstrap, other)
    made = producer(kafka.bootstrap, topic)
    told: list[Any] = []
    made.begin_transaction()
    made.produce(other, b"with it", b"k", 0)
    # Not to be compressed to less.
    made.produce(topic, random.Random(1).randbytes(9_000), b"k", 0, lambda e, _: told.append(e))
    made.flush(5.0)
    with pytest.raises(KafkaException) as raised:
        made.commit_transaction(5.0)
    error = error_of(raised)
    assert (error.code(), error.txn_requires_abort(), error.fatal()) == (
        KafkaError.MSG_SIZE_TOO_LARGE,
        True,
        False,
    )
    assert [one.code() for one in told] == [KafkaError.MSG_SIZE_TOO_LARGE]
    patiently(made.abort_transaction, 5.0)
    works(made, kafka, topic, [])
    assert visible(kafka.bootstrap, other, 0) == []


def test_a_record_above_our_own_limit_is_refused_at_once(kafka: Kafka, topic_prefix: str) -> None:
    topic = f"{topic_prefix}t"
    topics(kafka.bootstrap, topic)
    made = producer(kafka.bootstrap, topic, message_bytes_max=10)
    made.begin_transaction()
    made.produce(topic, b"before", b"k", 0)
    with pytest.raises(KafkaException) as raised:
        made.produce(topic, b"x" * 10, b"k", 0)
    assert error_of(raised).code() == KafkaError.MSG_SIZE_TOO_LARGE
    patiently(made.abort_transaction, 5.0)
    works(made, kafka, topic, [])


def test_offsets_and_their_metadata_are_read_back_byte_for_byte(kafka: Kafka, topic_prefix: str) -> None:
    """Every length: librdkafka reads beyond the end of metadata that has no NUL."""
    topic, group = f"{topic_prefix}t", f"{topic_prefix}g"
    topics(kafka.bootstrap, topic)
    made, meta = producer(kafka.bootstrap, topic, group=group), unjoined(kafka.bootstrap, group)
    reader = Consumer({
        "bootstrap.servers": kafka.bootstrap, "group.id": group, "isolation.level": "read_committed",
    })  # fmt: skip
    try:
        for length in range(1, 501):
            text = "".join(chr(97 + at % 26) for at in range(length - 1)) + "ü"
            made.begin_transaction()
            sent = [TopicPartition(topic, number, length * 10 + number, text) for number in (0, 1)]
            patiently(made.send_offsets_to_transaction, sent, meta, 5.0)
            patiently(made.commit_transaction, 5.0)
            if length % 10 == 0 or length < 40:
                found = reader.committed(sent, timeout=ANSWER_S_MAX)
                assert [(at.offset, at.metadata) for at in found] == [(at.offset, text) for at in sent]
    finally:
        reader.close()


def test_offsets_of_an_abort_are_not_committed(kafka: Kafka, topic_prefix: str) -> None:
    topic, group = f"{topic_prefix}t", f"{topic_prefix}g"
    topics(kafka.bootstrap, topic)
    made, meta = producer(kafka.bootstrap, topic, group=group), unjoined(kafka.bootstrap, group)
    for offset, end in ((1, made.commit_transaction), (2, made.abort_transaction)):
        made.begin_transaction()
        patiently(
            made.send_offsets_to_transaction, [TopicPartition(topic, 0, offset, str(offset))], meta, 5.0
        )
        patiently(end, 5.0)
    at = committed(kafka.bootstrap, group, TopicPartition(topic, 0))
    assert (at.offset, at.metadata) == (1, "1")


@pytest.mark.parametrize(
    ("member", "generation", "code"),
    [
        (None, 7, KafkaError.ILLEGAL_GENERATION),
        (b"somebody-else", None, KafkaError.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_is_not_a_member_any_more_commits_nothing(
    kafka: Kafka, topic_prefix: str, member: bytes | None, generation: int | None, code: int
) -> None:
    topic, group = f"{topic_prefix}t", f"{topic_prefix}g"
    topics(kafka.bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    try:
        while not consumer.assignment():
            consumer.poll(0.1)
        meta = bytes(consumer.consumer_group_metadata())
        made = producer(kafka.bootstrap, topic, group=group)
        head, rest = meta[:7], meta[7:]
        parts = rest[4:].split(b"\0")
        if member is not None:
            parts[1] = member
        number = rest[:4] if generation is None else generation.to_bytes(4, "little", signed=True)
        stale = head + number + b"\0".join(parts)
        made.begin_transaction()
        with pytest.raises(KafkaException) as raised:
            patiently(made.send_offsets_to_transaction, [TopicPartition(topic, 0, 5, "m")], stale, 5.0)
        error = error_of(raised)
        assert (error.code(), error.txn_requires_abort(), error.fatal()) == (code, True, False)
        with pytest.raises(KafkaException) as raised:
            made.commit_transaction(5.0)
        assert error_of(raised).code() == code
        patiently(made.abort_transaction, 5.0)
        made.begin_transaction()
        patiently(made.send_offsets_to_transaction, [TopicPartition(topic, 0, 6, "m")], meta, 5.0)
        patiently(made.commit_transaction, 5.0)
    finally:
        consumer.close()
    assert committed(kafka.bootstrap, group, TopicPartition(topic, 0)).offset == 6


@pytest.mark.parametrize("dialect", [pytest.param(FIRST, id="first"), pytest.param(SECOND, id="second")])
@pytest.mark.parametrize("step", ["offsets", "records", "old records", "commit", "abort"])
def test_a_second_producer_fences_the_first_and_is_not_disturbed_by_it(
    kafka: Kafka, topic_prefix: str, step: str, dialect: Dialect
) -> None:
    topic, group = f"{topic_prefix}t", f"{topic_prefix}g"
    topics(kafka.bootstrap, topic)
    first = producer(kafka.bootstrap, topic, dialect=dialect, group=group)
    meta = unjoined(kafka.bootstrap, group)
    first.begin_transaction()
    first.produce(topic, b"first", b"k", 0)
    flushed(first, 5.0)
    second = producer(kafka.bootstrap, topic, dialect=dialect, group=group)
    second.begin_transaction()
    second.produce(topic, b"second", b"k", 1)
    flushed(second, 5.0)

    def fenced() -> None:
        if step == "offsets":
            try:
                patiently(first.send_offsets_to_transaction, [TopicPartition(topic, 0, 1, "m")], meta, 5.0)
            except KafkaException as refused:
                # In the second dialect by the group's coordinator, who is not the one to fence.
                if dialect is FIRST or not refused.args[0].txn_requires_abort():
                    raise
        if "records" in step:
            # To a partition that is in the transaction it is the leader who refuses.
            first.produce(topic, b"more", b"k", 0 if step == "old records" else 1)
            first.flush(5.0)
        if step == "commit":
            patiently(first.commit_transaction, 5.0)
        patiently(first.abort_transaction, 5.0)

    with pytest.raises(KafkaException) as raised:
        fenced()
    assert error_of(raised).fatal()
    for call in (first.begin_transaction, lambda: first.commit_transaction(1.0)):
        with pytest.raises(KafkaException) as raised:
            call()
        assert error_of(raised).fatal()
    patiently(second.commit_transaction, 5.0)
    assert values(settled(kafka.bootstrap, topic, 1, 1)) == [b"second"]
    assert visible(kafka.bootstrap, topic, 0) == []


def test_a_topic_that_is_not_there_is_waited_for_and_can_be_aborted(kafka: Kafka, topic_prefix: str) -> None:
    topic, missing = f"{topic_prefix}t", f"{topic_prefix}missing"
    topics(kafka.bootstrap, topic)
    made = producer(kafka.bootstrap, topic)
    made.begin_transaction()
    made.produce(topic, b"with it", b"k", 0)
    made.produce(missing, b"lost", b"k", 0)
    began = time.monotonic()
    assert made.flush(0.5) > 0
    assert time.monotonic() - began < 5.0
    with pytest.raises(KafkaException) as raised:
        made.commit_transaction(0.2)
    assert error_of(raised).retriable()
    patiently(made.abort_transaction, 5.0)
    works(made, kafka, topic, [])


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Its own broker: to be killed, and to look for transactions that took too long every 200 ms."""
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka"), properties=properties) as broker:
        yield broker


@pytest.mark.slow
def test_a_transaction_that_took_too_long_is_never_committed(
    mortal: EmbeddedBroker, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(mortal.bootstrap, topic)
    made = producer(mortal.bootstrap, topic, timeout_ms=1_000)
    made.begin_transaction()
    made.produce(topic, b"late", b"k", 0)
    flushed(made, 5.0)
    admin, place = AdminClient({"bootstrap.servers": mortal.bootstrap}), TopicPartition(topic, 0)
    end = time.monotonic() + 60
    # The coordinator has given it up: the record and an abort's marker.
    while log_ends(admin, [place], 10, IsolationLevel.READ_COMMITTED) != [2] and time.monotonic() < end:
        time.sleep(0.1)
    with pytest.raises(KafkaException) as raised:
        patiently(made.commit_transaction, 5.0)
    error = error_of(raised)
    assert error.fatal() or error.txn_requires_abort()
    after = producer(mortal.bootstrap, topic)
    after.begin_transaction()
    after.produce(topic, b"next", b"k", 0)
    patiently(after.commit_transaction, 5.0)
    assert values(settled(mortal.bootstrap, topic, 0, 1)) == [b"next"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["begun", "offsets sent", "records handed over", "records in"])
def test_a_broker_killed_in_a_transaction_and_started_again_has_each_record_once(
    mortal: EmbeddedBroker, topic_prefix: str, when: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(mortal.bootstrap, topic)
    made, meta = producer(mortal.bootstrap, topic), unjoined(mortal.bootstrap)

    def kill(now: str) -> None:
        if number == 1 and now == when:
            mortal.kill()
            assert made.flush(0.01) >= 0
            mortal.start()

    for number in range(3):
        patiently(made.begin_transaction)
        kill("begun")
        patiently(made.send_offsets_to_transaction, [TopicPartition(topic, 0, number, "m")], meta, 1.0)
        kill("offsets sent")
        for record in range(20):
            for partition in (0, 1):
                made.produce(topic, b"%d-%d" % (number, record), b"k", partition)
        kill("records handed over")
        flushed(made, 1.0)
        kill("records in")
        patiently(made.commit_transaction, 1.0)
    for partition in (0, 1):
        found = settled(mortal.bootstrap, topic, partition, 60)
        assert values(found) == [b"%d-%d" % (n, r) for n in range(3) for r in range(20)]
    assert committed(mortal.bootstrap, "g", TopicPartition(topic, 0)).offset == 2
