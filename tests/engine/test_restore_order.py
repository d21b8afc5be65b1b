"""Admission on a real broker: the order in which a worker restores, and the rate at which it reads."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from engine.check import differences
from engine.cluster import Cluster
from engine.traffic import TENANT, Traffic, message_event
from engine.workers import Worker, wait_ruled
from refold.core.slots import SlotMap, make_key
from refold.engine.admission import BURST_S
from refold.testing.kafka import Kafka
from refold.wire.envelope import encode_envelope

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


def moves(worker: Worker, state: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in worker.log().splitlines() if line.startswith("{")]
    return [row for row in rows if row.get("event") == "partition_moved" and row["state"] == state]


def test_core_first_then_where_more_waits(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: with one restore at a time: the partition of the core session, then by unread inbox records."""
    slots = SlotMap(cluster.partitions)
    names: dict[int, str] = {}
    number = 0
    while len(names) < cluster.partitions:
        names.setdefault(slots.partition(make_key(TENANT, f"s{number}")), f"s{number}")
        number += 1
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for partition, count in {0: 3, 1: 40, 2: 1, 3: 20}.items():
        for index in range(count):
            producer.produce(
                cluster.topics.inbox,
                key=make_key(TENANT, names[partition]),
                value=encode_envelope(message_event(partition * 100 + index, names[partition])),
                partition=partition,
            )
    assert producer.flush(120) == 0
    worker = Worker(
        cluster,
        tmp_path,
        "a",
        session_timeout_ms=60_000,
        REFOLD_WORKER__RESTORES_MAX="1",
        REFOLD_WORKER__RESTORE_FIRST=f"{TENANT}/{names[2]}",
    )
    with worker:
        worker.wait_live(4)
        assert [row["partition"] for row in moves(worker, "restoring")] == [2, 1, 3, 0]
        wait_ruled(cluster)
        assert worker.stop() == 0


def test_a_cold_restore_keeps_to_the_rate(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: twice as many bytes as may be read in a second take about two, and come out right."""
    traffic = Traffic(cluster)
    worker = Worker(cluster, tmp_path, "a", session_timeout_ms=60_000)
    with worker:
        worker.wait_live(4)
        traffic.send(600)
        wait_ruled(cluster)
        assert worker.stop() == 0
    shutil.rmtree(worker.data_dir)
    topics = cluster.topics
    size = sum(
        len(message) + len(message.key() or b"")
        for topic in (topics.state, topics.history, topics.generations)
        for message in cluster.read(topic)
    )
    worker.environment["REFOLD_WORKER__RESTORE_BYTES_PER_S_MAX"] = str(size // 2)
    with worker:
        worker.wait_live(4)
        first = datetime.fromisoformat(moves(worker, "restoring")[0]["timestamp"])
        last = datetime.fromisoformat(moves(worker, "live")[-1]["timestamp"])
        # The last chunk of each of two restores is waited for by nobody else.
        assert (last - first).total_seconds() >= 2.0 - BURST_S - 0.1
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []
