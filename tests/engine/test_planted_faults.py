"""A harness that cannot fail proves nothing: each rule broken on purpose makes the same check find a
difference.

The scenarios, traffic and oracle are those of the crash matrix; only the named switch is on.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import scenarios
from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.traffic import Sent, Traffic
from engine.workers import Worker, wait_ruled
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SABOTAGE = "REFOLD_WORKER__SABOTAGE"

#: A worker that wakes as a zombie commits first, or sees first that it is out: its threads race, and both are
#: right. Only the first shows the fault; most tries do.
WAKES_MAX = 6


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


def plain(cluster: Cluster, directory: Path, **extra: str) -> Sent:
    """Nothing happens but traffic."""
    traffic = Traffic(cluster)
    traffic.send(400)
    with Worker(cluster, directory, "a", **extra) as worker:
        worker.wait_live(4)
        wait_ruled(cluster)
        worker.stop()
    return traffic.sent


def test_control_without_a_fault_nothing_differs(cluster: Cluster, tmp_path: Path) -> None:
    assert differences(cluster, plain(cluster, tmp_path)) == []


def test_batches_without_offsets_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """Rule F: batches whose offsets are not in the transaction are folded again by the next life."""
    traffic = Traffic(cluster)

    def journalled() -> bool:
        return scenarios.journalled(cluster) >= traffic.sent.accepted

    with Worker(cluster, tmp_path, "a", **{SABOTAGE: "batches-without-offsets"}) as worker:
        worker.wait_live(4)
        for _ in range(2):
            # Batches are written from the second time on: by then the begins are there.
            traffic.send(200)
            wait_for("every event to be journalled", journalled, every=0.2)
        assert worker.stop() == 0
        worker.start()
        worker.wait_live(4)
        traffic.send(50)
        wait_for("every event to be journalled", journalled, every=0.2)
        word = "the generation record is not the fold of its batches"
        wait_for(
            "the difference", lambda: any(word in d for d in differences(cluster, traffic.sent)), every=0.5
        )
        worker.stop()


def test_skip_dedup_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """Rule U: an event sent twice is in the journal twice."""
    found = differences(cluster, plain(cluster, tmp_path, **{SABOTAGE: "skip-dedup"}))
    assert any("is in the journal 2 times" in difference for difference in found)


def test_fold_misrouted_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """Rule P: a session fed on two partitions has two owners."""
    found = differences(cluster, plain(cluster, tmp_path, **{SABOTAGE: "fold-misrouted"}))
    assert any("is in the journal on partition" in difference for difference in found)


def test_offsets_before_produce_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """Killed between the two, the events are committed as read and written nowhere."""
    sent = scenarios.killed(cluster, tmp_path, "after_begin", **{SABOTAGE: "offsets-before-produce"})
    assert any("is not in the journal" in difference for difference in differences(cluster, sent))


def test_disk_before_commit_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """Killed before the commit, the disk knows events the journal does not: they count as duplicates then."""
    sent = scenarios.killed(cluster, tmp_path, "after_produce", **{SABOTAGE: "disk-before-commit"})
    assert any("is not in the journal" in difference for difference in differences(cluster, sent))


def test_timer_without_offsets_is_noticed(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    """Rule F: only sent offsets fence, so a zombie that sends none writes into what another owns."""

    def play(cluster: Cluster, directory: Path) -> Sent:
        return scenarios.frozen(cluster, directory, "after_begin", **{SABOTAGE: "timer-without-offsets"})

    noticed_when_it_commits(kafka, topic_prefix, tmp_path, play, "times")


def noticed_when_it_commits(
    kafka: Kafka,
    topic_prefix: str,
    tmp_path: Path,
    play: Callable[[Cluster, Path], Sent | None],
    word: str,
) -> None:
    """Play it until a difference has the word; ``None`` of ``play`` is a lost race."""
    found: list[str] = []
    for attempt in range(WAKES_MAX):
        cluster = Cluster(kafka.bootstrap, f"{topic_prefix.rstrip('-')}-{attempt}")
        cluster.create()
        directory = tmp_path / str(attempt)
        directory.mkdir()
        sent = play(cluster, directory)
        found = differences(cluster, sent) if sent is not None else []
        if any(word in difference for difference in found):
            return
    pytest.fail(
        f"the race was lost {WAKES_MAX} times, or the rule broken on purpose goes unnoticed; at last: {found}"
    )


def test_revoke_without_barrier_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """Rule R: a member that stays may commit for a partition it gave up, and the broker accepts it."""
    sent = scenarios.revoked(cluster, tmp_path, "after_begin", **{SABOTAGE: "revoke-without-barrier"})
    assert any("times" in difference for difference in differences(cluster, sent))


def test_restore_to_end_of_partition_is_noticed(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    """Rule T: the new owner reads the changelog to its last stable offset, then waits for the offset of a
    transaction that commits meanwhile: it starts behind what it has restored."""
    noticed_when_it_commits(kafka, topic_prefix, tmp_path, restored_to_the_end, "follows")


def restored_to_the_end(cluster: Cluster, directory: Path) -> Sent | None:
    """``None`` when the fault had nothing to bite: the new owner found no open transaction, or the woken
    worker aborted it (its threads race, and to see the loss first is right too), or another check of the new
    owner's caught what the broken one let pass."""
    traffic = Traffic(cluster)
    traffic.send(150)
    first = Worker(cluster, directory, "a", **scenarios.HELD_TRANSACTION).start()
    second = Worker(
        cluster, directory, "b", **{SABOTAGE: "restore-to-eof", "REFOLD_POINT": "after_mark:hold"}
    )
    try:
        first.wait_live(4)
        wait_ruled(cluster)
        before = cluster.committed()
        # Stopped meanwhile, so that its next commit holds much of every partition and not the first record.
        first.signal(signal.SIGSTOP)
        first.arm("after_send_offsets", "stop")
        traffic.send(150)
        first.signal(signal.SIGCONT)
        assert first.events_at_point() > 0
        second.start()
        # A partition whose offset is pending is read to the end and held there; the transaction commits
        # meanwhile.
        wait_for(
            "the new owner to be at the end of the partition, or past all of them",
            lambda: second.hit.exists() or not second.alive or len(second.live()) == 4,
            every=0.05,
        )
        pending = cluster.pending()
        if not second.hit.exists() or not pending:
            return None
        traffic.send(200)
        first.signal(signal.SIGCONT)
        wait_for("the transaction's end", lambda: not cluster.pending(), every=0.002)
        # Of the others, the new owner may have committed the new traffic.
        committed = cluster.committed()
        if all(committed[number] == before[number] for number in pending):
            return None
        # At once: when the first worker has joined again it takes partitions, and restores them as they
        # should be.
        second.release.touch()
        first.signal(signal.SIGKILL)
        first.wait_end()
        wait_for("the new owner to own all", lambda: not second.alive or len(second.live()) == 4, every=0.05)
        if not second.alive:
            return None
        wait_ruled(cluster)
        second.stop()
    finally:
        for worker in (first, second):
            if worker.alive:
                worker.signal(signal.SIGKILL)
                worker.wait_end()
    return traffic.sent
