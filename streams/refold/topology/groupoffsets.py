"""What a group has committed, asked by consumers that never join it.

``AdminClient.list_consumer_group_offsets`` of librdkafka 2.16 ends the process when a broker goes away under
it or is not the coordinator: it turns to a consumer group that such a client has not got (SIGSEGV,
librdkafka issue 5040), or aborts as :mod:`refold.topology.lasting` tells. ``Consumer.committed`` asks for the
same with the same right (Describe on the group). Under both a broker was killed, and came back after 5, 25
and 45 s: the former died each time, the latter was answered 0.2 s later. What differs:

- A transaction that holds an offset is no error: the consumer asks again by itself until the time is over.
  To tell this from a coordinator that does not answer, a partition that does not exist is asked for next: no
  transaction holds it, and answers come in the order of the questions. Where it took less than half the time
  that was given to the question, the question was answered as well: with "not yet".
- confluent-kafka 2.16 lets one call at a time into a consumer. So a question is given little time, whoever
  waits for a turn does so no longer than they said, and two kinds of question do not wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

#: What a question for stable offsets is given, an answer takes 0.3 to 1 ms; or so many times what the
#: coordinator took last, where that is more, and no more than this part of all.
TURN_S: Final = 0.01
TURNS: Final = 4
#: A consumer asks again after this while a transaction holds an offset, normally for a few ms.
AGAIN_MS: Final = 5
#: No topic has so many partitions.
NOWHERE: Final = 2**31 - 1
#: Critical only, where the caller's settings do not say. Whoever asks is told of what goes wrong.
LOG_LEVEL: Final = 2
#: What a coordinator says that is on the move: asked again, while there is time.
_MOVING: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)

Partitions = Sequence[TopicPartition]
Ask = Callable[[Partitions, float], list[TopicPartition]]


class GroupOffsets:
    """Thread-safe. A consumer (four threads, 0.6 MB) is made when its kind of question is first asked."""

    def __init__(self, config: Mapping[str, Any], group: str, *, make: Callable[..., Any] = Consumer) -> None:
        """``config``: librdkafka's, of any client; ``make``: makes a consumer of one, at once."""
        self._stable = _Asked(config, group, "read_committed", make)
        self._newest = _Asked(config, group, "read_uncommitted", make)
        self._given_s = TURN_S
        #: Has found the coordinator.
        self._met = False

    def connect(self, topic: str, timeout_s: float) -> None:
        """Have the first question for stable offsets answered at once and not after 20 ms. Blocks for as long
        as connecting takes, at most ``timeout_s``; that it did not succeed is for the question to say."""
        with contextlib.suppress(KafkaException):
            self.stable([TopicPartition(topic, NOWHERE)], timeout_s)

    def stable(self, partitions: Partitions, timeout_s: float) -> list[TopicPartition] | None:
        """The committed offsets with their metadata, below zero where there is none. ``None`` where a
        transaction that writes one of them is still open, which is told after about ``TURN_S``.

        Blocks for ``timeout_s`` at most. Raises KafkaException, also for what is said of one partition.
        """
        end = time.monotonic() + timeout_s
        nowhere = [TopicPartition(partitions[0].topic, NOWHERE)]
        with self._stable.turn(end) as ask:
            if not self._met:
                ask(nowhere, timeout_s)
                self._met = True
            while True:
                given = min(self._given_s, end - time.monotonic())
                try:
                    return ask(partitions, given)
                except KafkaException as raised:
                    if raised.args[0].code() != KafkaError._TIMED_OUT:
                        raise
                asked = time.monotonic()
                ask(nowhere, timeout_s)
                took = time.monotonic() - asked
                self._given_s = min(max(TURN_S, TURNS * took), timeout_s / TURNS)
                if took < given / 2:
                    return None

    def newest(self, partitions: Partitions, timeout_s: float) -> list[TopicPartition]:
        """As :meth:`stable`, whatever is pending: what was committed before that."""
        with self._newest.turn(time.monotonic() + timeout_s) as ask:
            return ask(partitions, timeout_s)

    def close(self) -> None:
        """Let the consumers go: at once, or when the calls that are under way return."""
        self._stable.consumer = self._newest.consumer = None
        self._met = False


class _Asked:
    """One consumer, one call at a time."""

    def __init__(
        self, config: Mapping[str, Any], group: str, isolation: str, make: Callable[..., Any]
    ) -> None:
        self._config = {
            "log_level": LOG_LEVEL,
            **config,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "retry.backoff.ms": AGAIN_MS,
            "retry.backoff.max.ms": AGAIN_MS,
        }
        self._make = make
        self.consumer: Any = None
        self._turns = threading.Condition()
        #: Whoever has the turn, and who waits for it.
        self._line: deque[object] = deque()

    @contextlib.contextmanager
    def turn(self, end: float) -> Iterator[Ask]:
        """Waits for it until ``end``, when the questions end too. Those are partitions and seconds given."""
        me, left = object(), max(0.0, end - time.monotonic())
        with self._turns:
            self._line.append(me)
            if not self._turns.wait_for(lambda: self._line[0] is me, left):
                self._line.remove(me)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the group's coordinator is silent"))
        try:
            asked = self.consumer = self.consumer or self._make(self._config)
            yield lambda partitions, given_s: _answer(asked, list(partitions), given_s, end)
        finally:
            with self._turns:
                self._line.remove(me)
                self._turns.notify_all()


def _answer(consumer: Any, partitions: Partitions, given_s: float, end: float) -> list[TopicPartition]:
    while True:
        try:
            left_s = max(0.0, end - time.monotonic())
            found = consumer.committed(partitions, timeout=max(0.0, min(given_s, left_s)))
            # Whoever asks about nowhere only wants to hear an answer.
            for tp in found:
                if tp.error is not None and tp.partition != NOWHERE:
                    raise KafkaException(tp.error)
            return list(found)
        except KafkaException as raised:
            if raised.args[0].code() not in _MOVING or time.monotonic() > end:
                raise
        time.sleep(TURN_S)
