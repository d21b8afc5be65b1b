"""The producer of batches, served by the event loop itself: strokes, in which all generations of a client act
together.

A stroke asks what was acknowledged, then lets every generation that has content encode and hand over its next
batch. Strokes are ``STROKE_S`` apart while anything is said or on the way; what comes after a quiet time goes
out at once. So with one generation nothing is held back, and with fifty their batches share produce requests,
acknowledgements and wake-ups: a wake-up of a thread or of the loop costs several times what a batch costs.

There is no thread: nothing but a stroke looks for acknowledgements, and a loop that is busy finds them later,
all at once. Nothing here blocks. Use from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refold.client.delivery import delivery_failure
from refold.client.generations.limits import (
    BATCH_LINGER_MS,
    BATCHES_IN_FLIGHT_MAX,
    STROKE_S,
)
from refold.client.sender import GUARANTEES, TUNING, flush_and_purge, local_failure
from refold.errors import RefoldError, UsageError

log = logging.getLogger("refold.client")

Tell = Callable[[RefoldError | None], None]
"""``None``: durable. Else why nobody knows, or why it is certainly not."""


class Strokes:
    """When the generations of a client act: ``soon(call)`` calls it once, in the next stroke."""

    def __init__(self, interval_s: float = STROKE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval_s = interval_s
        self._calls: list[Callable[[], None]] = []
        self._last = float("-inf")
        self._timer: asyncio.Handle | None = None

    def soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        due = self._last + self._interval_s
        if due <= self._loop.time():
            self._timer = self._loop.call_soon(self._stroke)
        else:
            self._timer = self._loop.call_at(due, self._stroke)

    def _stroke(self) -> None:
        self._timer = None
        self._last = self._loop.time()
        self._serve()
        calls, self._calls = self._calls, []
        for call in calls:
            try:
                call()
            except Exception:
                # One generation's fault is not the others': without its stroke they would all stand still.
                log.exception("generation_stroke_failed")
        if self._timer is None and (self._calls or self._waiting):
            self._arm()

    def _serve(self) -> None:
        """What a stroke begins with."""

    @property
    def _waiting(self) -> bool:
        """Whether another stroke has to follow, also where nobody has asked for it."""
        return False

    def _halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._calls.clear()


#: The pass-through table may change these, but not the guarantees.
BATCH_TUNING: Final[dict[str, Any]] = {
    **TUNING,
    "linger.ms": BATCH_LINGER_MS,
    "queue.buffering.max.messages": BATCHES_IN_FLIGHT_MAX,
    # A stroke is one small request per partition: none waits for the acknowledgement of the one before.
    "socket.nagle.disable": True,
}


class Courier(Strokes):
    """Strokes, and the producer they serve. It is opened by the first generation: who only
    reads gets none."""

    def __init__(self, config: dict[str, Any], delivery_timeout_ms: int, topic: str) -> None:
        super().__init__()
        self._config = {**BATCH_TUNING, **config, **GUARANTEES, "delivery.timeout.ms": delivery_timeout_ms}
        self._topic = topic
        self._producer: Producer | None = None
        self._in_flight = 0
        self._reports: list[tuple[Tell, KafkaError | None]] = []
        self._fatal: KafkaError | None = None
        self._closed = False

    def start(self, key: bytes, partition: int, value: bytes, tell: Tell) -> None:
        """Send one record; ``tell`` is called once, in a stroke.

        Raises when the record cannot be handed to Kafka: certainly not written, ``tell`` is not called.
        """
        try:
            self._opened().produce(
                self._topic,
                value=value,
                key=key,
                partition=partition,
                on_delivery=partial(self._delivered, tell),
            )
        except (KafkaException, BufferError) as error:
            raise local_failure(
                error if self._fatal is None else KafkaException(self._fatal), self._topic, len(value)
            ) from None
        self._in_flight += 1
        if self._timer is None:
            self._last = self._loop.time()
            self._arm()

    def open(self) -> None:
        """Connect, before the first batch is there: an idempotent producer's id takes a tenth of a second."""
        if not self._closed:
            self._opened()

    def _opened(self) -> Producer:
        if self._closed:
            raise UsageError("the client is closed: nothing can be sent through it any more; not written")
        if self._producer is None:
            self._producer = Producer(self._config)
        return self._producer

    async def close(self, timeout_s: float) -> None:
        """Wait for what is on the way; what is not acknowledged by then is told that nobody knows."""
        self._closed = True
        self._halt()
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.to_thread(flush_and_purge, producer, timeout_s)
            self._tell()

    @property
    def _waiting(self) -> bool:
        return self._in_flight > 0

    def _serve(self) -> None:
        if self._in_flight and self._producer is not None:
            try:
                self._producer.poll(0)
            except KafkaException as error:
                # Fatal: a principal without WRITE gets no producer id. librdkafka purges the queue then; the
                # purged batches and all later ones are told this reason.
                self._fatal = error.args[0]
            self._tell()

    def _delivered(self, tell: Tell, error: KafkaError | None, message: Message) -> None:
        # While closing, flush() calls this in its own thread.
        self._reports.append((tell, error))

    def _tell(self) -> None:
        reports, self._reports = self._reports, []
        self._in_flight -= len(reports)
        for tell, error in reports:
            outcome = None if error is None else delivery_failure(self._fatal or error, self._topic)
            try:
                tell(outcome)
            except Exception:
                log.exception("generation_report_failed")
