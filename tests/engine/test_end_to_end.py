"""The whole path on a real broker: produce, fold, commit, restart with and without the disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Producer

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.traffic import TENANT, Traffic, message_event
from engine.workers import Worker, wait_ruled
from refold.core.slots import SlotMap, make_key
from refold.testing.kafka import Kafka
from refold.wire.envelope import encode_envelope
from refold.wire.journal import decode_journal
from refold.wire.owner import HistoryAnswer, RulingLine

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


def test_what_the_owner_answers_is_what_was_committed(cluster: Cluster, tmp_path: Path) -> None:
    """Snapshot, seq, history over several blocks, rulings, and who owns what, over HTTP."""
    traffic = Traffic(cluster)
    # Given up and taken again in a stall, it would have moved more than once.
    with Worker(cluster, tmp_path, "a", session_timeout_ms=60_000) as worker:
        worker.wait_live(4)
        sender = Producer({"bootstrap.servers": cluster.bootstrap})
        places = []
        for number in range(1, 201):
            env = message_event(number, "s1", producer_id="p1", producer_epoch=1, producer_counter=number)
            sender.produce(
                cluster.topics.inbox,
                encode_envelope(env),
                make_key(TENANT, "s1"),
                SlotMap(4).partition(make_key(TENANT, "s1")),
                on_delivery=lambda _, m: places.append((m.partition(), m.offset())),
            )
        sender.flush()
        url = next(
            json.loads(line)["url"] for line in worker.log().splitlines() if '"worker_started"' in line
        )
        partition, offset = places[-1]
        ruling = get(f"{url}/v1/rulings/{partition}/{offset}?wait_ms=20000")
        assert RulingLine.from_bytes(ruling) == RulingLine(partition, offset, "accepted", 200)
        wait_ruled(cluster)
        stored = {m.key(): m.value() for m in cluster.read(cluster.topics.state)}
        served = get(f"{url}/v1/sessions/{TENANT}/s1?min_seq=200&wait_ms=20000")
        assert served == stored[make_key(TENANT, "s1")]
        journal = {
            (decode_journal(m.value()).seq, m.offset())
            for m in cluster.read(cluster.topics.journal)
            if m.key() == make_key(TENANT, "s1")
        }
        for after, limit in ((0, 500), (0, 10), (63, 2), (64, 500), (199, 5), (200, 5)):
            answer = HistoryAnswer.from_bytes(
                get(f"{url}/v1/sessions/{TENANT}/s1/history?after={after}&limit={limit}")
            )
            assert list(answer.offsets) == sorted(pair for pair in journal if pair[0] > after)[:limit]
            assert answer.scan_from is None
        status = subprocess.run(
            [sys.executable, "-m", "refold.cli.main", "worker", "status", "--json"],
            env={**os.environ, "REFOLD_BOOTSTRAP": cluster.bootstrap, "REFOLD_TOPIC_PREFIX": cluster.prefix},
            capture_output=True,
            text=True,
            check=True,
        )
        (member,) = json.loads(status.stdout.splitlines()[-1])["members"]
        assert (member["instance"], member["url"], member["ready"]) == ("a", url, True)
        assert member["partitions"] == [0, 1, 2, 3]
        states = {row["partition"]: row for row in member["states"]}
        assert {row["state"] for row in states.values()} == {"live"}
        assert sorted(states) == member["partitions"]
        assert sum(row["committed"] for row in states.values()) == sum(cluster.committed().values())
        steps = [
            (row["before"], row["state"])
            for line in worker.log().splitlines()
            if (row := json.loads(line)).get("event") == "partition_moved" and row["partition"] == 0
        ]
        assert steps == [("assigned", "waiting"), ("waiting", "restoring"), ("restoring", "live")]
        metrics = get(f"{url}/metrics").decode()
        assert 'refold_partition_transitions_total{before="restoring",state="live"} 4.0' in metrics
        assert worker.stop() == 0
    assert traffic.sent.accepted == set()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_a_worker_whose_transactional_id_is_taken_ends_fenced(cluster: Cluster, tmp_path: Path) -> None:
    """Exit 76 with a message, at its next commit; nothing of that commit is visible, the next life goes
    on."""
    traffic = Traffic(cluster)
    with Worker(cluster, tmp_path, "a") as worker:
        worker.wait_live(4)
        traffic.send(100)
        wait_ruled(cluster)
        thief = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{cluster.prefix}-a"})
        thief.init_transactions(60)
        traffic.send(100)
        assert worker.wait_end() == 76
        assert "worker_fenced" in worker.log()
        assert "took over this transactional id" in worker.log()
        worker.start()
        worker.wait_live(4)
        wait_ruled(cluster)
        assert worker.stop() == 0
    assert differences(cluster, traffic.sent) == []


def test_partitions_move_to_a_new_worker_and_back(cluster: Cluster, tmp_path: Path) -> None:
    """Rule R in peace: a second worker joins under traffic, leaves by its session timeout, nothing is
    lost."""
    traffic = Traffic(cluster)
    with Worker(cluster, tmp_path, "a") as first, Worker(cluster, tmp_path, "b") as second:
        first.wait_live(1)
        second.wait_live(1)
        for _ in range(5):
            traffic.send(100)
        wait_for("an even share", lambda: len(first.live()) == len(second.live()) == 2)
        assert second.stop() == 0
        traffic.send(200)
        first.wait_live(4)
        wait_ruled(cluster)
        assert first.stop() == 0
    assert differences(cluster, traffic.sent) == []
