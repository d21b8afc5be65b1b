"""Three nodes on this machine, by the command line: what a single one cannot show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from refold.broker import EmbeddedCluster
from refold.cli.main import run
from refold.errors import UsageError

ANSWER_S_MAX = 90.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "broker"
    run(["broker", "down", "--wipe", "--dir", str(tmp_path / "broker")])


def call(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    code = run(["broker", *words, "--json"])
    return code, json.loads(capfd.readouterr().out.splitlines()[-1])


def written(bootstrap: str, count: int) -> int:
    """Records acknowledged by all copies that are in sync, spread over the partitions."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number in range(count):
        producer.produce(
            "t",
            b"x",
            partition=number % 3,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )
    assert producer.flush(ANSWER_S_MAX) == 0
    return count - len(failed)


@pytest.mark.broker
def test_one_of_three_may_be_down(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Goal: three copies, two in sync needed: everything is writable with a node stopped, and after its
    return all three hold everything; the address survives down and up."""
    at = ("--dir", str(directory))
    code, up = call(capfd, "up", "--nodes", "3", *at)
    assert (code, up["started"], up["nodes"]) == (0, [1, 2, 3], [1, 2, 3])
    bootstrap = up["bootstrap"]
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    client.create_topics([NewTopic("t", 3)])["t"].result(ANSWER_S_MAX)
    assert written(bootstrap, 30) == 30

    assert call(capfd, "node", "stop", "2", *at) == (0, {"node": 2, "stopped": True})
    code, seen = call(capfd, "status", *at)
    assert (code, [row["running"] for row in seen["nodes"]]) == (4, [True, False, True])
    assert written(bootstrap, 30) == 30

    assert call(capfd, "node", "start", "2", *at) == (0, {"node": 2, "started": True})
    code, seen = call(capfd, "status", *at)
    assert (code, [row["answering"] for row in seen["nodes"]]) == (0, [True, True, True])
    topic = client.list_topics("t", ANSWER_S_MAX).topics["t"]
    assert all(sorted(partition.replicas) == [1, 2, 3] for partition in topic.partitions.values())

    assert call(capfd, "down", *at)[1]["stopped"] is True
    assert call(capfd, "status", *at)[0] == 3
    assert run(["broker", "node", "start", "2", *at]) == UsageError.exit_code, "alone it has no majority"
    assert "no majority" in capfd.readouterr().err


def test_a_directory_stays_what_it_is(tmp_path: Path) -> None:
    """Goal: neither a single broker's data nor another number of nodes is taken over silently."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(UsageError, match="single broker"):
        EmbeddedCluster(tmp_path / "one", nodes=3)
    (tmp_path / "three").mkdir()
    nodes = {str(number): {"client": 20_000 + number, "controller": 21_000 + number} for number in (1, 2, 3)}
    plan = {"version": 1, "cluster_id": "x", "heap_mib": 384, "properties": {"a": "1"}, "nodes": nodes}
    (tmp_path / "three" / "cluster.json").write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="3 nodes, not 5"):
        EmbeddedCluster(tmp_path / "three", nodes=5)
    with pytest.raises(UsageError, match="without a"):
        EmbeddedCluster(tmp_path / "three", properties={"a": "2"})
    cluster = EmbeddedCluster(tmp_path / "three")
    assert cluster.bootstrap == "127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
    with pytest.raises(UsageError, match="no node 4"):
        cluster.stop_node(4)
    for impossible in (1, 2, 10):
        with pytest.raises(UsageError, match="3 to 9"):
            EmbeddedCluster(tmp_path / "new", nodes=impossible)


def test_nodes_know_each_other_and_copy(tmp_path: Path) -> None:
    """Goal: the settings of a node are those of a cluster; a single broker's are not touched by it."""
    from refold.broker.ports import Ports
    from refold.broker.properties import Node, server_properties

    ports = Ports(client=1, controller=11, internal=1)
    node = Node(id=2, ports=ports, voters={1: 10, 2: 11, 3: 12}, cluster_id="x")
    changes = {"min.insync.replicas": "1"}
    made = server_properties(data=tmp_path, ports=ports, changes=changes, jaas=None, node=node)
    assert made["node.id"] == "2"
    assert made["controller.quorum.voters"] == "1@127.0.0.1:10,2@127.0.0.1:11,3@127.0.0.1:12"
    assert made["default.replication.factor"] == made["offsets.topic.replication.factor"] == "3"
    assert made["min.insync.replicas"] == "1"
    alone = server_properties(data=tmp_path, ports=ports, changes={}, jaas=None)
    assert alone["node.id"] == "1"
    assert alone["controller.quorum.voters"] == "1@127.0.0.1:11"
    assert alone["offsets.topic.replication.factor"] == "1"
    assert "min.insync.replicas" not in alone
