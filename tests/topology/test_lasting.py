"""An admin client whose requests to the coordinator time out is replaced; what is under way is answered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from refold.topology.lasting import OPERATION_S, RENEW_S_MIN, RETIRED_MAX, _Lasting


class FakeAdmin:
    """Keeps its futures open until told how they end."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.asked_for: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def describe_consumer_groups(
        self, groups: list[str], *, request_timeout: float
    ) -> dict[str, Future[Any]]:
        self.meanwhile()
        self.asked_for.append(request_timeout)
        self.futures.append(Future())
        return {groups[0]: self.futures[-1]}

    def list_topics(self) -> FakeAdmin:
        return self


class World:
    def __init__(self) -> None:
        self.clients: list[FakeAdmin] = []
        self.now = 1_000.0
        self.admin: Any = _Lasting(self.make, lambda: self.now)  # type: ignore[arg-type]

    def make(self) -> FakeAdmin:
        self.clients.append(FakeAdmin())
        return self.clients[-1]

    def end(self, code: int) -> None:
        """Ask the present client, and let its answer be this error."""
        self.admin.describe_consumer_groups(["g"], request_timeout=1)
        self.clients[-1].futures[-1].set_exception(KafkaException(KafkaError(code)))


def test_a_timeout_replaces_the_client_for_the_next_request() -> None:
    world = World()
    future = world.admin.describe_consumer_groups(["g"], request_timeout=1)["g"]
    world.clients[0].futures[0].set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    with pytest.raises(KafkaException):
        future.result(0)
    assert len(world.clients) == 1, "not on the thread that told of it"
    assert world.admin.list_topics() is world.clients[1]


def test_other_errors_and_answers_replace_nothing() -> None:
    world = World()
    world.end(KafkaError.GROUP_AUTHORIZATION_FAILED)
    world.admin.describe_consumer_groups(["g"], request_timeout=1)
    world.clients[0].futures[-1].set_result("described")
    assert world.admin.list_topics() is world.clients[0]


def test_whoever_asks_is_told_in_time_and_librdkafka_is_left_to_wait() -> None:
    """Goal: a coordinator that is away ends the question and not the process. Method: an answer that comes
    after its asker was told."""
    world = World()
    future = world.admin.describe_consumer_groups(["g"], request_timeout=0.01)["g"]
    with pytest.raises(KafkaException, match="no answer within"):
        future.result(10)
    assert world.clients[0].asked_for == [OPERATION_S]
    world.clients[0].futures[0].set_result("late")
    with pytest.raises(KafkaException, match="no answer within"):
        future.result(0)


def test_a_cluster_that_is_away_costs_a_client_every_ten_seconds_and_no_memory() -> None:
    """Goal: renewals are spaced; those with a request under way are kept, but only so many."""
    world = World()
    for _ in range(10):
        world.end(KafkaError._TIMED_OUT)
    assert len(world.clients) == 2
    for _ in range(10):
        world.now += RENEW_S_MIN
        world.end(KafkaError._TIMED_OUT)
    assert len(world.clients) == 12
    assert len(world.admin._retired) == 1, "but for the last one, nothing of theirs is open"
    for _ in range(10):
        world.now += RENEW_S_MIN
        world.admin.describe_consumer_groups(["g"], request_timeout=60)
        world.end(KafkaError._TIMED_OUT)
    assert len(world.admin._retired) == RETIRED_MAX
    for client in world.clients:
        for future in client.futures:
            if not future.done():
                future.set_result("at last")
    world.admin.list_topics()
    assert len(world.admin._retired) <= 1


def test_a_client_is_kept_from_the_moment_it_is_chosen() -> None:
    """Goal: none is given up between being chosen and being asked. Method: other threads' time-out and
    questions, in that moment."""
    world = World()
    kept: list[bool] = []

    def others() -> None:
        world.admin._note(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        for _ in range(2):
            world.admin.list_topics()
        kept.append(world.clients[0] in world.admin._retired)

    world.clients[0].meanwhile = others
    world.admin.describe_consumer_groups(["g"], request_timeout=60)
    assert len(world.clients) == 2
    assert kept == [True]
    world.clients[0].futures[0].set_result("described")
    world.admin.list_topics()
    assert not world.admin._retired


def test_what_is_under_way_on_a_replaced_client_is_answered() -> None:
    world = World()
    slow = world.admin.describe_consumer_groups(["g"], request_timeout=1)["g"]
    world.end(KafkaError._TIMED_OUT)
    world.admin.list_topics()
    assert world.clients[0] in world.admin._retired
    world.clients[0].futures[0].set_result("late")
    assert slow.result(0) == "late"
