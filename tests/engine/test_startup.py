"""What keeps a worker from starting: each names its cause and the way out, with its exit status and no
traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewPartitions, NewTopic

from engine.check import differences
from engine.cluster import CONFIGS, Cluster, wait_for
from engine.traffic import Traffic
from engine.workers import Worker, wait_ruled
from refold.engine.members import Member, look
from refold.errors import InvariantViolation
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    return Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))


def refused(worker: Worker, code: int, *words: str) -> str:
    with worker:
        assert worker.wait_end(30) == code, worker.tail()
    text = worker.log()
    said = text[text.index("error: ") :]
    for word in words:
        assert word in said, said
    assert "Traceback" not in text
    return said


def test_missing_topics(cluster: Cluster, tmp_path: Path) -> None:
    refused(Worker(cluster, tmp_path, "a"), 78, "refold topology apply", f"{cluster.prefix}.journal")


def test_partition_counts_that_differ(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create()
    journal = cluster.topics.journal
    cluster.admin.create_partitions([NewPartitions(journal, 5)])[journal].result(10)

    def known() -> bool:
        """The controller has answered; what a broker tells of follows."""
        return len(cluster.admin.list_topics(journal, timeout=10).topics[journal].partitions) == 5

    wait_for("the broker to know of five partitions", known)
    refused(Worker(cluster, tmp_path, "a"), 78, "one partition count", "journal 5", "refold topology")


def test_a_state_topic_that_is_not_compacted(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create(state={"cleanup.policy": "delete"})
    refused(Worker(cluster, tmp_path, "a"), 78, "compact", "refold topology apply")


def test_an_unreachable_broker_is_reported_within_15_s(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = Cluster(f"127.0.0.1:{free.getsockname()[1]}", "nowhere")
    started = time.monotonic()
    refused(Worker(nowhere, tmp_path, "a"), 69, "refold broker up", nowhere.bootstrap)
    # Imports come on top of the 10 s the call may take: 1 s, half a minute on a very busy machine.
    assert time.monotonic() - started < 45


def test_a_port_that_is_taken(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(Worker(cluster, tmp_path, "a", REFOLD_WORKER__HTTP_PORT=port), 69, port, "another process")


def test_sabotage_in_prod(cluster: Cluster, tmp_path: Path) -> None:
    worker = Worker(cluster, tmp_path, "a", REFOLD_ENVIRONMENT="prod", REFOLD_WORKER__SABOTAGE="skip-dedup")
    refused(worker, 78, "environment=prod")


def test_a_second_worker_of_the_same_name_or_directory(cluster: Cluster, tmp_path: Path) -> None:
    """A live namesake is refused; a dead one's place is taken at once, within its session timeout."""
    cluster.create()
    with Worker(cluster, tmp_path, "a", session_timeout_ms=30_000) as first:
        first.wait_live(4)
        other = tmp_path / "other"
        other.mkdir()
        refused(Worker(cluster, other, "a"), 78, "is alive at http://127.0.0.1", "--instance")
        same = str(first.data_dir)
        refused(
            Worker(cluster, other, "b", REFOLD_WORKER__DATA_DIR=same),
            74,
            "locked by another worker",
            "--data-dir",
        )
        first.signal(signal.SIGKILL)
        first.wait_end()
        first.start()
        first.wait_live(4, seconds=15)
        first.stop()


def _seen(cluster: Cluster) -> list[Member]:
    """What ``refold worker status`` shows."""
    return look(cluster.admin, cluster.prefix, cluster.bootstrap)


def _wait_ready(cluster: Cluster) -> str:
    """The URL under which the only member is found, once it answers there that it is ready."""
    wait_for("a ready member to be found", lambda: [m.ready for m in _seen(cluster)] == [True], every=0.1)
    return _seen(cluster)[0].url


def test_a_worker_that_comes_back_at_once_is_found(cluster: Cluster, tmp_path: Path) -> None:
    """The broker keeps a returning static member's former URL: the worker returns to it, without waiting,
    and a namesake is refused after that as before."""
    cluster.create()
    with Worker(cluster, tmp_path, "a", session_timeout_ms=30_000) as worker:
        worker.wait_live(4)
        url = _wait_ready(cluster)
        worker.signal(signal.SIGKILL)
        worker.wait_end()
        assert [m.ready for m in _seen(cluster)] == [None]
        worker.start()
        worker.wait_live(4, seconds=15)
        assert _wait_ready(cluster) == url
        assert "waiting_for_former_session" not in worker.log()
        assert "]: Starting..." not in worker.log()  # Faust's own words are for debugging.
        other = tmp_path / "other"
        other.mkdir()
        refused(Worker(cluster, other, "a"), 78, f"is alive at {url}", "--instance")
        assert worker.alive
        assert worker.stop() == 0


def test_a_worker_whose_port_was_taken_meanwhile_is_found(cluster: Cluster, tmp_path: Path) -> None:
    """It joins under a new URL, so only after the group has forgotten the former one; SIGTERM ends the
    wait."""
    cluster.create()
    # A busy machine may start it so slowly that the group has forgotten by then: nothing to wait for.
    if not any(_waited_for_its_former_self(cluster, tmp_path, ms) for ms in (6_000, 20_000, 60_000)):
        pytest.fail("it never waited for its former session")


def _waited_for_its_former_self(cluster: Cluster, directory: Path, session_timeout_ms: int) -> bool:
    name = f"a{session_timeout_ms}"
    with Worker(cluster, directory, name, session_timeout_ms=session_timeout_ms) as worker:
        worker.wait_live(4)
        url = _wait_ready(cluster)
        worker.signal(signal.SIGKILL)
        worker.wait_end()
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", int(url.rpartition(":")[2])))
            taken.listen()
            worker.start()
            wait_for(
                "it to wait, or to be there",
                lambda: "waiting_for_former_session" in worker.log() or len(worker.live()) == 4,
            )
            waited = "waiting_for_former_session" in worker.log()
            assert worker.stop() == 0
            if waited:
                worker.start()
                worker.wait_live(4)
                assert _wait_ready(cluster) != url
    return waited


#: A bug of ours, planted where the last line of the start is logged: Faust's tasks run by then.
BROKEN_START = """
import refold.engine.worker as worker
def broken(producer):
    raise LookupError("planted")
worker.choose.name_of = broken
from refold.cli.main import main
main(sys.argv[1:])
"""


def test_a_worker_that_fails_while_it_starts_ends(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: a bug ends the process with a status. It hung, and nobody took its partitions."""
    cluster.create()
    worker = Worker(cluster, tmp_path, "a")
    worker.command = [sys.executable, "-c", "import sys\n" + BROKEN_START]
    with worker:
        assert worker.wait_end(60) == InvariantViolation.exit_code
    assert "unexpected LookupError in the worker" in worker.log()


def test_a_fenced_worker_ends_even_if_it_is_idle(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing to commit, so nothing but the consumer's own error can tell it."""
    cluster.create()
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        namesake = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": cluster.prefix,
                "group.instance.id": "a",
                "partition.assignment.strategy": "cooperative-sticky",
                # A membership that lasts: one shorter than the 3 s between two heartbeats ends by itself, and
                # a worker that a busy machine kept waiting may join anew then and fence the namesake.
                "session.timeout.ms": 60_000,
                "heartbeat.interval.ms": 500,
            }
        )
        try:
            namesake.subscribe([cluster.topics.inbox])

            def ended() -> bool:
                namesake.poll(0.05)
                return not worker.alive

            wait_for("the fenced worker to end", ended)
        finally:
            namesake.close()
        assert worker.wait_end() == 76, worker.tail()
        assert '"worker_fenced"' in worker.log()
        assert "REFOLD_WORKER__INSTANCE" in worker.log()


def _restarted(cluster: Cluster, tmp_path: Path) -> Worker:
    """A worker that has folded something and stopped; its next start is the test."""
    cluster.create()
    traffic = Traffic(cluster)
    traffic.send(100)
    worker = Worker(cluster, tmp_path, "a")
    with worker:
        worker.wait_live(4)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []
    return worker


def test_t_sessions_without_a_committed_offset(cluster: Cluster, tmp_path: Path) -> None:
    """Rule T: it never falls to a reset, which would apply every record again."""
    worker = _restarted(cluster, tmp_path)

    def deleted() -> bool:
        # A static member stays in the group until its session ends, and a group with members stays.
        return cluster.admin.delete_consumer_groups([cluster.prefix])[cluster.prefix].exception(10) is None

    wait_for("the group to be deleted", deleted, every=0.2)
    refused(worker, 78, "no committed offset", "--reset-offsets")


def test_t_a_committed_offset_whose_changelog_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    """Rule T (4): the topic was recreated under its name; starting would forget every session."""
    worker = _restarted(cluster, tmp_path)
    cluster.admin.delete_topics([cluster.topics.state])[cluster.topics.state].result(10)
    _recreate(cluster)
    refused(worker, 78, "recreated or truncated", "--delete-offsets")


def _recreate(cluster: Cluster) -> None:
    new = NewTopic(cluster.topics.state, cluster.partitions, 1, config=CONFIGS["state"])

    def made() -> bool:
        return cluster.admin.create_topics([new])[new.topic].exception(10) is None

    wait_for("the topic's name to be free again", made)


def test_t_without_history_an_empty_cluster_starts_at_the_beginning(cluster: Cluster, tmp_path: Path) -> None:
    """The third case beside the two above: neither offset nor changelog."""
    cluster.create()
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(cluster.topics.inbox, b"bad", b"a/b", 0)
    producer.flush()
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert len(cluster.read(cluster.topics.rejected)) == 1


def test_processes_are_supervised(cluster: Cluster, tmp_path: Path) -> None:
    """``--processes 2``: two members; a killed one is started again; SIGTERM ends all with 0."""
    cluster.create()
    worker = Worker(cluster, tmp_path, "pod")
    worker.processes = 2
    with worker:

        def owned() -> bool:
            members = cluster.members()
            return set(members) == {"pod-0", "pod-1"} and all(members.values())

        wait_for("both to own partitions", owned, 40)
        assert worker.process is not None
        children = subprocess.run(
            ["pgrep", "-P", str(worker.process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)
        # The dead one is a member until its session ends; the new one takes no signal while it begins.
        wait_for("the restart", lambda: worker.log().count('"worker_started"') >= 3 and owned(), 120)
        traffic = Traffic(cluster)
        traffic.send(100)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []
