"""What a Kafka error means to the person reading it: librdkafka codes → our errors, with the way out.

Used by everything that talks to the cluster on behalf of a person (commands, topology, start-up checks). The
engine's own handling of transactional errors is elsewhere (rule A): there the code decides, here the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from refold.errors import (
    ConfigError,
    FencedError,
    NotFound,
    PermissionDenied,
    RefoldError,
    TransientError,
    UnavailableError,
    UsageError,
)

_UNREACHABLE: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)
_REFUSED: Final = {
    KafkaError._AUTHENTICATION: "the credentials",
    KafkaError.SASL_AUTHENTICATION_FAILED: "the credentials",
    KafkaError.ILLEGAL_SASL_STATE: "the credentials",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "the SASL mechanism",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "access to a topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "access to the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "an operation on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "access to the transactional id",
}
_CREDENTIALS: Final = frozenset({"the credentials", "the SASL mechanism"})
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
#: Leadership is moving or metadata has not reached every broker yet. librdkafka does not call all of them
#: retriable: a broker that was killed and came back made an epoch older than the leader's end a takeover, and
#: "No leaders found" (``_NOENT``, of ``list_offsets`` while all brokers are away) ended workers as if they
#: were wrongly used.
_SETTLING: Final = frozenset(
    {
        KafkaError._NOENT,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
_MISSING: Final = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
_BUILD: Final[dict[int, Callable[[str, str], RefoldError]]] = {
    KafkaError._INVALID_ARG: lambda what, text: ConfigError(
        f"{what}: librdkafka refuses its configuration: {text}. Check the kafka settings (`refold settings`)."
    ),
    KafkaError.POLICY_VIOLATION: lambda what, text: ConfigError(
        f"{what}: a policy of the cluster forbids it: {text}. Ask whoever runs the cluster."
    ),
    KafkaError.UNSUPPORTED_VERSION: lambda what, text: ConfigError(
        f"{what}: the cluster is too old for it: {text}. refold needs Kafka 3.6 or newer."
    ),
}


def explain(error: KafkaError | KafkaException, *, doing: str, bootstrap: str) -> RefoldError:
    """The error to raise instead of ``error``, which happened while ``doing`` something at ``bootstrap``."""
    if isinstance(error, KafkaException):
        inner = error.args[0] if error.args else None
        if not isinstance(inner, KafkaError):
            return UnavailableError(f"{doing}: {error}. Check the broker at {bootstrap}.")
        error = inner
    code, text = error.code(), error.str().rstrip(" .:") or "no further word"
    if code in _UNREACHABLE:
        nobody = UnavailableError(
            f"{doing}: no broker answers at {bootstrap} ({text}). Start one with `refold broker up`, or name"
            " yours with --bootstrap or REFOLD_BOOTSTRAP (in code: bootstrap=); behind TLS or SASL set"
            " REFOLD_KAFKA__SECURITY_PROTOCOL.",
            retry_after_s=1.0,
        )
        nobody.bootstrap = bootstrap
        return nobody
    if code in _REFUSED:
        refused = _REFUSED[code]
        way_out = (
            "Check REFOLD_KAFKA__SASL_MECHANISM, REFOLD_KAFKA__SASL_USERNAME and the password"
            if refused in _CREDENTIALS
            else "Grant it: `refold topology render acls` prints the rules each role needs"
        )
        return PermissionDenied(f"{doing}: the cluster at {bootstrap} refused {refused} ({text}). {way_out}.")
    if code in _MISSING:
        return NotFound(
            f"{doing}: a topic does not exist at {bootstrap} ({text}). Create the topics with"
            " `refold topology apply`, or check --prefix."
        )
    if code in _FENCED:
        return FencedError(
            f"{doing}: another member with the same name took over ({text}). Nothing was lost."
        )
    if code in _BUILD:
        return _BUILD[code](doing, text)
    if code in _SETTLING or error.retriable():
        return TransientError(f"{doing}: {text} (Kafka code {error.name()}). Try again.")
    return UsageError(f"{doing}: the cluster at {bootstrap} refused it: {text} (Kafka code {error.name()}).")
