"""What a group has committed, asked by a consumer: what is pending is told from what is not answered, nobody
waits for longer than they said, and a broker that goes away under the questions ends no process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from refold.broker import EmbeddedBroker
from refold.testing.kafka import Kafka
from refold.topology import groupoffsets
from refold.topology.groupoffsets import NOWHERE, TURN_S, GroupOffsets

ASKER = Path(__file__).with_name("offsets_asker.py")
ASKED = [TopicPartition("in", 0)]

#: As the engine's tests: one answer of a broker on a busy machine.
ANSWER_S_MAX = 60.0


class Coordinator:
    """A clock, and a consumer that takes its time on it: seconds per answer, and what is held."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.answer_s = 0.001
        self.held = False
        self.codes: list[int] = []
        self.asked: list[tuple[int, float]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def committed(self, partitions: list[TopicPartition], *, timeout: float) -> list[TopicPartition]:
        self.asked.append((partitions[0].partition, timeout))
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop(0)))
        if self.answer_s > timeout or (self.held and partitions[0].partition != NOWHERE):
            self.now += timeout
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self.now += self.answer_s
        return [TopicPartition(tp.topic, tp.partition, 7, "meta") for tp in partitions]


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    made = Coordinator()
    monkeypatch.setattr(groupoffsets, "time", made)
    return made


def code(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(raised.value.args[0].code())


def test_what_a_transaction_holds_is_told_soon(coordinator: Coordinator) -> None:
    offsets = GroupOffsets({}, "g", make=lambda config: coordinator)
    coordinator.held = True
    assert offsets.stable(ASKED, 5.0) is None
    assert coordinator.now - 1_000 < 2 * TURN_S
    coordinator.held = False
    assert [(tp.offset, tp.metadata) for tp in offsets.stable(ASKED, 5.0) or ()] == [(7, "meta")]


@pytest.mark.parametrize("answer_s", [0.019, 0.021, 0.05, 0.3, 1.2])
def test_a_slow_coordinator_is_never_taken_for_a_transaction(
    coordinator: Coordinator, answer_s: float
) -> None:
    """Goal: a takeover fences the last writer where an offset is held for 200 ms. It must not because of a
    coordinator far away, or of a busy one."""
    offsets = GroupOffsets({}, "g", make=lambda config: coordinator)
    coordinator.answer_s = answer_s
    for _ in range(3):
        assert offsets.stable(ASKED, 10.0) is not None
    coordinator.held = True
    assert offsets.stable(ASKED, 10.0) is None, "and what is held is told there too"
    coordinator.held, coordinator.answer_s = False, 0.001
    assert offsets.stable(ASKED, 10.0) is not None


def test_a_silent_coordinator_is_an_error_when_the_time_is_over(coordinator: Coordinator) -> None:
    offsets = GroupOffsets({}, "g", make=lambda config: coordinator)
    coordinator.answer_s = float("inf")
    for ask in (offsets.stable, offsets.newest):
        began = coordinator.now
        with pytest.raises(KafkaException) as raised:
            ask(ASKED, 5.0)
        assert code(raised) == KafkaError._TIMED_OUT
        assert coordinator.now - began == pytest.approx(5.0)
    offsets.connect("in", 1.0)  # says nothing: the question does


def test_a_coordinator_on_the_move_is_asked_again_and_a_refusal_is_not(coordinator: Coordinator) -> None:
    offsets = GroupOffsets({}, "g", make=lambda config: coordinator)
    moving = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]
    coordinator.codes = [*moving, *moving]
    assert offsets.stable(ASKED, 5.0) is not None
    assert len(coordinator.asked) == len([*moving, *moving, "connect", "ask"])
    coordinator.codes = [KafkaError.NOT_COORDINATOR] * 1_000
    with pytest.raises(KafkaException) as raised:
        offsets.newest(ASKED, 5.0)
    assert code(raised) == KafkaError.NOT_COORDINATOR
    coordinator.codes = [KafkaError.GROUP_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaException) as raised:
        offsets.stable(ASKED, 5.0)
    assert code(raised) == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_nobody_waits_for_a_turn_longer_than_they_said() -> None:
    """Goal: a consumer answers one call at a time. Method: one that holds its first call until told."""
    called, go_on = threading.Event(), threading.Event()

    class Slow:
        def committed(self, partitions: list[TopicPartition], *, timeout: float) -> list[TopicPartition]:
            called.set()
            assert go_on.wait(ANSWER_S_MAX)
            return partitions

    offsets = GroupOffsets({}, "g", make=lambda config: Slow())
    first = threading.Thread(target=offsets.stable, args=(ASKED, ANSWER_S_MAX))
    first.start()
    assert called.wait(ANSWER_S_MAX)
    with pytest.raises(KafkaException) as raised:
        offsets.stable(ASKED, 0.01)
    assert code(raised) == KafkaError._TIMED_OUT
    go_on.set()
    assert offsets.newest(ASKED, ANSWER_S_MAX), "another kind of question has a consumer of its own"
    first.join(ANSWER_S_MAX)
    assert offsets.stable(ASKED, ANSWER_S_MAX), "the turn was given back"


def test_a_consumer_is_made_when_it_is_asked_and_again_after_a_close() -> None:
    made: list[dict[str, Any]] = []

    class Plain:
        def committed(self, partitions: list[TopicPartition], *, timeout: float) -> list[TopicPartition]:
            return partitions

    def make(config: dict[str, Any]) -> Plain:
        made.append(config)
        return Plain()

    offsets = GroupOffsets({"log_level": 6, "group.id": "not this one"}, "g", make=make)
    assert made == []
    for _ in range(2):
        offsets.stable(ASKED, 1.0)
        offsets.newest(ASKED, 1.0)
    assert [config["isolation.level"] for config in made] == ["read_committed", "read_uncommitted"]
    assert {(config["group.id"], config["log_level"]) for config in made} == {("g", 6)}
    offsets.close()
    offsets.stable(ASKED, 1.0)
    assert len(made) == 3


# --- against a real broker --------------------------------------------------------------------------


def transaction(producer: Producer, group: str, *offsets: TopicPartition) -> None:
    """Begun, and its offsets sent."""
    named = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group, "log_level": 0})
    producer.begin_transaction()
    producer.send_offsets_to_transaction(list(offsets), named.consumer_group_metadata(), ANSWER_S_MAX)


@pytest.mark.broker
def test_metadata_nothing_and_what_is_held_on_a_real_broker(kafka: Kafka, topic_prefix: str) -> None:
    topic, group = f"{topic_prefix}in", f"{topic_prefix}g"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(ANSWER_S_MAX)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(ANSWER_S_MAX)
    offsets = GroupOffsets({"bootstrap.servers": kafka.bootstrap}, group)
    offsets.connect(topic, ANSWER_S_MAX)
    both = [TopicPartition(topic, number) for number in (0, 1)]

    def known(found: list[TopicPartition] | None) -> list[tuple[int, str | None]] | None:
        return found and [(tp.offset, tp.metadata) for tp in sorted(found, key=lambda tp: tp.partition)]

    def settled(found: list[tuple[int, str | None]]) -> None:
        """Markers are written after a commit was answered."""
        end = time.monotonic() + ANSWER_S_MAX
        while (now := offsets.stable(both, ANSWER_S_MAX)) is None:
            assert time.monotonic() < end
        assert known(now) == found

    settled([(-1001, None), (-1001, None)])
    transaction(producer, group, TopicPartition(topic, 0, 5, '{"v":1}'))
    producer.commit_transaction(ANSWER_S_MAX)
    settled([(5, '{"v":1}'), (-1001, None)])
    transaction(producer, group, TopicPartition(topic, 0, 7, '{"v":2}'))
    assert offsets.stable(both, ANSWER_S_MAX) is None
    assert known(offsets.stable(both[1:], ANSWER_S_MAX)) == [(-1001, None)], "only what it writes is held"
    assert known(offsets.newest(both, ANSWER_S_MAX)) == [(5, '{"v":1}'), (-1001, None)]
    producer.commit_transaction(ANSWER_S_MAX)
    settled([(7, '{"v":2}'), (-1001, None)])
    offsets.close()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Its own broker: the shared one must not be killed. About 300 MB for the length of one test."""
    with EmbeddedBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.mark.broker
@pytest.mark.slow
def test_a_broker_that_is_killed_under_the_questions_ends_no_process(mortal: EmbeddedBroker) -> None:
    """Goal: the process goes on, and the same consumers are answered when the broker is back. Method: four
    threads of a process of its own that ask without a pause; SIGKILL to the broker, its restart when all of
    them have noticed. (Asked of an AdminClient, the process ends by SIGABRT or SIGSEGV.)"""
    admin = AdminClient({"bootstrap.servers": mortal.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic("in", 1, 1)])["in"].result(ANSWER_S_MAX)
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, str(ASKER), mortal.bootstrap, "g", "in"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    ) as asker:  # fmt: skip
        assert asker.stdin is not None
        assert asker.stdout is not None
        # Each line is waited for; the test's own time limit is the deadline.
        assert asker.stdout.readline() == "answered\n"
        mortal.kill()
        assert asker.stdout.readline() == "unanswered\n", f"exit status {asker.poll()}"
        mortal.start()
        assert asker.stdout.readline() == "answered\n", f"exit status {asker.poll()}"
        asker.stdin.close()
        assert asker.wait(ANSWER_S_MAX) == 0
