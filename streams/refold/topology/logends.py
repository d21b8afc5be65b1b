"""The ends of logs, asked for so that a moving leader is an error and never a number.

Two faults of librdkafka 2.16, both measured with a broker of three killed:

- While a partition has no leader, ``list_offsets`` answers with the offset -1001 and no error. Taken for an
  end, a takeover would find nothing to read (rule T), and batches would count as folded (rule G10).
- It sends the leader epoch that it once learnt, and goes on doing so for as long as the client lives when
  that has become an older one: FENCED_LEADER_EPOCH each time, until the topic's metadata are asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

#: What an answer says when the client's idea of who leads is out of date.
_OUT_OF_DATE: Final = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)


def offset_of(answered: Any, timeout_s: float | None = None) -> int:
    """The offset of one future of ``list_offsets``. Blocks; by default as long as the request may last.

    Raises KafkaException, also for "no leader", and TimeoutError.
    """
    offset = int(answered.result(timeout_s).offset)
    if offset < 0:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "a partition has no leader"))
    return offset


def list_ends(
    admin: AdminClient,
    asked: Mapping[TopicPartition, OffsetSpec],
    isolation: IsolationLevel,
    timeout_s: float,
) -> dict[tuple[str, int], int]:
    """(topic, partition) -> offset. Blocks for about ``timeout_s`` at most, twice that where leaders moved.

    Raises KafkaException; then the client knows the topics' leaders afresh, and asking again makes sense.
    """
    found, failed = _listed(admin, asked, isolation, timeout_s)
    if failed is not None:
        raise failed
    return found


def known_ends(
    admin: AdminClient,
    asked: Mapping[TopicPartition, OffsetSpec],
    isolation: IsolationLevel,
    timeout_s: float,
) -> dict[tuple[str, int], int]:
    """As :func:`list_ends`, without the partitions that have none to tell: for whom each stands for itself.

    Raises KafkaException where that is all of them.
    """
    found, failed = _listed(admin, asked, isolation, timeout_s)
    if failed is not None and not found:
        raise failed
    return found


def _listed(
    admin: AdminClient,
    asked: Mapping[TopicPartition, OffsetSpec],
    isolation: IsolationLevel,
    timeout_s: float,
) -> tuple[dict[tuple[str, int], int], KafkaException | None]:
    """What was answered, and one of the errors."""
    found: dict[tuple[str, int], int] = {}
    failed: KafkaException | None = None
    try:
        answer = admin.list_offsets(dict(asked), isolation_level=isolation, request_timeout=timeout_s)
    except KafkaException as raised:
        answer, failed = {}, raised
    for tp, future in answer.items():
        try:
            found[tp.topic, tp.partition] = offset_of(future)
        except KafkaException as raised:
            failed = failed or raised
    error = failed.args[0] if failed is not None and failed.args else None
    if isinstance(error, KafkaError) and error.code() in _OUT_OF_DATE:
        for topic in sorted({tp.topic for tp in asked}):
            with contextlib.suppress(KafkaException):
                admin.list_topics(topic, timeout=timeout_s)
    return found, failed


def log_ends(
    admin: AdminClient,
    partitions: Sequence[TopicPartition],
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> list[int]:
    """One past the last record of each partition, control records included, in the order given; with
    ``READ_COMMITTED`` the offset of the first record that an open transaction keeps from readers, where there
    is one. Blocks and raises as :func:`list_ends`.

    (``Consumer.get_watermark_offsets(cached=True)`` would not ask the broker, but was seen to hang with the
    interpreter held.)
    """
    found = list_ends(admin, {tp: OffsetSpec.latest() for tp in partitions}, isolation, timeout_s)
    return [found[tp.topic, tp.partition] for tp in partitions]
