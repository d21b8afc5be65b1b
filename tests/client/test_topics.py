"""Bounded and bulk reads against a real broker: transactions, markers, aborted records, restart points."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from engine.cluster import wait_for
from refold.client.bulk import batches
from refold.client.positions import Position
from refold.client.reader import Reader, ReaderPool
from refold.client.routing import Directory
from refold.client.sender import Sender
from refold.errors import ConfigError, NotFound, TransientError, UsageError
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker


@pytest.fixture
def topic(kafka: Kafka, topic_prefix: str) -> str:
    name = f"{topic_prefix}t"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(name, 2, 1)]).values():
        future.result(30)
    return name


@pytest.fixture
def config(kafka: Kafka) -> dict[str, str]:
    return {"bootstrap.servers": kafka.bootstrap}


@pytest.fixture
def reader(config: dict[str, str]) -> Iterator[Reader]:
    made = Reader(config)
    yield made
    made.close()


def writer(kafka: Kafka) -> Producer:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0}
    )
    producer.init_transactions(30)
    return producer


def transaction(
    producer: Producer, topic: str, *values: str, partition: int = 0, end: str = "commit"
) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, value.partition(":")[0], partition=partition)
    producer.flush(30)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)


async def read_all(config: dict[str, str], topic: str, since: Position | None = None) -> list[str]:
    start = since or Position(topic, {})
    found = []
    async with aclosing(batches(config, topic, start, follow=False)) as source:
        async for batch in source:
            found += [message.value().decode() for message in batch.records]
    return found


async def test_bulk_ends_behind_markers_and_skips_aborted_records(
    kafka: Kafka, config: dict[str, str], topic: str
) -> None:
    """Goal: the end is the log end as of the start, although markers and aborted records are last."""
    producer = writer(kafka)
    transaction(producer, topic, "a:1", "b:1")
    transaction(producer, topic, "x:1", "x:2", end="abort")
    transaction(producer, topic, "a:2", partition=1)
    assert sorted(await read_all(config, topic)) == ["a:1", "a:2", "b:1"]
    assert await read_all(config, topic, Position(topic, {0: 2})) == ["a:2"]


async def test_bulk_waits_for_what_was_committed_behind_an_open_transaction(
    kafka: Kafka, config: dict[str, str], topic: str
) -> None:
    """Goal: end-of-partition at the last stable offset is not taken for the end."""
    slow, fast = writer(kafka), writer(kafka)
    transaction(slow, topic, "slow:1", end="leave open")
    transaction(fast, topic, "fast:1")
    reading = asyncio.ensure_future(read_all(config, topic))
    _, pending = await asyncio.wait({reading}, timeout=1.0)
    assert pending
    await asyncio.to_thread(slow.commit_transaction, 30)
    assert sorted(await reading) == ["fast:1", "slow:1"]


async def test_every_position_is_a_restart_point(kafka: Kafka, config: dict[str, str], topic: str) -> None:
    """Goal: from any record's position exactly the later records follow, also through JSON."""
    producer = writer(kafka)
    values = [f"{n}:x" for n in range(30)]
    for n in range(0, 30, 3):
        transaction(producer, topic, *values[n : n + 3], partition=(n // 3) % 2)
    seen: list[tuple[str, Position]] = []
    async with aclosing(batches(config, topic, Position(topic, {}), follow=False)) as source:
        async for batch in source:
            for index, message in batch:
                seen.append((message.value().decode(), batch.position(index)))
    assert sorted(value for value, _ in seen) == sorted(values)
    for cut in (0, 7, 29):
        position = Position.from_json(seen[cut][1].to_json())
        rest = await read_all(config, topic, position)
        assert sorted(rest) == sorted(value for value, _ in seen[cut + 1 :])


async def test_follow_goes_on(kafka: Kafka, config: dict[str, str], topic: str) -> None:
    producer = writer(kafka)
    transaction(producer, topic, "a:1")
    async with aclosing(batches(config, topic, Position(topic, {}), follow=True)) as source:
        assert (await anext(source)).records[0].value() == b"a:1"
        waiting = asyncio.ensure_future(anext(source))
        _, pending = await asyncio.wait({waiting}, timeout=0.3)
        assert pending
        transaction(producer, topic, "a:2")
        assert (await waiting).records[0].value() == b"a:2"


async def test_a_position_of_a_recreated_topic_is_refused(
    kafka: Kafka, config: dict[str, str], topic: str
) -> None:
    with pytest.raises(NotFound, match="recreated"):
        await read_all(config, topic, Position(topic, {0: 1000}))


def test_seeking_finds_exactly_the_offsets_asked_for(kafka: Kafka, reader: Reader, topic: str) -> None:
    """Goal: scattered offsets, with markers and aborted records between them, come back in order."""
    producer = writer(kafka)
    offsets = {}
    at = 0
    for n in range(60):
        transaction(producer, topic, f"{n}:v", end="abort" if n % 7 == 3 else "commit")
        if n % 7 != 3:
            offsets[n] = at
        at += 2  # The record and its marker.
    wanted = [offsets[n] for n in (0, 1, 2, 20, 41, 58)]
    found = reader.at(topic, 0, wanted)
    assert [m.value() for m in found] == [b"0:v", b"1:v", b"2:v", b"20:v", b"41:v", b"58:v"]
    assert [m.offset() for m in found] == wanted
    with pytest.raises(NotFound, match="no record at offset"):
        reader.at(topic, 0, [offsets[0] + 1])


def test_a_sweep_stops_where_it_is_told_or_at_the_end(kafka: Kafka, reader: Reader, topic: str) -> None:
    producer = writer(kafka)
    transaction(producer, topic, *(f"{n}:v" for n in range(20)))
    seen: list[bytes | None] = []

    def take(message: object) -> bool:
        seen.append(message.value())  # type: ignore[attr-defined]
        return len(seen) < 5

    reader.sweep(topic, 0, 10, take)
    assert seen == [b"10:v", b"11:v", b"12:v", b"13:v", b"14:v"]
    seen.clear()
    reader.sweep(topic, 0, 18, lambda m: seen.append(m.value()) or True)  # type: ignore[func-returns-value]
    assert seen == [b"18:v", b"19:v"]
    seen.clear()
    reader.sweep(topic, 1, 0, lambda m: seen.append(m.value()) or True)  # type: ignore[func-returns-value]
    assert seen == []


def test_a_blocked_read_says_why(
    kafka: Kafka, reader: Reader, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.reader.READ_STALL_S", 1.0)
    producer = writer(kafka)
    transaction(producer, topic, "a:1", end="leave open")
    with pytest.raises(TransientError, match="open transaction"):
        reader.at(topic, 0, [0])
    producer.abort_transaction(30)


def test_offsets_by_time(kafka: Kafka, reader: Reader, topic: str) -> None:
    producer = writer(kafka)
    transaction(producer, topic, "a:1")
    assert reader.offset_at(topic, 0, 0) == 0
    wait_for("the transaction's marker", lambda: reader.end(topic, 0)[1] == 2)
    assert reader.offset_at(topic, 0, int(time.time() * 1000) + 60_000) == reader.end(topic, 0)[1]


def test_what_becomes_readable_while_an_offset_is_looked_up_is_not_skipped(
    kafka: Kafka, reader: Reader, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: "nothing since then" and the end are two questions; what is committed between them lies before
    the end and would never be read. Method: the transaction ends just then."""
    producer = writer(kafka)
    transaction(producer, topic, "a:1", end="leave open")
    end_of, ends = reader.end, []

    def after_the_commit(topic: str, partition: int, timeout_s: float) -> tuple[int, int]:
        producer.commit_transaction(30)
        wait_for("its marker", lambda: end_of(topic, 0)[1] == 2)
        ends.append(end_of(topic, partition, timeout_s))
        return ends[-1]

    monkeypatch.setattr(reader, "end", after_the_commit)
    assert reader.offset_at(topic, 0, 0) == 0
    assert ends == [(0, 2)]


async def test_readers_are_reused_and_closed(config: dict[str, str], topic: str) -> None:
    pool = ReaderPool(config)
    readers = {id(await pool.run(lambda reader: reader)) for _ in range(5)}
    assert len(readers) == 1
    await pool.close()


async def test_the_sender_delivers_in_batches_and_names_a_missing_topic(
    config: dict[str, str], topic: str
) -> None:
    assert await Directory(config, "g", topic, 10).partition_count(10) == 2
    with pytest.raises(ConfigError, match="topology apply"):
        await Directory(config, "g", topic + "-missing", 10).partition_count(10)
    sender = Sender(config, delivery_timeout_ms=10_000)
    try:
        sent = await asyncio.gather(
            *(sender.send(topic, b"k", b"%d" % n, (("h", b"v"),), 1) for n in range(500))
        )
        assert [d.offset for d in sent] == list(range(500))
        assert {d.partition for d in sent} == {1}
        assert all(abs(d.append_time_ms - time.time() * 1000) < 60_000 for d in sent)
        with pytest.raises(UsageError, match="split it"):
            # Random: what compresses is taken, the topic's limit counts what is sent.
            await sender.send(topic, b"k", os.urandom(2_000_000), (), 0)
    finally:
        await sender.close(10)


async def test_an_unreachable_cluster_fails_in_time() -> None:
    """Goal: an append that cannot become durable fails with "outcome unknown" after the delivery timeout."""
    sender = Sender({"bootstrap.servers": "127.0.0.1:9"}, delivery_timeout_ms=500)
    try:
        with pytest.raises(TransientError, match="outcome unknown"):
            await sender.send("t", b"k", b"v", (), 0)
    finally:
        await sender.close(1)
