"""What becomes of a record that was handed to Kafka, and how a failure is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from confluent_kafka import KafkaError

from refold.errors import ConfigError, PermissionDenied, RefoldError, TransientError, UsageError
from refold.missing import no_topic

Header: TypeAlias = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a record lies. ``append_time_ms`` is the broker's time of the append."""

    partition: int
    offset: int
    append_time_ms: int


Outcome: TypeAlias = Delivery | RefoldError
Tell: TypeAlias = Callable[[Outcome], None]

#: Topic, key, value, headers, partition, and who is told what became of it.
Record: TypeAlias = tuple[str, bytes, bytes, Sequence[Header], int, Tell]

#: What is known of a record on the thread that learnt it; Kafka's own errors with the topic.
Known: TypeAlias = Delivery | RefoldError | tuple[KafkaError, str]


def too_large(topic: str, size: int | None) -> UsageError:
    what = "the event" if size is None else f"the event of {size} bytes"
    return UsageError(
        f"{what} is larger than topic {topic!r} or this producer takes (max.message.bytes, "
        "message.max.bytes); not written. Large text and data go to the blob store by themselves: "
        "what is left is too much for one event, split it"
    )


def delivery_failure(error: KafkaError, topic: str) -> RefoldError:
    code = error.code()
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
        return too_large(topic, None)
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return PermissionDenied(
            f"Kafka refuses to let this principal write to {topic!r}: grant WRITE on it (and "
            "IDEMPOTENT_WRITE on clusters before 2.8); not written"
        )
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
        return ConfigError(f"{no_topic(topic)}; not written")
    if code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
        return TransientError("the client was closed before the event was acknowledged: outcome unknown")
    return outcome_unknown(str(error.str()))


def outcome_unknown(why: str) -> TransientError:
    return TransientError(
        f"the event was not acknowledged ({why}): outcome unknown, it may or may not be written; "
        "sending the same event again is safe, it is absorbed if it was: `retry()` of its session does that"
    )
