"""Kafka's error codes as the producer treats them, and as the transactor is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException

#: Where to ask is not known (any more): look again, then ask again.
MOVED: Final = frozenset({
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.KAFKA_STORAGE_ERROR,
})  # fmt: skip

#: Ask the same again a little later.
LATER: Final = frozenset({
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.OPERATION_NOT_ATTEMPTED,
})  # fmt: skip

AGAIN: Final = MOVED | LATER

#: Another process has our transactional id, or the coordinator has given this epoch up: nothing that this
#: producer sends is taken any more. A stale epoch told by a *partition* is not among them: the coordinator
#: knows (:meth:`refold.engine.producer.producer.WireProducer.abort_transaction`).
FENCED: Final = frozenset({
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
})  # fmt: skip


def worst(codes: Sequence[int]) -> int:
    """Of an answer's codes the one that decides, 0 where there is none. A partition that is refused is what
    the others were not attempted for, and asking again would not help."""
    wrong = [code for code in codes if code]
    for code in wrong:
        if code not in AGAIN:
            return code
    return next((code for code in wrong if code != KafkaError.OPERATION_NOT_ATTEMPTED), max(wrong, default=0))


def fatal(code: int, doing: str) -> KafkaException:
    return KafkaException(KafkaError(code, f"{doing}: {text_of(code)}", fatal=True))


def abortable(code: int, doing: str) -> KafkaException:
    """The transaction cannot be committed; the producer can go on after an abort."""
    return KafkaException(KafkaError(code, f"{doing}: {text_of(code)}", txn_requires_abort=True))


def timed_out(doing: str, why: str) -> KafkaException:
    """The outcome is not known, or nothing has happened: call again."""
    said = f"{doing}: no answer in time" + (f" ({why})" if why else "")
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, said, retriable=True))


def text_of(code: int) -> str:
    return str(KafkaError(code).str())
