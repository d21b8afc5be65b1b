"""What a Kafka error means to whoever reads it, and whether the engine tries again."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from refold.engine.takeover import ensure_retry
from refold.topology.failures import explain


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_COORDINATOR,
        KafkaError._NOENT,
        KafkaError._TRANSPORT,
    ],
)
def test_what_a_moving_leader_answers_is_tried_again(code: int) -> None:
    """Goal: a takeover survives a broker's restart. `refold verify chaos --broker-restarts` found workers
    ended by a leader epoch that was older than the broker's, as if somebody had used them wrongly."""
    assert ensure_retry(explain(KafkaError(code), doing="reading", bootstrap="127.0.0.1:1"))
