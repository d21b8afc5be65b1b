"""Stopping on purpose: drained, cut short, interrupted; whatever the outcome, nothing is lost or doubled."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.traffic import Traffic
from engine.workers import Worker, wait_ruled
from refold.engine.drain import Ended, Order, Place, Running
from refold.errors import StorageError
from refold.testing.kafka import Kafka

#: Longer than any test here: what moves before it has passed was told to move.
SESSION_LONG_MS = 120_000

#: A second on a quiet machine. Half of what a drain may take that nobody hurries.
NOW_S_MAX = 10.0


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


def said(worker: Worker, event: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in worker.log().splitlines() if line.startswith("{")]
    return [row for row in rows if row.get("event") == event]


def ready(worker: Worker) -> bool:
    url = said(worker, "worker_started")[0]["url"]
    try:
        with urllib.request.urlopen(f"{url}/healthz/ready", timeout=30) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False


def drain(worker: Worker, *options: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [*worker.command, "worker", "drain", "--json", *options],
        env=worker.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])["workers"]


def hold_a_commit(worker: Worker, traffic: Traffic) -> int:
    """The worker's next commit, of events sent now, has sent its offsets and goes no further until
    ``release`` exists."""
    worker.arm("after_send_offsets", "hold")
    traffic.send(200, odd=False)
    return worker.events_at_point()


@pytest.mark.broker
def test_a_drain_commits_what_is_folded_and_moves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: SIGTERM with a commit in flight: not ready at once, everything folded is committed, exit 0, and
    no partition moves, neither now nor when the drained one is back. (It is a new member then, and asks for
    one round that moves nothing: `Poller._ask_for_round`.)"""
    traffic = Traffic(cluster)
    with (
        Worker(cluster, tmp_path, "a", session_timeout_ms=SESSION_LONG_MS) as worker,
        Worker(cluster, tmp_path, "b", session_timeout_ms=SESSION_LONG_MS) as other,
    ):
        wait_for("both to own", lambda: len(worker.live()) == len(other.live()) == 2)
        wait_for("readiness", lambda: ready(worker))
        moved = said(other, "partition_moved")
        hold_a_commit(worker, traffic)
        worker.signal(signal.SIGTERM)
        wait_for("not to be ready", lambda: not ready(worker), NOW_S_MAX)
        wait_for("progress in the log", lambda: bool(said(worker, "worker_drain_progress")))
        assert worker.alive
        assert said(worker, "worker_drain_progress")[0]["phase"] == "committing"
        worker.release.touch()
        assert worker.wait_end() == 0
        assert said(worker, "worker_stopped")[0]["outcome"] == "drained"
        assert Place(worker.data_dir / cluster.prefix).last_end() is not None
        assert set(cluster.members()) == {"a", "b"}
        with worker:
            worker.wait_live(2)
            wait_ruled(cluster)
            assert said(other, "partition_moved") == moved
            assert worker.stop() == 0
        assert other.stop() == 0
    assert differences(cluster, traffic.sent) == []


@pytest.mark.broker
def test_a_second_signal_ends_it_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: 128 + 15 at once although a commit hangs; its events are read again."""
    traffic = Traffic(cluster)
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        hold_a_commit(worker, traffic)
        worker.signal(signal.SIGTERM)
        wait_for("the drain to begin", lambda: bool(said(worker, "worker_draining")))
        before = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait_end() == 128 + signal.SIGTERM
        assert time.monotonic() - before < NOW_S_MAX
        assert said(worker, "worker_stopped")[0]["outcome"] == "interrupted"
    with worker:
        worker.wait_live(4)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []


@pytest.mark.broker
def test_the_longest_drain_time_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: ``worker drain --max-seconds 1`` of a worker whose commit hangs: exit 75 of both after a second,
    and its events are read again."""
    traffic = Traffic(cluster)
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        hold_a_commit(worker, traffic)
        code, rows = drain(worker, "--max-seconds", "1")
        assert code == worker.wait_end() == 75
        assert [(row["instance"], row["outcome"]) for row in rows] == [("a", "cut_short")]
        assert 1.0 <= rows[0]["seconds"] < NOW_S_MAX
    with worker:
        worker.wait_live(4)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []


@pytest.mark.broker
def test_leaving_moves_the_partitions_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: with ``--leave`` the other worker owns everything long before the session times out."""
    traffic = Traffic(cluster)
    with (
        Worker(cluster, tmp_path, "a", session_timeout_ms=SESSION_LONG_MS) as worker,
        Worker(cluster, tmp_path, "b", session_timeout_ms=SESSION_LONG_MS) as other,
    ):
        wait_for("both to own", lambda: len(worker.live()) == len(other.live()) == 2)
        traffic.send(200)
        code, rows = drain(worker, "--leave")
        assert (code, rows[0]["outcome"]) == (0, "drained")
        assert worker.wait_end() == 0
        assert set(cluster.members()) == {"b"}
        other.wait_live(4, SESSION_LONG_MS / 2_000)
        wait_ruled(cluster)
        assert other.stop() == 0
    assert differences(cluster, traffic.sent) == []


@pytest.mark.broker
def test_processes_drain_one_by_one_or_together(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: a drained child stays down while its sibling runs on; draining the rest ends all with 0."""
    worker = Worker(cluster, tmp_path, "pod")
    worker.processes = 2
    with worker:

        def owned() -> bool:
            members = cluster.members()
            return set(members) == {"pod-0", "pod-1"} and all(members.values())

        wait_for("both to own partitions", owned)
        code, rows = drain(worker, "--instance", "pod-1", "--leave")
        assert (code, [row["instance"] for row in rows]) == (0, ["pod-1"])
        wait_for("the supervisor to notice", lambda: bool(said(worker, "child_drained")))
        wait_for("the sibling to own all", lambda: cluster.members() == {"pod-0": [0, 1, 2, 3]})
        code, rows = drain(worker)
        assert (code, [row["instance"] for row in rows]) == (0, ["pod-0"])
        assert worker.wait_end() == 0


def test_nobody_there_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Goal: exit 66 and a text that names the directory, also over what a killed worker left."""
    from refold.cli.main import run

    Place(tmp_path / "refold").directory.mkdir()
    (tmp_path / "refold" / "worker.json").write_text('{"pid": 1, "instance": "a", "processes": 0}')
    (tmp_path / "refold" / "worker.lock").touch()
    assert run(["worker", "drain", "--data-dir", str(tmp_path)]) == 66
    assert str(tmp_path) in capfd.readouterr().err


def test_a_directory_has_one_worker_and_tells_who(tmp_path: Path) -> None:
    place = Place(tmp_path / "x")
    assert place.running() is None
    with place.held(Running(17, "a")):
        assert place.running() == Running(17, "a")
        with pytest.raises(StorageError, match="locked by another worker"), place.held(Running(18, "b")):
            pytest.fail("two in one directory")
        # A supervisor is somebody else.
        with Place(tmp_path / "x", "supervisor").held(Running(19, "a", 2)):
            assert place.running() == Running(17, "a")
    assert place.running() is None
    assert not place.busy


def test_an_order_is_taken_once_and_never_by_the_next_life(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.held(Running(17, "a")):
        place.order(Order(3.0, leave=True))
        assert place.take_order() == Order(3.0, leave=True)
        assert place.take_order() is None
        place.order(Order(3.0))
        place.ended(Ended(17, "drained", 0.1, 0))
    with place.held(Running(18, "a")):
        assert place.take_order() is None
        assert place.last_end() is None
