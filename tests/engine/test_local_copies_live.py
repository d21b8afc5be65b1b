"""A live worker whose files rot under it: it answers right or not at all, restores the partition, lives."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.test_local_copies import flip, ssts
from engine.traffic import TENANT, Traffic
from engine.workers import Worker, wait_ruled
from refold.core.slots import SlotMap
from refold.testing.kafka import Kafka
from refold.wire.snapshot import decode_snapshot

pytestmark = pytest.mark.broker


def events(worker: Worker, name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in worker.log().splitlines() if line.startswith("{")]
    return [row for row in rows if row.get("event") == name]


def seqs(cluster: Cluster, partition: int) -> dict[str, int]:
    """What the state topic says of each session of a partition."""
    found: dict[str, int] = {}
    for message in cluster.read(cluster.topics.state):
        if message.partition() == partition:
            _, _, session = (message.key() or b"").decode().partition("/")
            found.pop(session, None)
            if message.value() is not None:
                found[session] = int(decode_snapshot(message.value())["seq"])
    return found


def test_blocks_that_rot_while_they_are_served_cost_a_restore(
    kafka: Kafka, topic_prefix: str, tmp_path: Any
) -> None:
    """Goal: neither a read nor a fold of what the disk has lost ends the process or passes for an absent
    session. Method: a worker on a warm disk, whose caches are empty; all data blocks of two partitions are
    changed in place; one is read over HTTP (right, or 503), the other is written to."""
    cluster = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    cluster.create()
    traffic = Traffic(cluster)
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        traffic.send(400)
        wait_ruled(cluster)
        assert worker.stop() == 0
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        slots = SlotMap(cluster.partitions)
        read = next(n for n in range(4) if seqs(cluster, n))
        expected = seqs(cluster, read)
        assert all(slots.partition(f"{TENANT}/{session}".encode()) == read for session in expected)
        written = next(n for n in range(4) if n != read and seqs(cluster, n))
        directory = worker.data_dir / cluster.prefix
        for number in (read, written):
            for sst in ssts(directory / f"p{number:05d}"):
                flip(sst, 0, sst.stat().st_size * 6 // 10)
        url = events(worker, "worker_started")[0]["url"]
        answers: list[int] = []

        def right(session: str, seq: int) -> bool:
            try:
                with urllib.request.urlopen(f"{url}/v1/sessions/{TENANT}/{session}", timeout=60) as answer:
                    assert int(answer.headers["Refold-Seq"]) == seq
                    answers.append(answer.status)
                    return True
            except urllib.error.HTTPError as error:
                answers.append(error.code)
                return False

        for session, seq in expected.items():
            wait_for(f"{session} to be read", lambda s=session, n=seq: right(s, n))  # type: ignore[misc]
        assert set(answers) == {200, 503}
        traffic.send(200)
        wait_ruled(cluster)
        reopened = {row["partition"] for row in events(worker, "store_unreadable")}
        assert reopened == {read, written}
        steps = [
            (row["partition"], row["why"])
            for row in events(worker, "partition_moved")
            if (row["before"], row["state"]) == ("live", "waiting")
        ]
        assert sorted(steps) == sorted((n, "its store could not be read") for n in reopened)
        aside = {row["partition"]: row["reason"] for row in events(worker, "local_store_set_aside")}
        assert aside == dict.fromkeys(reopened, "damaged")
        for number in reopened:
            assert (directory / f"p{number:05d}.aside").is_dir()
        assert worker.alive
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []
