"""The SDK's Kafka producer: acks=all, idempotent, ours (:mod:`refold.client.wired`) or librdkafka's, which is
polled in a thread of its own.

It is opened by the first event: an idempotent producer asks the broker for an id at once, and a principal
that only reads has no right to one (librdkafka prints a FATAL line then).

Delivery reports are collected by the thread and handed to the event loop in batches, one
``call_soon_threadsafe`` per poll and not per record: at 1 000 appends/s the loop is woken at most once per
delivered batch. There they are told by plain calls.

This module knows nothing of sessions. Order per session is kept by :mod:`refold.client.ordering`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refold.client.delivery import Delivery as Delivery
from refold.client.delivery import Header as Header
from refold.client.delivery import Known, Record, Tell, delivery_failure, too_large
from refold.client.delivery import Outcome as Outcome
from refold.client.limits import IN_FLIGHT_EVENTS_MAX, LINGER_MS, POLL_S
from refold.client.watch import Because, as_it_is
from refold.errors import RefoldError, TransientError, UsageError

if TYPE_CHECKING:
    from refold.client.wired.carrier import Carrier
    from refold.client.wired.promises import Promises

#: A guarantee hangs on each; the pass-through table cannot change them.
GUARANTEES: Final[dict[str, Any]] = {"acks": "all", "enable.idempotence": True}

#: Of one record. librdkafka's own default is 1 000 000 bytes, below what the inbox takes (1 114 112 as set up
#: by `refold topology apply`): a record between the two would be refused here at every try, and its session
#: with it. What its topic takes is looked at before an event is queued, so this only has to be more.
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024

#: Of a table with anything else that is not about connections, librdkafka makes the most: who tunes its
#: producer gets it. `reconnect.backoff.max.ms` is ours.
UNDERSTOOD: Final = frozenset(
    {"bootstrap.servers", "client.id", "log_level", "error_cb", "reconnect.backoff.max.ms", *GUARANTEES}
)

#: Our defaults for librdkafka's, which the pass-through table may change.
TUNING: Final[dict[str, Any]] = {
    "message.max.bytes": RECORD_BYTES_MAX,
    "linger.ms": LINGER_MS,
    "compression.type": "lz4",
    "queue.buffering.max.messages": IN_FLIGHT_EVENTS_MAX * 2,
}


class Sender:
    """One producer and its poll thread. Use from one event loop."""

    def __init__(
        self,
        config: dict[str, Any],
        delivery_timeout_ms: int,
        *,
        because: Because = as_it_is,
        producer: Literal["auto", "librdkafka"] = "auto",
    ) -> None:
        """``because`` is called on the delivery thread. ``producer``: ours where it understands the table, or
        librdkafka's."""
        self._loop = asyncio.get_running_loop()
        self._because = because
        self._in_flight = 0
        self._backlog: deque[Record] = deque()
        # Appended to by whichever thread serves the callbacks (the delivery thread, or flush() while
        # closing), emptied by the delivery thread only.
        self._reports: deque[tuple[Tell, Known]] = deque()
        self._stopping = threading.Event()
        self._fatal: KafkaError | None = None
        self._given = config
        self._config = {**TUNING, **config, **GUARANTEES, "delivery.timeout.ms": delivery_timeout_ms}
        self._producer_wanted = producer
        self._opened: tuple[Producer, threading.Thread] | None = None
        self._carrier: Carrier | None = None
        self._promises: Promises | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """True from the first event on, until closed."""
        return self._opened is not None or self._carrier is not None

    def _open(self) -> None:
        """Raises ConfigError for TLS files that cannot be used."""
        if self._closed:
            raise UsageError("the client is closed: nothing can be sent through it any more; not written")
        if self._carrier is None and self._opened is None:
            self._carrier = self._own() if self._producer_wanted == "auto" else None

    def _own(self) -> Carrier | None:
        """Ours, where the table has nothing that it does not understand."""
        # Imported when it is wanted: a client that only reads needs none of it.
        from refold.client.wired.carrier import Carrier
        from refold.client.wired.promises import Promises
        from refold.protocol.security import CONNECTING, Unsupported, security_of

        if any(name not in UNDERSTOOD and not name.startswith(CONNECTING) for name in self._given):
            return None
        try:
            security = security_of(self._given)
            security.prepare()
        except Unsupported:
            return None
        carrier = Carrier(
            self._given["bootstrap.servers"],
            security,
            client_id=self._given.get("client.id", "refold-producer"),
            report=self._tell,
            doubt=self._given.get("error_cb", _nobody),
        )
        self._promises = Promises(self._config["delivery.timeout.ms"] / 1000, self._late, self._go_on)
        return carrier

    def _producer(self) -> Producer:
        if self._opened is None:
            producer = Producer(self._config)
            thread = threading.Thread(
                target=self._poll_forever, args=(producer,), name="refold-delivery", daemon=True
            )
            self._opened = (producer, thread)
            thread.start()
        return self._opened[0]

    def start(
        self, topic: str, key: bytes, value: bytes, headers: Sequence[Header], partition: int, tell: Tell
    ) -> None:
        """Send one record; ``tell`` is called once on the event loop: where it lies, or why nobody knows.

        Never blocks. Raises when the record cannot be handed to Kafka: certainly not written, ``tell`` is not
        called. Above ``IN_FLIGHT_EVENTS_MAX`` records it waits its turn here.
        """
        record = (topic, key, value, headers, partition, tell)
        if self._full:
            self._backlog.append(record)
        else:
            self._produce(record)

    async def send(
        self, topic: str, key: bytes, value: bytes, headers: Sequence[Header], partition: int
    ) -> Delivery:
        """Returns when the record is durable; raises when it is not known to be (the text says which)."""
        future: asyncio.Future[Delivery] = self._loop.create_future()
        self.start(topic, key, value, headers, partition, partial(_settle, future))
        return await future

    def _produce(self, record: Record) -> None:
        topic, key, value, headers, partition, tell = record
        self._open()
        if self._carrier is not None and self._promises is not None:
            if len(value) > RECORD_BYTES_MAX:
                raise too_large(topic, len(value))
            promise = self._promises.make(tell)
            self._carrier.carry((topic, key, value, headers, partition, promise), promise.deadline)
            return
        try:
            self._producer().produce(
                topic,
                value=value,
                key=key,
                headers=list(headers),
                partition=partition,
                on_delivery=partial(self._delivered, tell),
            )
        except (KafkaException, BufferError) as error:
            raise local_failure(
                error if self._fatal is None else KafkaException(self._fatal), topic, len(value)
            ) from None
        self._in_flight += 1

    async def close(self, timeout_s: float) -> None:
        """Wait for what is in flight, then stop the thread. What is not delivered by then fails."""
        opened, self._opened, self._closed = self._opened, None, True
        carrier, self._carrier = self._carrier, None
        try:
            if carrier is not None:
                await asyncio.to_thread(carrier.close, timeout_s)
            elif opened is not None:
                await asyncio.to_thread(flush_and_purge, opened[0], timeout_s)
        finally:
            self._stopping.set()
            if self._promises is not None:
                self._promises.end(delivery_failure(KafkaError(KafkaError._PURGE_QUEUE), ""))
            if opened is not None:
                await asyncio.to_thread(opened[1].join)
            closed = TransientError("the client was closed before the event was sent: not written")
            while self._backlog:
                self._backlog.popleft()[-1](closed)

    def _resolve(self, reports: list[tuple[Tell, Outcome]]) -> None:
        if self._promises is None:
            self._in_flight -= len(reports)
        for tell, outcome in reports:
            tell(outcome)
        self._go_on()

    @property
    def _full(self) -> bool:
        under_way = self._in_flight if self._promises is None else self._promises.count
        return under_way >= IN_FLIGHT_EVENTS_MAX

    def _late(self) -> RefoldError:
        return self._because(delivery_failure(KafkaError(KafkaError._MSG_TIMED_OUT), ""))

    def _go_on(self) -> None:
        while self._backlog and not self._full and not self._closed:
            record = self._backlog.popleft()
            try:
                self._produce(record)
            except RefoldError as error:
                record[-1](error)

    # Delivery thread

    def _poll_forever(self, producer: Producer) -> None:
        while not self._stopping.is_set():
            try:
                producer.poll(POLL_S)
            except KafkaException as error:
                # Fatal: a principal without WRITE gets no producer id. librdkafka purges the queue then; the
                # purged events and all later ones are told this reason.
                self._fatal = error.args[0]
                self._stopping.wait(POLL_S)
            self._hand_over()
        with contextlib.suppress(KafkaException):
            producer.poll(0)
        self._hand_over()

    def _delivered(self, tell: Tell, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self._reports.append((tell, Delivery(partition, offset, message.timestamp()[1])))
        else:
            # Written, but a broker that only remembers that it has the record cannot say where: like any
            # unknown outcome. Sent again it gets an offset, and is absorbed.
            unplaced = error or KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER, "no offset in the answer")
            self._reports.append((tell, (unplaced, message.topic() or "")))

    def _hand_over(self) -> None:
        told: list[tuple[Tell, Known]] = []
        while self._reports:
            told.append(self._reports.popleft())
        self._tell(told)

    # Any thread

    def _tell(self, told: list[tuple[Tell, Known]]) -> None:
        if not told:
            return
        # Failures become errors only now: the poll that reported them may have raised the reason after them.
        reports: list[tuple[Tell, Outcome]] = [
            (
                tell,
                said
                if isinstance(said, Delivery)
                else self._because(
                    said
                    if isinstance(said, RefoldError)
                    else delivery_failure(self._fatal or said[0], said[1])
                ),
            )
            for tell, said in told
        ]
        try:
            self._loop.call_soon_threadsafe(self._resolve, reports)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            self._stopping.set()
            if (carrier := self._carrier) is not None:
                carrier.stop()


def _nobody(error: KafkaError) -> None:
    """Nobody wants to be told of outages."""


def flush_and_purge(producer: Producer, timeout_s: float) -> None:
    """Blocks. What is not acknowledged in time gets its delivery report from the purge."""
    with contextlib.suppress(KafkaException):  # A fatal error, which the delivery thread has met as well.
        producer.flush(timeout_s)
    producer.purge()
    with contextlib.suppress(KafkaException):
        producer.flush(1.0)


def _settle(future: asyncio.Future[Delivery], outcome: Outcome) -> None:
    if future.done():
        return  # The caller was cancelled.
    if isinstance(outcome, Delivery):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def local_failure(error: Exception, topic: str, size: int) -> RefoldError:
    """A produce() that was refused before anything was sent: certainly not written."""
    if isinstance(error, BufferError):
        return TransientError(
            "the producer's queue is full: Kafka takes records slower than they come; not written, try again"
        )
    kafka_error = error.args[0]
    if kafka_error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return too_large(topic, size)
    return delivery_failure(kafka_error, topic)
