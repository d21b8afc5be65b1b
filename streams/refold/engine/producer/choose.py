"""Which producer a worker's transactions go through."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from refold.engine import clients, preflight
from refold.engine.config import START_CALL_TIMEOUT_MS, EngineConfig
from refold.engine.kafkaerrors import error_of
from refold.topology.failures import explain

if TYPE_CHECKING:
    from refold.engine.producer.producer import WireProducer
    from refold.protocol.brokers import Brokers
    from refold.protocol.dialect import Dialect

    TransactionalProducer: TypeAlias = Producer | WireProducer

#: Imported when it is wanted, and before Faust: two threads that import aiokafka, which both need, meet it
#: half made.
OWN: Final = "refold.engine.producer.producer"

#: A third of what librdkafka is given (``clients.BATCH_BYTES`` has what a batch costs a seek): it sends
#: before a batch is full, this one does not. 50 events out of a million took 48 to 51 ms with 384 KiB, 26 to
#: 40 with 128 and 35 with 96, beside 37 through librdkafka.
BATCH_BYTES: Final = 128 * 1024

#: init_transactions ends what our former life left open: 1.6 s measured; a coordinator that loads takes
#: longer.
INIT_TIMEOUT_S: Final = 15.0

#: Between two attempts to reach a broker for the first time.
AGAIN_S: Final = 0.01


def made(config: EngineConfig, message_bytes_max: int, log: Any) -> TransactionalProducer:
    """Ours where it is asked for, the settings of the connection are known to it and the brokers take its
    versions; else librdkafka's, which does the same in more requests. Blocks for a round trip.

    Raises ConfigError for files of TLS that cannot be used, PermissionDenied for refused credentials.
    """
    if config.producer == "auto" and (own := _own(config, message_bytes_max, log)) is not None:
        return own
    return clients.transactional(config, config.transactional_id, message_bytes_max=message_bytes_max)


def _own(config: EngineConfig, message_bytes_max: int, log: Any) -> WireProducer | None:
    from refold.engine.producer.producer import WireProducer
    from refold.protocol.brokers import Brokers, TooOld
    from refold.protocol.connection import Disconnected
    from refold.protocol.security import Unsupported, security_of

    try:
        security = security_of(config.kafka)
        security.prepare()
        brokers = Brokers(config.bootstrap, security, f"refold-commit|{config.instance}")
        dialect = _dialect(brokers)
    except Unsupported as unsupported:
        reason = f"settings that only librdkafka knows: {', '.join(unsupported.names)}"
    except (TooOld, Disconnected) as refused:
        reason = str(refused)
    else:
        return WireProducer(
            brokers,
            dialect,
            config.transactional_id,
            timeout_ms=config.transaction_timeout_ms,
            group=config.topics.group,
            instance=config.instance,
            batch_bytes=BATCH_BYTES,
            message_bytes_max=message_bytes_max,
        )
    log.warning("commits_by_librdkafka", reason=reason)
    return None


def name_of(producer: TransactionalProducer) -> str:
    """For the log: ``refold`` or ``librdkafka``."""
    return "librdkafka" if isinstance(producer, Producer) else "refold"


def begin(config: EngineConfig, producer: TransactionalProducer) -> None:
    """End our former life's open transaction and fence its process, if it still runs. Blocks. Raises
    PermissionDenied, and what a cluster that does not answer is told as."""
    if isinstance(producer, Producer):
        clients.connect(producer, config.topics.inbox)
    end = time.monotonic() + INIT_TIMEOUT_S
    while True:
        try:
            producer.init_transactions(INIT_TIMEOUT_S)
            return
        except KafkaException as raised:
            error = error_of(raised)
            if error is not None and error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise preflight.denied(
                    config, f"Write and Describe on transactional id {config.transactional_id}"
                ) from None
            if error is not None and error.retriable() and time.monotonic() < end:
                continue
            raise explain(
                raised,
                doing=f"starting transactions as {config.transactional_id}",
                bootstrap=config.bootstrap,
            ) from None


def _dialect(brokers: Brokers) -> Dialect:
    from refold.protocol.connection import Disconnected

    deadline = time.monotonic() + START_CALL_TIMEOUT_MS / 1000
    while True:
        try:
            return brokers.dialect(deadline)
        except Disconnected:
            if time.monotonic() + AGAIN_S >= deadline:
                raise
            time.sleep(AGAIN_S)
