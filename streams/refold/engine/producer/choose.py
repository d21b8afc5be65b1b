"""Which producer a worker's transactions go through."""

from __future__ import annotations

import time
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from refold.engine import clients, preflight
from refold.engine.config import START_CALL_TIMEOUT_MS, EngineConfig
from refold.engine.kafkaerrors import error_of
from refold.engine.producer.brokers import Brokers, TooOld
from refold.engine.producer.connection import Disconnected
from refold.engine.producer.producer import PAUSE_S_MAX, WireProducer
from refold.engine.producer.security import Unsupported, security_of
from refold.topology.failures import explain

#: init_transactions ends what our former life left open: 1.6 s measured; a coordinator that loads takes
#: longer.
INIT_TIMEOUT_S: Final = 15.0

TransactionalProducer: TypeAlias = Producer | WireProducer


def transactional(
    config: EngineConfig, transactional_id: str, *, message_bytes_max: int, log: Any
) -> TransactionalProducer:
    """Ours where the settings of the connection are known to it and the brokers take its versions, else
    librdkafka's, which does the same in more requests. Blocks for a round trip."""
    reason = "worker.producer says so"
    if config.producer != "librdkafka":
        try:
            brokers = Brokers(config.bootstrap, security_of(config.kafka), f"refold-commit|{config.instance}")
            _check(brokers)
            return WireProducer(
                brokers,
                transactional_id,
                timeout_ms=config.transaction_timeout_ms,
                group=config.topics.group,
                instance=config.instance,
                batch_bytes=clients.BATCH_BYTES,
                message_bytes_max=message_bytes_max,
            )
        except Unsupported as unsupported:
            reason = f"settings that only librdkafka knows: {', '.join(unsupported.names)}"
        except (TooOld, Disconnected) as refused:
            reason = str(refused)
    log.info("commits_by_librdkafka", reason=reason)
    return clients.transactional(config, transactional_id, message_bytes_max=message_bytes_max)


def opened(config: EngineConfig, *, message_bytes_max: int, log: Any) -> TransactionalProducer:
    """A worker's own, ready for its first transaction: our former life's open one is ended, and its process
    fenced, if it still runs. Raises PermissionDenied, and what a cluster that does not answer is told as."""
    producer = transactional(config, config.transactional_id, message_bytes_max=message_bytes_max, log=log)
    if isinstance(producer, Producer):
        clients.connect(producer, config.topics.inbox)
    end = time.monotonic() + INIT_TIMEOUT_S
    while True:
        try:
            producer.init_transactions(INIT_TIMEOUT_S)
            return producer
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


def _check(brokers: Brokers) -> None:
    deadline = time.monotonic() + START_CALL_TIMEOUT_MS / 1000
    while True:
        try:
            brokers.check_versions(deadline)
            return
        except Disconnected:
            if time.monotonic() + PAUSE_S_MAX >= deadline:
                raise
            time.sleep(PAUSE_S_MAX)
