"""The second source: `batches` of exactly the partitions that are live here. A consumer that is *assigned*,
not subscribed (a group would balance the two topics independently), on a polling thread of its own.

Invariants:

- Who owns a partition is decided by the inbox alone (:mod:`refold.engine.poll`); this follows:
  :meth:`BatchSource.begin` when a partition is live, :meth:`BatchSource.end` when it is given up. Offsets go
  with the one transaction.
- Assignment and fetch epoch travel with every chunk: what was polled before a rewind or under another
  ownership is dropped by the fold. Both sources of a partition are rewound together.
- It never waits for the event loop, and back-pressure is its own: the inbox of a partition may wait for its
  batches (rule G10), so batches must not wait behind the inbox.
- End-of-partition travels too: markers and aborted records at the end are no records, and rule G10 must know
  that they were passed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.engine import clients
from refold.engine.chunks import Chunk
from refold.engine.kafkaerrors import behind, is_fatal
from refold.engine.poll import CHUNK_RECORDS, POLL_S, ROOM_WAIT_S, Flow
from refold.errors import UnavailableError
from refold.topology.failures import explain

#: Nothing is assigned: there is nothing to poll for, only commands to wait for.
IDLE_S: Final = 0.5


class Listener(Protocol):
    """The engine's side. Both return at once."""

    def deliver(self, chunks: list[Chunk]) -> None: ...

    def failed(self, error: BaseException) -> None: ...


@dataclass(slots=True)
class _Fed:
    epoch: int
    fetch_epoch: int
    position: int


class BatchSource:
    """Owns its consumer from :meth:`start` to :meth:`stop`. ``begin`` and ``end`` may be called from any
    thread and
    return at once."""

    def __init__(
        self, consumer: Consumer, topic: str, listener: Listener, *, bootstrap: str, log: Any
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._listener = listener
        self._bootstrap = bootstrap
        self._log = log
        self._commands: deque[Callable[[], None]] = deque()
        self._commanded = threading.Event()
        self._fed: dict[int, _Fed] = {}
        self._paused = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refold-batches", daemon=True)
        self.flow = Flow()

    @property
    def paused(self) -> bool:
        """Whether back-pressure holds it."""
        return self._paused

    def start(self) -> None:
        self._thread.start()

    def begin(self, partition: int, epoch: int, fetch_epoch: int, offset: int) -> None:
        """Feed the partition from ``offset`` on: a partition that is live now, and every rewind."""
        self._command(lambda: self._begin(partition, epoch, fetch_epoch, offset))

    def end(self, partition: int, epoch: int) -> None:
        """The partition is not ours any more. What is under way is dropped by its epoch."""
        self._command(lambda: self._end(partition, epoch))

    def stop(self, timeout_s: float) -> None:
        """Stop polling. Blocks; not to be called from the event loop."""
        self._stopping.set()
        self._commanded.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _command(self, work: Callable[[], None]) -> None:
        self._commands.append(work)
        self._commanded.set()

    # --- on the polling thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._commanded.clear()
                while self._commands:
                    self._commands.popleft()()
                if not self._fed:
                    self._commanded.wait(IDLE_S)
                    continue
                self._press()
                first = self._consumer.poll(POLL_S)
                if first is not None:
                    self._take([first, *self._consumer.consume(CHUNK_RECORDS - 1, 0)])
            self._consumer.close()
        except KafkaException as raised:
            self._listener.failed(self._explained(raised))
        except BaseException as error:
            fatal = behind(error)
            self._listener.failed(error if fatal is None else self._explained(fatal))

    def _explained(self, raised: KafkaException) -> Exception:
        return explain(raised, doing="reading batches", bootstrap=self._bootstrap)

    def _begin(self, number: int, epoch: int, fetch_epoch: int, offset: int) -> None:
        before, idle = self._fed.get(number), not self._fed
        where = TopicPartition(self._topic, number, offset)
        if before is not None:
            if before.epoch > epoch:
                return
            self._consumer.incremental_unassign([TopicPartition(self._topic, number)])
        self._consumer.incremental_assign([where])
        self._fed[number] = _Fed(epoch, fetch_epoch, offset)
        plain = [TopicPartition(self._topic, number)]
        # Either way: librdkafka remembers over unassign and assign that a partition was paused (measured),
        # and this one may have been given up in between.
        if self._paused:
            self._consumer.pause(plain)
        else:
            self._consumer.resume(plain)
            if idle:
                clients.wake(self._consumer, where)

    def _end(self, number: int, epoch: int) -> None:
        fed = self._fed.get(number)
        if fed is not None and fed.epoch == epoch:
            del self._fed[number]
            self._consumer.incremental_unassign([TopicPartition(self._topic, number)])

    def _press(self) -> None:
        """As the inbox's: a moment for room, then pause; resume when half of it is free."""
        flow = self.flow
        if self._paused:
            if flow.low:
                self._paused = False
                self._consumer.resume([TopicPartition(self._topic, number) for number in self._fed])
        elif flow.full and not flow.wait_room(ROOM_WAIT_S):
            self._paused = True
            self._consumer.pause([TopicPartition(self._topic, number) for number in self._fed])

    def _take(self, messages: list[Message]) -> None:
        groups: dict[int, list[Message]] = {}
        ends: dict[int, int] = {}
        for message in messages:
            error = message.error()
            number = message.partition()
            if error is None:
                groups.setdefault(number, []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[number] = message.offset()
            elif is_fatal(error):
                raise KafkaException(error)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                if number not in self._fed:
                    continue
                raise UnavailableError(
                    f"{self._topic}/{number} no longer holds the offset to go on from ({error.str()}). Start"
                    " again: the takeover goes on where the topic begins now, and says what that costs"
                )
            elif error.code() in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.GROUP_AUTHORIZATION_FAILED,
            ):
                raise KafkaException(error)
            else:
                self._log.warning("consumer_error", code=error.name(), reason=error.str())
        chunks = []
        for number in dict.fromkeys((*groups, *ends)):
            fed = self._fed.get(number)
            if fed is None:
                continue
            group = groups.get(number, [])
            size = sum(map(len, group))
            end = ends.get(number, -1)
            chunk = Chunk(self._topic, number, fed.epoch, fed.fetch_epoch, fed.position, group, size, end)
            fed.position = chunk.next_offset
            self.flow.add(size, len(group))
            chunks.append(chunk)
        if chunks:
            self._listener.deliver(chunks)
