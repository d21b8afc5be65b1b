"""The SDK's Kafka producer: acks=all, idempotent, polled in a thread of its own.

Delivery reports are collected by the thread and handed to the event loop in batches, one
``call_soon_threadsafe`` per poll and not per record: at 1 000 appends/s the loop is woken at most once per
delivered batch.

This module knows nothing of sessions. Order per session is kept by :mod:`refold.client.ordering`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refold.client.limits import IN_FLIGHT_EVENTS_MAX, LINGER_MS, POLL_S
from refold.errors import ConfigError, PermissionDenied, RefoldError, TransientError, UsageError
from refold.topology.failures import explain

Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a record lies. ``append_time_ms`` is the broker's time of the append."""

    partition: int
    offset: int
    append_time_ms: int


_Report = tuple["asyncio.Future[Delivery]", Delivery | RefoldError]

#: What librdkafka is asked for; a guarantee hangs on each but the last two.
PRODUCER_CONFIG: Final[dict[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": LINGER_MS,
    "compression.type": "lz4",
    "queue.buffering.max.messages": IN_FLIGHT_EVENTS_MAX * 2,
}


class Sender:
    """One producer, its poll thread, and futures. Use from one event loop."""

    def __init__(self, config: dict[str, Any], delivery_timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._bootstrap = str(config.get("bootstrap.servers", "?"))
        self._slots = asyncio.Semaphore(IN_FLIGHT_EVENTS_MAX)
        self._reports: list[tuple[asyncio.Future[Delivery], Delivery | tuple[KafkaError, str]]] = []
        self._stopping = threading.Event()
        self._fatal: KafkaError | None = None
        self._producer = Producer({**config, **PRODUCER_CONFIG, "delivery.timeout.ms": delivery_timeout_ms})
        self._thread = threading.Thread(target=self._poll_forever, name="refold-delivery", daemon=True)
        self._thread.start()

    async def send(
        self, topic: str, key: bytes, value: bytes, headers: Sequence[Header], partition: int
    ) -> Delivery:
        """Returns when the record is durable; raises when it is not known to be (the text says which)."""
        async with self._slots:
            future: asyncio.Future[Delivery] = self._loop.create_future()
            try:
                self._producer.produce(
                    topic,
                    value=value,
                    key=key,
                    headers=list(headers),
                    partition=partition,
                    on_delivery=partial(self._delivered, future),
                )
            except (KafkaException, BufferError) as error:
                raise _local_failure(
                    error if self._fatal is None else KafkaException(self._fatal), topic, len(value)
                ) from None
            return await future

    async def partition_count(self, topic: str, timeout_s: float) -> int:
        """Partitions of a topic as the cluster has them now."""
        try:
            metadata = await asyncio.to_thread(self._producer.list_topics, topic, timeout_s)
        except KafkaException as error:
            raise explain(error, doing=f"looking for topic {topic!r}", bootstrap=self._bootstrap) from None
        found = metadata.topics[topic]
        if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise PermissionDenied(
                f"Kafka refuses to let this principal see {topic!r}: grant DESCRIBE on it "
                "(`refold topology render acls` prints the rules of each role)"
            )
        if found.error is not None or not found.partitions:
            raise ConfigError(
                f"topic {topic!r} does not exist on this cluster: run `refold topology apply`, "
                "or check topic_prefix and bootstrap"
            )
        return len(found.partitions)

    async def close(self, timeout_s: float) -> None:
        """Wait for what is in flight, then stop the thread. What is not delivered by then fails."""
        await asyncio.to_thread(self._producer.flush, timeout_s)
        self._producer.purge()
        await asyncio.to_thread(self._producer.flush, 1.0)
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)

    # Delivery thread

    def _poll_forever(self) -> None:
        while not self._stopping.is_set():
            try:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                # Fatal: a principal without WRITE gets no producer id. librdkafka purges the queue then; the
                # purged events and all later ones are told this reason.
                self._fatal = error.args[0]
                self._stopping.wait(POLL_S)
            self._hand_over()
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)
        self._hand_over()

    def _delivered(
        self, future: asyncio.Future[Delivery], error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            _, time_ms = message.timestamp()
            # Neither is None in a delivery report without an error.
            self._reports.append((future, Delivery(message.partition() or 0, message.offset() or 0, time_ms)))
        else:
            self._reports.append((future, (error, message.topic() or "")))

    def _hand_over(self) -> None:
        if not self._reports:
            return
        told, self._reports = self._reports, []
        # Failures become errors only now: the poll that reported them may have raised the reason after them.
        reports: list[_Report] = [
            (
                future,
                said if isinstance(said, Delivery) else _delivery_failure(self._fatal or said[0], said[1]),
            )
            for future, said in told
        ]
        try:
            self._loop.call_soon_threadsafe(_resolve, reports)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            self._stopping.set()


def _resolve(reports: list[_Report]) -> None:
    for future, outcome in reports:
        if future.done():
            continue  # The caller was cancelled.
        if isinstance(outcome, Delivery):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


def _local_failure(error: Exception, topic: str, size: int) -> RefoldError:
    """A produce() that was refused before anything was sent: certainly not written."""
    if isinstance(error, BufferError):
        return TransientError(
            "the producer's queue is full: Kafka takes records slower than they come; not written, try again"
        )
    kafka_error = error.args[0]
    if kafka_error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return _too_large(topic, size)
    return _delivery_failure(kafka_error, topic)


def _too_large(topic: str, size: int | None) -> UsageError:
    what = "the event" if size is None else f"the event of {size} bytes"
    return UsageError(
        f"{what} is larger than topic {topic!r} or this producer takes (max.message.bytes, "
        "message.max.bytes); not written. Large text and data go to the blob store by themselves: "
        "what is left is too much for one event, split it"
    )


def _delivery_failure(error: KafkaError, topic: str) -> RefoldError:
    code = error.code()
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
        return _too_large(topic, None)
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return PermissionDenied(
            f"Kafka refuses to let this principal write to {topic!r}: grant WRITE on it (and "
            "IDEMPOTENT_WRITE on clusters before 2.8); not written"
        )
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
        return ConfigError(f"topic {topic!r} does not exist: run `refold topology apply`; not written")
    if code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
        return TransientError("the client was closed before the event was acknowledged: outcome unknown")
    return TransientError(
        f"the event was not acknowledged ({error.str()}): outcome unknown, it may or may not be written; "
        "sending the same event again is safe, it is absorbed if it was"
    )
