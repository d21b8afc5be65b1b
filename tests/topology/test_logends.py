"""A moving leader is an error and never an offset: what librdkafka answers then (measured) must not be taken
for the end of a log."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from refold.engine.takeover import ensure_retry
from refold.topology.failures import explain
from refold.topology.logends import known_ends, list_ends, log_ends

PLACES = {TopicPartition("state", 0): OffsetSpec.latest(), TopicPartition("inbox", 0): OffsetSpec.latest()}


class FakeAdmin:
    """Answers with the given offset or error, and notes whose metadata was asked for."""

    def __init__(self, answer: int | KafkaError) -> None:
        self._answer = answer
        self.refreshed: list[str] = []
        self.isolation: list[Any] = []

    def list_offsets(
        self, asked: Any, *, isolation_level: Any, request_timeout: float
    ) -> dict[Any, Future[Any]]:
        answered = {}
        self.isolation.append(isolation_level)
        for place in asked:
            future = answered[place] = Future[Any]()
            if isinstance(self._answer, KafkaError):
                future.set_exception(KafkaException(self._answer))
            else:
                future.set_result(SimpleNamespace(offset=self._answer))
        return answered

    def list_topics(self, topic: str, *, timeout: float) -> None:
        self.refreshed.append(topic)


def ends(admin: FakeAdmin) -> dict[tuple[str, int], int]:
    return list_ends(admin, PLACES, IsolationLevel.READ_UNCOMMITTED, 1.0)  # type: ignore[arg-type]


def test_an_end_is_an_end() -> None:
    admin = FakeAdmin(7)
    assert ends(admin) == {("state", 0): 7, ("inbox", 0): 7}
    assert admin.refreshed == []


@pytest.mark.parametrize("answer", [-1001, -1, KafkaError(KafkaError.FENCED_LEADER_EPOCH)])
def test_t_no_leader_is_no_end_and_asking_again_makes_sense(answer: int | KafkaError) -> None:
    """Goal: rule T's marks are never taken from a partition without a leader (it answers -1001 and no error:
    nothing to read), nor asked for with the same outdated epoch for ever."""
    admin = FakeAdmin(answer)
    with pytest.raises(KafkaException) as raised:
        ends(admin)
    assert admin.refreshed == ["inbox", "state"]
    assert ensure_retry(explain(raised.value, doing="reading", bootstrap="127.0.0.1:1"))


def test_what_has_nothing_to_do_with_leaders_is_passed_on() -> None:
    admin = FakeAdmin(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaException):
        ends(admin)
    assert admin.refreshed == []


def test_log_ends_are_told_in_the_order_asked() -> None:
    """Goal: the one question of takeovers, of lag and of the checks: in order, uncommitted ones too unless
    readers' ends are asked for."""

    class ByPartition(FakeAdmin):
        def list_offsets(self, asked: Any, **options: Any) -> dict[Any, Future[Any]]:
            answered = super().list_offsets(asked, **options)
            told = dict(reversed(answered.items()))
            for place in told:
                told[place] = Future()
                told[place].set_result(SimpleNamespace(offset=100 + place.partition))
            return told

    admin: Any = ByPartition(0)
    asked = [TopicPartition("inbox", number) for number in (3, 1, 2)]
    assert log_ends(admin, asked, 1.0) == [103, 101, 102]
    assert log_ends(admin, asked, 1.0, IsolationLevel.READ_COMMITTED) == [103, 101, 102]
    assert admin.isolation == [IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED]


def test_who_asks_for_many_is_told_of_those_that_have_a_leader() -> None:
    """Goal: one partition without a leader keeps nobody from the others' ends; where there is none at all it
    is the error it was."""
    admin = FakeAdmin(7)
    answered = admin.list_offsets

    def one_without(asked: Any, **options: Any) -> dict[Any, Future[Any]]:
        found = answered(asked, **options)
        found[TopicPartition("inbox", 0)] = FakeAdmin(-1001).list_offsets(asked, **options)[
            TopicPartition("inbox", 0)
        ]
        return found

    admin.list_offsets = one_without  # type: ignore[method-assign]
    known = known_ends(admin, PLACES, IsolationLevel.READ_COMMITTED, 1.0)  # type: ignore[arg-type]
    assert known == {("state", 0): 7}
    assert admin.refreshed == ["inbox", "state"]
    with pytest.raises(KafkaException):
        ends(admin)
    with pytest.raises(KafkaException):
        known_ends(FakeAdmin(-1001), PLACES, IsolationLevel.READ_COMMITTED, 1.0)  # type: ignore[arg-type]
