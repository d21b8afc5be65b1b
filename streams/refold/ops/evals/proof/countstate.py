"""What the evals topic holds of a batch, read with confluent-kafka and fastavro alone."""

from __future__ import annotations

import io
import json
import time
import uuid
from typing import Any, Final

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from refold.errors import UnavailableError
from refold.ops.evals.proof.judging import Count, Observed, Row
from refold.wire.schemas import registry

READ_SECONDS_MAX: Final = 60.0
MAGIC_BYTES: Final = 5


def observe_topic(config: dict[str, Any], topic: str, batch: str) -> Observed:
    """Every record of the batch, committed ones only, to the high watermark of every partition. Blocks."""
    schemas = {
        entry.frame: (subject, fastavro.parse_schema(json.loads(entry.text)))
        for subject in ("refold.EvalResult", "refold.EvalCursor")
        for entry in (registry().get(subject),)
    }
    base = {"log_level": 2, **config, "group.id": f"refold-proof-{uuid.uuid4().hex}"}
    ends = _ends({**base, "isolation.level": "read_uncommitted"}, topic)
    consumer = Consumer(
        {
            **base,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    seen = Observed()
    left = {partition: end for partition, end in ends.items() if end > 0}
    deadline = time.monotonic() + READ_SECONDS_MAX
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            if time.monotonic() > deadline:
                raise UnavailableError(f"{topic} could not be read to its end in {READ_SECONDS_MAX:g} s")
            message = consumer.poll(0.2)
            if message is None:
                continue
            partition, error = message.partition(), message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if message.offset() >= left.get(partition, 0):
                    left.pop(partition, None)
                continue
            value = message.value()
            if value is None or not (message.key() or b"").startswith(f"{batch}/".encode()):
                continue
            subject, schema = schemas[value[:MAGIC_BYTES]]
            _take(seen, subject, fastavro.schemaless_reader(io.BytesIO(value[MAGIC_BYTES:]), schema))
    finally:
        consumer.close()
    return seen


def _take(seen: Observed, subject: str, record: Any) -> None:
    if subject == "refold.EvalCursor":
        seen.cursor = Count(record["samples"], record["done"], record["failed"])
        seen.history.append(seen.cursor)
        return
    result = record["result"]
    row = Row(
        record["sample"],
        record["position"],
        record["status"],
        record["attempts"],
        None if result is None else result.decode(),
    )
    seen.rows[row.sample] = row
    seen.history.append(row)


def _ends(config: dict[str, Any], topic: str) -> dict[int, int]:
    consumer = Consumer(config)
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]
            for partition in partitions
        }
    finally:
        consumer.close()
