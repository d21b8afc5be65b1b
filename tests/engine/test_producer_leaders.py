"""Our own producer on three nodes, while leaders and coordinators move from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from engine.producer_world import ANSWER_S_MAX, committed, flushed, patiently, producer, settled, unjoined
from refold.broker import EmbeddedCluster
from refold.engine.producer.producer import WireProducer
from refold.ops.verify.nodes import elect_preferred, leaders, wait_in_sync

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = range(6)
PER_TRANSACTION = 5
STEPS = ("begun", "offsets sent", "records handed over", "records in")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("three"), nodes=3) as cluster:
        yield cluster


class Committing:
    """Numbered transactions over all partitions; one that is to be aborted is made again, as the engine
    does it."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self.topic, self.bootstrap = topic, cluster.bootstrap
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self.admin.create_topics([NewTopic(topic, len(PARTITIONS))])[topic].result(ANSWER_S_MAX)
        self.made = producer(cluster.bootstrap, topic, group=topic)
        self.meta = unjoined(cluster.bootstrap, topic)
        self.number = 0

    def commit(self, step: str = "", trouble: Callable[[], None] | None = None) -> None:
        """``trouble`` comes once, when ``step`` is done."""
        steps = self._steps(self.made)
        while True:
            try:
                for done in steps:
                    if done == step and trouble is not None:
                        trouble, now = None, trouble
                        now()
                break
            except KafkaException as raised:
                if raised.args[0].fatal():
                    raise
                patiently(self.made.abort_transaction, 1.0)
                steps = self._steps(self.made)
        self.number += 1

    def _steps(self, made: WireProducer) -> Iterator[str]:
        patiently(made.begin_transaction)
        yield "begun"
        offset = TopicPartition(self.topic, 0, self.number, "m")
        patiently(made.send_offsets_to_transaction, [offset], self.meta, 1.0)
        yield "offsets sent"
        for partition in PARTITIONS:
            for record in range(PER_TRANSACTION):
                made.produce(self.topic, self._value(self.number, record), b"k", partition)
        yield "records handed over"
        flushed(made, 1.0)
        yield "records in"
        patiently(made.commit_transaction, 1.0)

    def compare(self) -> None:
        """Each record is there once and in order, and the offset is that of the last transaction."""
        due = [self._value(n, record) for n in range(self.number) for record in range(PER_TRANSACTION)]
        for partition in PARTITIONS:
            found = settled(self.bootstrap, self.topic, partition, len(due))
            assert [value for _, value in found] == due
        assert committed(self.bootstrap, self.topic, TopicPartition(self.topic, 0)).offset == self.number - 1

    def leads(self) -> list[int]:
        """Node by partition."""
        found = leaders(self.admin)
        return [found[self.topic, partition] for partition in PARTITIONS]

    def give_back(self) -> None:
        """Every partition to the first of its nodes."""
        assert elect_preferred(self.admin) > 0

    @staticmethod
    def _value(number: int, record: int) -> bytes:
        return b"%d-%d" % (number, record)


def test_leaders_and_coordinators_that_move_at_every_step_cost_no_record(
    three: EmbeddedCluster, topic_prefix: str
) -> None:
    """Goal: nothing lost or doubled. Method: every node is stopped in order and started once, each at
    another step; its partitions are given back in the middle of a transaction as well."""
    one = Committing(three, f"{topic_prefix}t")
    steps = cycle(STEPS)
    for node in three.numbers:
        one.commit()
        one.commit(next(steps), lambda node=node: three.stop_node(node))  # type: ignore[misc]
        assert node not in one.leads()
        one.commit()
        three.start_node(node)
        wait_in_sync(one.admin, three.numbers)
        one.commit(next(steps), one.give_back)
        one.commit()
        assert set(one.leads()) == set(three.numbers)
    one.compare()


@pytest.mark.parametrize("step", ["offsets sent", "records in"])
def test_a_leader_killed_in_a_transaction_is_succeeded(
    three: EmbeddedCluster, topic_prefix: str, step: str
) -> None:
    """Goal: what was acknowledged is committed by the successors, what was not is sent to them. The node
    leads partitions and comes back as one that was away."""
    one = Committing(three, f"{topic_prefix}t")
    one.commit()
    node = one.leads()[0]
    one.commit(step, lambda: three.kill_node(node))
    assert node not in one.leads()
    one.commit()
    three.start_node(node)
    wait_in_sync(one.admin, three.numbers)
    one.commit("records handed over", one.give_back)
    one.compare()
