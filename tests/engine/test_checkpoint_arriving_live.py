"""Goal: on a real broker a session of the newest range is served and fed while its partition's checkpoint is
still being fetched from a slow store, one that the checkpoint does not have is known to be new, and going
over to the checkpoint loses and doubles nothing.

Method: a store that gives next to nothing until a gate is opened, and a restore thread that is held after its
first ranges.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from bench.recovery.slow import installed

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.small_ranges_worker import AHEAD_RECORDS_MIN, COMMAND, TWO_RANGES
from engine.test_hot_first_live import SESSIONS, Inbox, held, ruling, status_of
from engine.workers import Worker, wait_ruled
from refold.engine.checkpoints.remote import Remote
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker

#: Bytes per second: a checkpoint of a megabyte takes weeks.
NEXT_TO_NOTHING = 1

#: Sessions that speak twice.
AGAIN = 2_800


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"), partitions=1)
    made.create()
    return made


@pytest.mark.timeout(500)
def test_a_hot_session_lives_while_the_checkpoint_comes(cluster: Cluster, tmp_path: Path) -> None:
    """Goal and method: see the module."""
    inbox = Inbox(cluster)
    # What is left after two ranges has to be worth going over.
    inbox.put(*range(SESSIONS))
    inbox.put(*range(AGAIN))
    assert SESSIONS + AGAIN - TWO_RANGES > AHEAD_RECORDS_MIN
    store, gate = tmp_path / "store", tmp_path / "gate"
    worker = Worker(
        cluster,
        tmp_path,
        "a",
        REFOLD_WORKER__HOT_FIRST="true",
        REFOLD_WORKER__CHECKPOINT_URL=f"slow://{store}",
        # The one that is made when it stops.
        REFOLD_WORKER__CHECKPOINT_INTERVAL_MS="3600000",
        **installed(tmp_path / "plugin", NEXT_TO_NOTHING, gate),
    )
    worker.command = COMMAND
    remote = Remote(f"file://{store}", cluster.prefix)
    gate.touch()
    with worker:
        worker.wait_live(1)
        wait_ruled(cluster, 200.0)
        assert worker.stop() == 0
    assert len(remote.checkpoints(0)) == 1
    gate.unlink()
    shutil.rmtree(worker.data_dir)
    old, hot, new = 0, AGAIN - 1, SESSIONS
    try:
        held(worker, 2)
        wait_for("the key filter to be used", lambda: status_of(worker, new) == 404, 30.0)
        assert (status_of(worker, hot), status_of(worker, old)) == (200, 503)
        offsets = inbox.put(old, hot, new, old, hot)
        for offset in (offsets[1], offsets[2], offsets[4]):
            found = ruling(worker, offset, 30_000)
            assert found is not None
            assert found.status == "accepted"
        assert ruling(worker, offsets[0], 0) is None
        gate.touch()
        wait_for("the checkpoint", lambda: '"checkpoint_fetched"' in worker.log(), 60.0)
        assert worker.live() == set()
        worker.release.touch()
        worker.wait_live(1)
        assert '"checkpoint_arrived"' in worker.log()
        wait_ruled(cluster)
        assert [status_of(worker, one) for one in (old, hot, new)] == [200, 200, 200]
        assert list(worker.data_dir.rglob("*.fetched")) == []
        worker.signal(signal.SIGKILL)
        worker.wait_end()
    finally:
        if worker.alive and worker.process is not None:
            worker.process.kill()
            worker.process.wait()
    assert differences(cluster, inbox.sent) == []
