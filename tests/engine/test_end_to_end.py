"""The whole path on a real broker: produce, fold, commit, restart with and without the disk."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from engine.check import differences
from engine.cluster import Cluster
from engine.traffic import Traffic
from engine.workers import Worker, wait_ruled
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


def test_state_journal_rejected_equal_the_oracle(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: N events through one worker. Method: duplicates, misrouted and bad records among them;
    compare."""
    traffic = Traffic(cluster)
    traffic.send(600)
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        traffic.send(600)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []
    assert min(traffic.sent.misrouted, traffic.sent.duplicates, len(traffic.sent.rejected)) > 0


@pytest.mark.parametrize("disk", ["kept", "lost"])
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_restart_continues_where_it_was(cluster: Cluster, tmp_path: Path, disk: str, end: str) -> None:
    """Goal: nothing lost or doubled over a restart, whatever became of the local disk."""
    traffic = Traffic(cluster)
    worker = Worker(cluster, tmp_path, "a")
    with worker:
        worker.wait_live(4)
        traffic.send(500)
        wait_ruled(cluster)
        traffic.send(300)
        if end == "killed":
            worker.signal(signal.SIGKILL)
            worker.wait_end()
        else:
            assert worker.stop() == 0
    if disk == "lost":
        shutil.rmtree(worker.data_dir)
    with worker:
        worker.wait_live(4)
        traffic.send(300)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []
