"""Rulings read from the topics, where no owner answers: what is written, and what cannot be told yet."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from refold.client.fallback import Fallback
from refold.client.reader import ReaderPool
from refold.client.sender import Delivery
from refold.core.envelope import Envelope
from refold.engine import made
from refold.engine.chunks import Record
from refold.testing.kafka import Kafka
from refold.topology.names import TopicNames
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.journal import journal_value
from refold.wire.owner import RulingLine

pytestmark = pytest.mark.broker

#: The inbox record that is asked for.
PARTITION, OFFSET = 0, 41


class Committed:
    """The group's offset: behind the record."""

    async def committed(self, partition: int) -> int | None:
        return OFFSET + 1


@pytest.fixture
def names(kafka: Kafka, topic_prefix: str) -> TopicNames:
    made_names = TopicNames(topic_prefix.strip("-"))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [NewTopic(name, 1, 1) for name in (made_names.journal, made_names.rejected)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    return made_names


@pytest.fixture
def worker(kafka: Kafka) -> Producer:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def journal(producer: Producer, names: TopicNames, env: Envelope, seq: int = 1) -> None:
    value = journal_value(seq, 1, PARTITION, OFFSET, decode_envelope(encode_envelope(env)))
    producer.produce(names.journal, value, b"t/s", partition=0)


def reject(producer: Producer, names: TopicNames, code: str) -> None:
    origin = f"{names.inbox}/{PARTITION}/{OFFSET}".encode()
    headers = [("refold-origin", origin), ("refold-code", code.encode()), ("refold-reason", b"why")]
    producer.produce(names.rejected, b"x", b"t/s", headers=headers, partition=0)


async def ask(kafka: Kafka, names: TopicNames, offset: int = OFFSET) -> RulingLine | None:
    pool = ReaderPool({"bootstrap.servers": kafka.bootstrap})
    try:
        directory: Any = Committed()
        delivery = Delivery(PARTITION, offset, time.time_ns() // 1_000_000)
        return await Fallback(pool, directory, names).ruling(delivery)
    finally:
        await pool.close()


def event(kind: str) -> Envelope:
    return Envelope(event_id="e", tenant="t", session="s", type=kind, event_time_ms=1, payload=b"")


@pytest.mark.parametrize("rejected", [True, False])
async def test_what_is_committed_and_not_yet_visible_is_waited_for(
    kafka: Kafka, names: TopicNames, worker: Producer, rejected: bool
) -> None:
    """Goal: the group's offset of a commit may be seen before its records are, whose markers are written one
    by one. A refusal that is not yet visible is not taken for a duplicate: a start that was refused would be
    run."""
    if rejected:
        reject(worker, names, "illegal_transition")
    else:
        journal(worker, names, event("ToolCallStarted"), seq=7)
    worker.flush(30)
    asked = asyncio.ensure_future(ask(kafka, names))
    _, pending = await asyncio.wait({asked}, timeout=1.0)
    assert pending
    await asyncio.to_thread(worker.commit_transaction, 30)
    line = await asked
    assert line is not None
    assert (line.status, line.code) == (
        ("rejected", "illegal_transition") if rejected else ("accepted", None)
    )


async def test_a_parked_event_is_not_accepted(kafka: Kafka, names: TopicNames, worker: Producer) -> None:
    """Goal: the worker's own notes stand in the journal at the record's place; what happened to the record is
    in the rejected topic."""
    record = Record(PARTITION, OFFSET, 1, b"t/s", b"x", ())
    for seq, (note, _) in enumerate(
        (
            made.quarantine(record, "t", "s", "e", ValueError()),
            made.parked(record, "t", "s", "e"),
        ),
        start=5,
    ):
        journal(worker, names, note, seq)
    reject(worker, names, "quarantined")
    await asyncio.to_thread(worker.commit_transaction, 30)
    line = await ask(kafka, names)
    assert line is not None
    assert (line.status, line.code) == ("rejected", "quarantined")


async def test_neither_accepted_nor_refused_is_a_duplicate(
    kafka: Kafka, names: TopicNames, worker: Producer
) -> None:
    """Goal: the record behind it was refused, so the end of the topics has been seen."""
    reject(worker, names, "conflict")
    await asyncio.to_thread(worker.commit_transaction, 30)
    line = await ask(kafka, names, OFFSET - 1)
    assert line is not None
    assert (line.status, line.seq) == ("duplicate", 0)
