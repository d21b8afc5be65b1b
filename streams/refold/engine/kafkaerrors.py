"""Rule A as data: what a Kafka error during a transaction means for the engine.

The text for people is in ``refold.topology.failures``; here the code decides.
"""

from __future__ import annotations

import enum
from typing import Final

from confluent_kafka import KafkaError, KafkaException


class Verdict(enum.Enum):
    #: The outcome of the call is unknown or it may be repeated: call it again, never abort instead.
    AGAIN = "again"
    #: Abort, then send the same overlay again with fresh group metadata, if nothing was reassigned meanwhile.
    RESEND = "resend"
    #: Abort, discard both overlays, rewind.
    ABORT = "abort"
    #: This producer or member was replaced, or its state is unknown for good: end the process.
    FATAL = "fatal"


#: The member is fine, only the generation moved on between reading the metadata and sending it.
_RESEND: Final = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})

#: Also by code: librdkafka reports a consumer's fatal error as an event of code ``_FATAL`` whose ``fatal()``
#: is false (measured).
_FATAL: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.PRODUCER_FENCED,
    }
)

#: Nothing gets better by trying again: somebody has to grant something.
DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def error_of(raised: KafkaException) -> KafkaError | None:
    inner = raised.args[0] if raised.args else None
    return inner if isinstance(inner, KafkaError) else None


def behind(raised: BaseException) -> KafkaException | None:
    """confluent-kafka raises a client's fatal error out of whichever call serves its callbacks (``flush``,
    ``poll``); where that call returns normally, Python makes a SystemError of it. The Kafka error is its
    cause."""
    if isinstance(raised, KafkaException):
        return raised
    if isinstance(raised, SystemError):
        for inner in (raised.__cause__, raised.__context__):
            if isinstance(inner, KafkaException):
                return inner
    return None


def is_fatal(error: KafkaError) -> bool:
    """Whether this client is of no use any more: it was replaced, or its state is unknown for good."""
    return error.fatal() or error.code() in _FATAL


def verdict(error: KafkaError) -> Verdict:
    """``txn_requires_abort`` before ``retriable``: librdkafka sets both on a timed-out abortable call."""
    if is_fatal(error):
        return Verdict.FATAL
    if error.code() in _RESEND:
        return Verdict.RESEND
    if error.txn_requires_abort():
        return Verdict.ABORT
    if error.retriable() or error.code() in (
        KafkaError._TIMED_OUT,
        KafkaError._IN_PROGRESS,
        KafkaError._CONFLICT,
    ):
        return Verdict.AGAIN
    return Verdict.ABORT
