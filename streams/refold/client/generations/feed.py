"""The hub's thread: one consumer that is assigned, never subscribed, and hands records to the event loop.

``read_committed``: what a follower is shown, a worker that folds has seen or will see. The thread is given
the partitions to read; it tells where each begins (its last stable offset then), which is where live begins.

An unhurried feed is for who listens to few of many records: the broker holds its fetches and the thread its
polls, so that a thousand records a second cost ten wake-ups and not several hundred.

Back-pressure: at most ``HUB_BATCHES_MAX`` hand-overs wait for the loop; then the thread does not poll, and
librdkafka stops fetching at its own limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.client.generations.limits import (
    EAR_FETCH_WAIT_MS,
    EAR_PAUSE_S,
    HUB_BATCHES_MAX,
    HUB_FETCH_BYTES,
    HUB_FETCH_WAIT_MS,
    HUB_POLL_S,
    HUB_QUEUED_KBYTES_MAX,
    HUB_RECORDS,
)
from refold.client.reader import HARMLESS, consumer_config, read_failure
from refold.errors import RefoldError, TransientError

#: How long the broker may take to say where a partition ends.
END_TIMEOUT_S: Final = 10.0

#: Of that the thread waits so long at once, twice as long each time, and looks after the other partitions as
#: long in between: one without a leader must not hold up what all others say.
END_TURN_S: Final = 0.1

Records = list[Message]
Deliver = Callable[[Records], None]
Broken = Callable[[int, RefoldError], None]
_Command = tuple[str, int, "asyncio.Future[int] | None"]


class Feed:
    """``deliver`` and ``broken`` (a partition that cannot be read on) are called on the event loop."""

    def __init__(
        self,
        config: dict[str, Any],
        topic: str,
        deliver: Deliver,
        broken: Broken,
        *,
        unhurried: bool = False,
    ) -> None:
        self._topic = topic
        self._deliver = deliver
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._slots = threading.Semaphore(HUB_BATCHES_MAX)
        self._stopping = threading.Event()
        #: The thread obeys no more: whatever it did not see is refused by whoever asks.
        self._over = threading.Event()
        self._assigned: set[int] = set()
        #: Partitions whose end is not known yet: when to ask again, for how long, and until when.
        self._asked: list[tuple[float, float, float, int, asyncio.Future[int]]] = []
        self._unhurried = unhurried
        wait_ms = EAR_FETCH_WAIT_MS if unhurried else HUB_FETCH_WAIT_MS
        self._consumer = Consumer(
            {
                **consumer_config(config, fetch_bytes=HUB_FETCH_BYTES, fetch_wait_ms=wait_ms),
                "fetch.min.bytes": HUB_FETCH_BYTES if unhurried else 1,
                "queued.max.messages.kbytes": HUB_QUEUED_KBYTES_MAX,
                "enable.partition.eof": False,
            }
        )
        self._thread = threading.Thread(target=self._run, name="refold-hub", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once the thread has ended, whatever ended it."""
        return self._thread.is_alive() and not self._over.is_set()

    async def add(self, partition: int) -> int:
        """Read the partition from its last stable offset on; returns that offset. Raises as a read does."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._commands.put(("add", partition, future))
        if self._over.is_set():
            self._refuse_rest()
        return await future

    def remove(self, partition: int) -> None:
        self._commands.put(("remove", partition, None))

    async def close(self) -> None:
        """Stop the thread and close the consumer."""
        self._stopping.set()
        self._commands.put(("stop", 0, None))
        self._slots.release()
        await asyncio.to_thread(self._thread.join)

    # The thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            for partition in sorted(self._assigned):
                self._call(self._broken, partition, TransientError(f"the feed ended: {error!r}"))
        finally:
            self._over.set()
            self._refuse_rest()
            self._consumer.close()

    def _serve(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            # Without partitions consume() would return at once, again and again.
            self._obey(pause if self._assigned else HUB_POLL_S)
            asked, self._asked = self._asked, []
            for again_at, turn_s, until, partition, future in asked:
                if again_at <= time.monotonic():
                    self._assign(partition, future, until, turn_s)
                else:
                    self._asked.append((again_at, turn_s, until, partition, future))
            if not self._assigned:
                continue
            if self._unhurried:
                found = self._consumer.consume(HUB_RECORDS, 0)
                pause = EAR_PAUSE_S if len(found) < HUB_RECORDS else 0.0
            else:
                first = self._consumer.poll(HUB_POLL_S)
                found = [] if first is None else [first, *self._consumer.consume(HUB_RECORDS - 1, 0)]
            if found:
                self._hand_over(found)

    def _obey(self, wait_s: float) -> None:
        """Do what was asked, after at most ``wait_s`` in which nothing was."""
        while True:
            try:
                command, partition, future = self._commands.get(wait_s > 0, wait_s)
            except queue.Empty:
                return
            wait_s = 0.0
            if command == "stop":
                return
            if command == "remove":
                if partition in self._assigned:
                    self._assigned.discard(partition)
                    self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
                continue
            if future is not None:
                self._assign(partition, future, time.monotonic() + END_TIMEOUT_S, END_TURN_S)

    def _assign(self, partition: int, future: asyncio.Future[int], until: float, turn_s: float) -> None:
        place = TopicPartition(self._topic, partition)
        try:
            given_s = max(0.0, min(turn_s, until - time.monotonic()))
            _, end = self._consumer.get_watermark_offsets(place, timeout=given_s, cached=False)
            if partition in self._assigned:
                self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, end)])
            self._assigned.add(partition)
        except KafkaException as error:
            now = time.monotonic()
            # A consumer that is not connected yet says within so short a time that no broker is there.
            if _passes(error.args[0]) and now < until:
                self._asked.append((now + turn_s, 2 * turn_s, until, partition, future))
            else:
                self._tell(future, read_failure(error.args[0], self._topic))
        else:
            self._tell(future, int(end))

    def _hand_over(self, messages: list[Message]) -> None:
        good: Records = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() not in HARMLESS and not _passes(error):
                self._call(self._broken, message.partition() or 0, read_failure(error, self._topic))
        if not good:
            return
        self._slots.acquire()
        self._call(self._delivered, good)

    def _delivered(self, records: Records) -> None:
        self._slots.release()
        self._deliver(records)

    def _tell(self, future: asyncio.Future[int] | None, outcome: int | RefoldError) -> None:
        if future is not None:
            self._call(_settle, future, outcome)

    def _call(self, what: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody is left to be told.
            self._loop.call_soon_threadsafe(what, *arguments)

    def _refuse_rest(self) -> None:
        left: list[asyncio.Future[int] | None] = [future for *_, future in self._asked]
        self._asked = []
        with contextlib.suppress(queue.Empty):
            while True:
                left.append(self._commands.get_nowait()[2])
        for future in left:
            self._tell(future, TransientError("the feed has ended: the client was closed, or cannot read on"))


def _passes(error: KafkaError) -> bool:
    """Connections that come back by themselves: librdkafka goes on trying, and so do we."""
    return bool(error.retriable()) or error.code() in (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
    )


def _settle(future: asyncio.Future[int], outcome: int | RefoldError) -> None:
    if future.done():
        return
    if isinstance(outcome, int):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
