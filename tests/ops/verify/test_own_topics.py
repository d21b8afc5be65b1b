"""A run's own topics and group on a real broker: under a prefix that nobody else has, and gone at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.ops.verify.own import delete, leave, own_settings
from refold.settings import Settings
from refold.testing.kafka import Kafka
from refold.topology import TopicNames, Topology

pytestmark = pytest.mark.broker

WAIT_S = 60.0


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_topics_and_group_of_a_run_are_gone_after_it(kafka: Kafka, tmp_path: Path) -> None:
    settings = Settings()
    there = settings.kafka.model_copy(update={"bootstrap": kafka.bootstrap})
    settings = settings.model_copy(update={"kafka": there})
    gone, stays = (own_settings(settings, "test", 1, 1) for _ in range(2))
    assert gone.topic_prefix != stays.topic_prefix
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def topics(own: Settings) -> int:
        return sum(name.startswith(f"{own.topic_prefix}.") for name in admin.list_topics(timeout=30).topics)

    def groups() -> set[str]:
        return {group.group_id for group in admin.list_consumer_groups().result().valid}

    for own in (gone, stays):
        Topology.of(own).apply(own)
        names = TopicNames(own.topic_prefix)
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": names.group})
        consumer.commit(offsets=[TopicPartition(names.inbox, 0, 0)], asynchronous=False)
        consumer.close()
    both = {gone.topic_prefix, stays.topic_prefix}
    wait(lambda: both <= groups())
    every = topics(stays)
    assert every == topics(gone) == len(Topology.of(gone).topics)
    try:
        await leave(gone, tmp_path, lambda _: None, keep=False)
        wait(lambda: topics(gone) == 0)
        wait(lambda: gone.topic_prefix not in groups())
        assert topics(stays) == every
        assert stays.topic_prefix in groups()
        delete(gone, [TopicNames(gone.topic_prefix).inbox], gone.topic_prefix)  # absent: fine
    finally:
        await leave(stays, tmp_path, lambda _: None, keep=False)
