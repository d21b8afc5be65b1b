"""What a group has committed, asked by consumers that never join it.

``AdminClient.list_consumer_group_offsets`` of librdkafka 2.16 ends the process: a request that is under way
when its broker goes away, or that meets one which is not the coordinator, makes it turn to a consumer group
that such a client has not got (SIGSEGV, librdkafka issue 5040; or the abort that
:mod:`refold.topology.lasting` tells of, measured after each of three restarts of a broker).
``Consumer.committed`` asks the same coordinator the same, with the same right (Describe on the group), and
survived all three, 5, 25 and 45 s long: the same consumer was answered 0.2 s after the broker was back.

Three things are different, all measured:

- A transaction that holds an offset is no error: the consumer asks again by itself until the time is over.
  To tell this from a coordinator that does not answer, a partition that does not exist is asked for next: no
  transaction holds it, and answers come in the order of the questions. Where it took less than half the time
  that was given to the question, the question was answered as well: with "not yet".
- confluent-kafka 2.16 lets one call at a time into a consumer. So a question is given little time, whoever
  waits for a turn does so no longer than they said, and two kinds of question do not wait for each other.
- The first question of a consumer takes 20 ms: it finds the coordinator, and connects.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

#: What a question for stable offsets is given at first; an answer takes 0.3 to 1 ms.
TURN_S: Final = 0.02
#: And so many times what the coordinator took last, where that is more: no more than this part of all.
TURNS: Final = 4
#: A consumer asks again after this while a transaction holds an offset; it normally ends within a few ms.
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
#: Of partitions and the seconds that the question is given.
Ask = Callable[[Partitions, float], list[TopicPartition]]
Make = Callable[[dict[str, Any]], Any]


class GroupOffsets:
    """Thread-safe. A consumer (four threads, 0.6 MB) is made when its kind of question is first asked."""

    def __init__(self, config: Mapping[str, Any], group: str, *, make: Make = Consumer) -> None:
        """``config``: librdkafka's, of any client; ``make``: makes a consumer of one, at once."""
        self._stable = _Asked(config, group, "read_committed", make)
        self._newest = _Asked(config, group, "read_uncommitted", make)
        self._given_s = TURN_S

    def connect(self, topic: str, timeout_s: float) -> None:
        """Have the first question for stable offsets answered at once. Blocks for as long as connecting
        takes, at most ``timeout_s``; that it did not succeed is for the question to say."""
        with contextlib.suppress(KafkaException), self._stable.turn(time.monotonic() + timeout_s) as ask:
            ask([TopicPartition(topic, NOWHERE)], timeout_s)

    def stable(self, partitions: Partitions, timeout_s: float) -> list[TopicPartition] | None:
        """The committed offsets with their metadata, below zero where there is none. ``None`` where a
        transaction that writes one of them is still open, which is told after about ``TURN_S``.

        Blocks for ``timeout_s`` at most. Raises KafkaException, also for what is said of one partition.
        """
        end = time.monotonic() + timeout_s
        with self._stable.turn(end) as ask:
            while True:
                given = min(self._given_s, end - time.monotonic())
                try:
                    return _granted(ask(partitions, given))
                except KafkaException as raised:
                    if _code(raised) != KafkaError._TIMED_OUT:
                        raise
                asked = time.monotonic()
                ask([TopicPartition(partitions[0].topic, NOWHERE)], end - asked)
                took = time.monotonic() - asked
                self._given_s = min(max(TURN_S, TURNS * took), timeout_s / TURNS)
                if took < given / 2:
                    return None

    def newest(self, partitions: Partitions, timeout_s: float) -> list[TopicPartition]:
        """As :meth:`stable`, whatever is pending: what was committed before that."""
        end = time.monotonic() + timeout_s
        with self._newest.turn(end) as ask:
            return _granted(ask(partitions, timeout_s))

    def close(self) -> None:
        """Let the consumers go: at once, or when the calls that are under way return."""
        self._stable.consumer = self._newest.consumer = None


class _Asked:
    """One consumer, one call at a time."""

    def __init__(self, config: Mapping[str, Any], group: str, isolation: str, make: Make) -> None:
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
        self._taken = False

    @contextlib.contextmanager
    def turn(self, end: float) -> Iterator[Ask]:
        """Waits for it until ``end``, which is also when the questions end that are asked in it."""
        with self._turns:
            if not self._turns.wait_for(lambda: not self._taken, max(0.0, end - time.monotonic())):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the group's coordinator is silent"))
            self._taken = True
        try:
            consumer = self.consumer = self.consumer or self._make(self._config)
            yield lambda partitions, given_s: _answer(consumer, list(partitions), given_s, end)
        finally:
            with self._turns:
                self._taken = False
                self._turns.notify()


def _answer(consumer: Any, partitions: Partitions, given_s: float, end: float) -> list[TopicPartition]:
    while True:
        try:
            left = min(given_s, end - time.monotonic())
            return list(consumer.committed(partitions, timeout=max(0.0, left)))
        except KafkaException as raised:
            if _code(raised) not in _MOVING or time.monotonic() > end:
                raise
        time.sleep(TURN_S)


def _granted(found: list[TopicPartition]) -> list[TopicPartition]:
    for tp in found:
        if tp.error is not None:
            raise KafkaException(tp.error)
    return found


def _code(raised: KafkaException) -> int:
    return int(raised.args[0].code())
