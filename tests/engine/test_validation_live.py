"""Validation in a real worker: right copies are noted, a wrong one is restored while everything goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.test_local_copies_live import events
from engine.traffic import Traffic
from engine.workers import Worker, wait_ruled
from refold.engine import rows
from refold.engine.store import Batch, Memory, Store
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker

WRONG = 2


def test_a_wrong_copy_is_found_set_aside_and_restored_and_right_ones_are_left_alone(
    kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    """Goal: what is on the disk ends as what the changelogs say, whoever changed it; right copies are left
    alone. Method: between two lives a row of one partition is changed under its seq, another one removed, and
    one added of a session that never was."""
    cluster = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    cluster.create()
    traffic = Traffic(cluster)
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        traffic.send(400)
        wait_ruled(cluster)
        assert worker.stop() == 0
    directory = worker.data_dir / cluster.prefix
    harm(directory / f"p{WRONG:05d}")
    at_once = {"REFOLD_WORKER__VALIDATE_AFTER_MS": "0"}
    with Worker(cluster, tmp_path, "a", session_timeout_ms=2_000, **at_once) as worker:
        worker.wait_live(4)
        wait_validated(worker, 4)
        outcomes = {row["partition"]: row["outcome"] for row in events(worker, "store_validated")}
        assert outcomes == {number: "differs" if number == WRONG else "done" for number in range(4)}
        (wrong,) = (row for row in events(worker, "store_validated") if row["outcome"] == "differs")
        assert wrong["kinds"] == {"other": 1, "missing": 1, "unsaid": 1}
        wait_for("its restore", lambda: len(events(worker, "partition_live")) == 5)
        steps = [
            (row["partition"], row["why"])
            for row in events(worker, "partition_moved")
            if (row["before"], row["state"]) == ("live", "waiting")
        ]
        assert steps == [(WRONG, "its store is not what the changelogs say (rule V1)")]
        (aside,) = events(worker, "local_store_set_aside")
        assert (aside["partition"], aside["reason"]) == (WRONG, "differs")
        traffic.send(100)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []
    for number in range(4):
        assert content(directory / f"p{number:05d}") == said(cluster, number)


def wait_validated(worker: Worker, count: int) -> None:
    def there() -> bool:
        assert worker.alive, worker.tail()
        assert not events(worker, "validation_failed"), worker.tail()
        return len(events(worker, "store_validated")) >= count

    wait_for(f"{count} validations", there, 180)


def harm(path: Path) -> None:
    store = Store(path, Memory())
    first, second, *_ = store.keys()
    row = store.row(first)
    assert row is not None
    batch = Batch()
    batch.put_state(first, row[:-1] + bytes([row[-1] ^ 1]))
    batch.delete_state(second)
    batch.put_state(b"acme/never-was", row)
    store.write(batch)
    store.close()


def content(path: Path) -> dict[bytes, bytes | None]:
    """Snapshots by session."""
    store = Store(path, Memory())
    keys = store.keys()
    found = {key: store.row(key) for key in keys}
    store.close()
    return {key: None if row is None else rows.snapshot_of(row) for key, row in found.items()}


def said(cluster: Cluster, partition: int) -> dict[bytes, bytes | None]:
    last = {
        message.key() or b"": message.value()
        for message in cluster.read(cluster.topics.state)
        if message.partition() == partition
    }
    return {key: value for key, value in last.items() if value is not None}
