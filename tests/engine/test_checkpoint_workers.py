"""Workers on a real broker: checkpoints while they fold, a lost disk restored from one and the tail."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.traffic import Traffic
from engine.workers import Worker, wait_ruled
from refold.engine.checkpoints.manifest import Manifest
from refold.engine.checkpoints.remote import Remote
from refold.engine.store import Memory, stored_frontier
from refold.errors import NotFound
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker

#: The shortest interval there is, and one that never comes.
OFTEN, NEVER = "1000", "86400000"


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


@pytest.fixture
def remote(cluster: Cluster, tmp_path: Path) -> Remote:
    return Remote(url(tmp_path), cluster.prefix)


def url(directory: Path) -> str:
    return f"file://{directory / 'remote'}"


def worker(cluster: Cluster, directory: Path, interval_ms: str, **extra: str) -> Worker:
    settings = {
        "REFOLD_WORKER__CHECKPOINT_URL": url(directory),
        "REFOLD_WORKER__CHECKPOINT_INTERVAL_MS": interval_ms,
        **extra,
    }
    # Each life restores once: a stall must not make the group take its partitions and give them back.
    return Worker(cluster, directory, "a", session_timeout_ms=60_000, **settings)


def events(one: Worker, name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in one.log().splitlines() if line.startswith("{")]
    return [row for row in rows if row["event"] == name]


def newest(remote: Remote, partition: int) -> Manifest | None:
    for checkpoint in remote.checkpoints(partition):
        try:
            return remote.manifest(partition, checkpoint)
        except NotFound:
            continue
    return None


def wait_checkpointed(cluster: Cluster, remote: Remote) -> None:
    """Every partition's newest checkpoint holds everything that is committed."""

    def done() -> bool:
        committed = cluster.committed()
        found = {number: newest(remote, number) for number in range(cluster.partitions)}
        return all(
            one is not None and one.frontier.inbox_next == committed[number] for number, one in found.items()
        )

    wait_for("checkpoints of everything", done, every=0.1)


def tail(cluster: Cluster, remote: Remote, partition: int, checkpoint: str) -> tuple[int, int]:
    """Changelog records of a partition: those after a checkpoint, and all."""
    at = remote.manifest(partition, checkpoint).frontier
    topics = cluster.topics
    after = {
        topics.state: at.state_next,
        topics.history: at.history_next,
        topics.generations: at.generations_next,
    }
    offsets = [
        (message.offset(), begins)
        for topic, begins in after.items()
        for message in cluster.read(topic)
        if message.partition() == partition
    ]
    return sum(offset >= begins for offset, begins in offsets), len(offsets)


def test_a_killed_worker_without_its_disk_is_restored_from_checkpoint_and_tail(
    cluster: Cluster, remote: Remote, tmp_path: Path
) -> None:
    """Goal: nothing lost or doubled, and of the changelogs the tail alone is read. Method: a life whose only
    checkpoints are those of its stop, which hold everything; another one that ends in SIGKILL; then no disk;
    the records that the restore reports against those that the topics hold after the checkpoint."""
    traffic = Traffic(cluster)
    with worker(cluster, tmp_path, NEVER) as first:
        first.wait_live(4)
        for _ in range(6):
            traffic.send(200)
            wait_ruled(cluster)
        assert first.stop() == 0
        assert events(first, "worker_stopped")[0]["outcome"] == "drained"
    committed = cluster.committed()
    for number in range(4):
        made = newest(remote, number)
        assert made is not None
        assert made.frontier.inbox_next == committed[number]
    with worker(cluster, tmp_path, NEVER) as second:
        second.wait_live(4)
        # A warm disk asks for no checkpoint.
        assert events(second, "checkpoint_fetched") == []
        traffic.send(30)
        wait_ruled(cluster)
        second.signal(signal.SIGKILL)
        second.wait_end()
    shutil.rmtree(second.data_dir)
    with worker(cluster, tmp_path, NEVER) as third:
        third.wait_live(4)
        fetched = {row["partition"]: row["checkpoint"] for row in events(third, "checkpoint_fetched")}
        assert sorted(fetched) == [0, 1, 2, 3]
        read = {row["partition"]: row["records"] for row in events(third, "partition_live")}
        tails = {number: tail(cluster, remote, number, fetched[number]) for number in fetched}
        assert read == {number: after for number, (after, _) in tails.items()}
        assert 0 < sum(read.values()) * 3 < sum(everything for _, everything in tails.values())
        traffic.send(200)
        wait_ruled(cluster)
        assert third.stop() == 0
    assert differences(cluster, traffic.sent) == []


def test_a_damaged_newest_checkpoint_leads_to_the_older_one(
    cluster: Cluster, remote: Remote, tmp_path: Path
) -> None:
    """Goal: a bad file costs a longer tail and a warning, never state. Method: a byte changed in a file that
    only the newest checkpoint of one partition names."""
    traffic = Traffic(cluster)
    with worker(cluster, tmp_path, OFTEN) as first:
        first.wait_live(4)
        for _ in range(2):
            traffic.send(300)
            wait_ruled(cluster)
            wait_checkpointed(cluster, remote)
        assert first.stop() == 0
    shutil.rmtree(first.data_dir)
    newer, older = remote.checkpoints(1)[:2]
    shared = {entry.sha256 for entry in remote.manifest(1, older).files}
    only = next(
        entry
        for entry in remote.manifest(1, newer).files
        if entry.sha256 not in shared and entry.name.endswith(".sst")
    )
    path = tmp_path / "remote" / cluster.prefix / "p00001" / "files" / only.sha256
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with worker(cluster, tmp_path, NEVER) as second:
        second.wait_live(4)
        (skipped,) = events(second, "checkpoint_skipped")
        assert (skipped["partition"], skipped["checkpoint"], skipped["reason"]) == (1, newer, "damaged")
        fetched = {row["partition"]: row["checkpoint"] for row in events(second, "checkpoint_fetched")}
        assert fetched[1] == older
        read = {row["partition"]: row["records"] for row in events(second, "partition_live")}
        assert read[1] == tail(cluster, remote, 1, older)[0] > 0
        assert read[0] == 0
        traffic.send(100)
        wait_ruled(cluster)
        assert second.stop() == 0
    assert differences(cluster, traffic.sent) == []


def test_a_worker_killed_while_it_publishes_and_a_store_that_fails(
    cluster: Cluster, remote: Remote, tmp_path: Path
) -> None:
    """Goal: neither a death between file and manifest nor a store that cannot be written or listed costs more
    than a warning."""
    traffic = Traffic(cluster)
    point = {"REFOLD_POINT": "checkpoint_before_manifest:kill"}
    with worker(cluster, tmp_path, OFTEN, **point) as first:
        first.wait_live(4)
        traffic.send(300)
        assert first.wait_end() == -signal.SIGKILL
    assert any(remote.files(number) and not remote.checkpoints(number) for number in range(4))
    (tmp_path / "a file").touch()
    nowhere = {"REFOLD_WORKER__CHECKPOINT_URL": f"file://{tmp_path}/a file/x"}
    shutil.rmtree(first.data_dir)
    with worker(cluster, tmp_path, OFTEN, **nowhere) as second:
        second.wait_live(4)
        assert len(events(second, "checkpoints_unreachable")) == 4
        traffic.send(100)
        wait_ruled(cluster)
        wait_for("a failed checkpoint", lambda: bool(events(second, "checkpoint_failed")))
        assert second.alive
        assert second.stop() == 0
    with worker(cluster, tmp_path, OFTEN) as third:
        third.wait_live(4)
        traffic.send(100)
        wait_ruled(cluster)
        wait_checkpointed(cluster, remote)
        assert third.stop() == 0
    # What was killed half way is not in the way, and no directory of a copy is left behind.
    left = {path.name for path in (third.data_dir / cluster.prefix).glob("p*")}
    assert left == {f"p{number:05d}" for number in range(4)}
    for number in range(4):
        at = stored_frontier(third.data_dir / cluster.prefix / f"p{number:05d}", Memory())
        made = newest(remote, number)
        assert made is not None
        assert at is not None
        assert made.frontier.inbox_next == at.inbox_next
    assert differences(cluster, traffic.sent) == []


def test_a_death_in_a_drain_and_a_store_that_hangs(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: a death in the middle of a drain's checkpoints costs nothing; a store that hangs does not make it
    longer than it may be, nor cut short what was committed. Method: lives whose interval never comes."""
    traffic = Traffic(cluster)
    point = "checkpoint_before_manifest"
    with worker(cluster, tmp_path, NEVER, REFOLD_POINT=f"{point}:kill") as first:
        first.wait_live(4)
        traffic.send(100)
        wait_ruled(cluster)
        first.signal(signal.SIGTERM)
        assert first.wait_end(40) == -signal.SIGKILL
        assert events(first, "worker_draining")
    with worker(cluster, tmp_path, NEVER, REFOLD_POINT=f"{point}:hold") as second:
        second.wait_live(4)
        traffic.send(100)
        wait_ruled(cluster)
        done = drain(second, "--max-seconds", "8")
        assert second.wait_end(2.0) == done == 0
        assert len(events(second, "checkpoints_cut_short")[0]["partitions"]) == 1
        (stopped,) = events(second, "worker_stopped")
        # Three quarters of its time for the store that hangs, and never more than all of it.
        assert (stopped["outcome"], 5.5 < stopped["seconds"] < 8.0) == ("drained", True)
    assert differences(cluster, traffic.sent) == []


def drain(one: Worker, *options: str) -> int:
    """Exit status of ``refold worker drain``."""
    command = [*one.command, "worker", "drain", *options]
    return subprocess.run(
        command, env=one.environment, capture_output=True, check=False, timeout=60
    ).returncode
