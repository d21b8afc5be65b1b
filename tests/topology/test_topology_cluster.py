"""Plan and apply on a real broker."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

import forked
from refold.errors import ConfigError
from refold.testing.kafka import Kafka
from refold.topology import Topology

pytestmark = pytest.mark.broker


@pytest.fixture
def prefix(topic_prefix: str) -> str:
    return topic_prefix.rstrip("-")


def set_topic_config(kafka: Kafka, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})  # must outlive its futures
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(90)


def refold(kafka: Kafka, *args: str) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [*forked.REFOLD, "topology", *args, "--bootstrap", kafka.bootstrap], timeout=180, env=os.environ
    )


def last_json(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return value


def test_apply_creates_then_agrees(kafka: Kafka, prefix: str) -> None:
    """First apply creates five topics as specified; the second changes nothing; the plan is empty."""
    topology = Topology.load(prefix, partitions=3)
    assert len(topology.apply(kafka.bootstrap).changes) == len(topology.topics)
    assert topology.apply(kafka.bootstrap).changes == ()
    assert not topology.plan(kafka.bootstrap).differs
    metadata = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=60).topics
    assert {len(metadata[topology.full_name(topic.name)].partitions) for topic in topology.topics} == {3}
    topology.delete(kafka.bootstrap)
    topology.delete(kafka.bootstrap)


def test_a_drifted_config_is_put_back(kafka: Kafka, prefix: str) -> None:
    topology = Topology.load(prefix, partitions=1)
    topology.apply(kafka.bootstrap)
    set_topic_config(kafka, topology.names.state, "min.cleanable.dirty.ratio", "0.9")
    assert [(c.topic, c.before) for c in topology.plan(kafka.bootstrap).changes] == [
        (topology.names.state, "0.9")
    ]
    topology.apply(kafka.bootstrap)
    assert not topology.plan(kafka.bootstrap).differs


def test_what_would_lose_state_is_refused_and_nothing_is_changed(kafka: Kafka, prefix: str) -> None:
    """A partition count together with a safe drift: neither is applied."""
    topology = Topology.load(prefix, partitions=2)
    topology.apply(kafka.bootstrap)
    set_topic_config(kafka, topology.names.state, "segment.ms", "1000000")
    with pytest.raises(ConfigError, match="--partitions 2"):
        Topology.load(prefix, partitions=4).apply(kafka.bootstrap)
    left = topology.plan(kafka.bootstrap)
    assert [c.key for c in left.changes] == ["segment.ms"], "the safe change must not have been made"


def test_a_deleted_state_topic_beside_a_full_journal_is_refused(kafka: Kafka, prefix: str) -> None:
    topology = Topology.load(prefix, partitions=1)
    topology.apply(kafka.bootstrap)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topology.names.journal, b"an event")
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topology.names.state], operation_timeout=60)[topology.names.state].result(90)
    with pytest.raises(ConfigError, match="it was deleted"):
        topology.apply(kafka.bootstrap)


def test_prod_is_refused_on_one_broker(kafka: Kafka, prefix: str) -> None:
    with pytest.raises(ConfigError, match="needs as many brokers"):
        Topology.load(prefix, environment="prod").apply(kafka.bootstrap)


def test_commands_and_exit_codes(kafka: Kafka, prefix: str) -> None:
    """plan 2, apply 0, plan 0, refused plan 2, refused apply 78; --json is the last line of stdout."""
    options = ("--prefix", prefix, "--partitions", "2")
    process = refold(kafka, "plan", *options, "--json")
    assert process.returncode == 2
    assert len(last_json(process)["changes"]) == 10
    process = refold(kafka, "apply", *options, "--json")
    assert (process.returncode, last_json(process)["applied"]) == (0, 10)
    process = refold(kafka, "plan", *options)
    assert (process.returncode, process.stdout) == (0, "the cluster agrees\n")
    process = refold(kafka, "plan", "--prefix", prefix, "--partitions", "4", "--json")
    assert (process.returncode, len(last_json(process)["refused"])) == (2, 10)
    process = refold(kafka, "apply", "--prefix", prefix, "--partitions", "4")
    assert process.returncode == 78
    assert process.stderr.startswith("error: nothing was changed:")
    assert "Traceback" not in process.stderr
