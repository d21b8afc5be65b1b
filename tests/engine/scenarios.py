"""The columns of the crash matrix: what befalls a worker at a named point. Each returns after everything is
ruled on.

Every scenario feeds the same traffic (duplicates, misrouted and bad records among it), asserts that the
commit at the point held folded events, and leaves the comparison to the caller. ``extra`` goes into the first
worker's environment: that is how a fault is planted.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.check import due
from engine.cluster import Cluster, wait_for
from engine.traffic import Sent, Traffic
from engine.workers import Worker, wait_ruled
from refold.engine.points import COMMIT
from refold.wire.journal import decode_journal

#: What would be wrong has this long to happen.
SESSION_MARGIN_S = 1.0

#: A transaction that is held open is to be ended by whoever takes over, and not by the broker because a busy
#: machine needed the ten seconds of the default to start that one.
HELD_TRANSACTION = {"REFOLD_WORKER__TRANSACTION_TIMEOUT_MS": "60000"}

#: Of workers that must not be given up while one of them is stopped and the other starts.
SESSION_TIMEOUT_LONG_MS = 45_000

Scenario = Callable[..., Sent]


def _begin(
    cluster: Cluster, directory: Path, point: str, action: str, **options: object
) -> tuple[Traffic, Worker]:
    """A worker that owns everything, has state, and reaches ``point`` with folded events in its commit."""
    traffic = Traffic(cluster)
    traffic.send(150, runs=True)
    # Half of the matrix with each producer: each point with both, and take-overs from one to the other.
    producer = "auto" if (COMMIT.index(point) + len(action)) % 2 else "librdkafka"
    options = {**HELD_TRANSACTION, "REFOLD_WORKER__PRODUCER": producer, **options}
    first = Worker(cluster, directory, "a", **options).start()  # type: ignore[arg-type]
    first.wait_live(4)
    wait_ruled(cluster)
    first.arm(point, action)
    traffic.send(150, runs=True)
    assert first.events_at_point() > 0
    return traffic, first


def _finish(
    cluster: Cluster,
    traffic: Traffic,
    workers: list[Worker],
    *,
    planted: bool = False,
    supervised: Sequence[Worker] = (),
) -> Sent:
    """More traffic, everything ruled on, everybody stopped. A planted fault may set committed offsets back,
    so there it is enough that every event is journalled at least once."""
    # No more deadlines: those from before the fault are what is to fire.
    traffic.send(100)
    if planted:
        wait_for(
            "every event to be journalled", lambda: journalled(cluster) >= traffic.sent.accepted, every=0.2
        )
    else:
        if supervised:
            wait_ruled(cluster, supervised=supervised)
        # What was armed fires, whoever owns it now; and then that is ruled on too.
        wait_for("every deadline that has come to fire", lambda: not due(cluster), every=0.2)
        wait_ruled(cluster)
    for worker in workers:
        if worker.alive:
            worker.stop()
    return traffic.sent


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.alive:
            worker.signal(signal.SIGKILL)
            worker.wait_end()


def killed(cluster: Cluster, directory: Path, point: str, **extra: str) -> Sent:
    """SIGKILL at the point; the same worker is started again and has its disk."""
    traffic, first = _begin(cluster, directory, point, "kill", **extra)
    try:
        assert first.wait_end() == -signal.SIGKILL
        first.start()
        first.wait_live(4)
        return _finish(cluster, traffic, [first])
    finally:
        _end([first])


def frozen(cluster: Cluster, directory: Path, point: str, **extra: str) -> Sent:
    """SIGSTOP at the point until another worker owns everything and has restored; then SIGCONT: a zombie
    wakes."""
    traffic, first = _begin(cluster, directory, point, "stop", **extra)
    second = Worker(cluster, directory, "b").start()
    try:
        second.wait_live(4)
        if not extra and point in ("after_send_offsets", "after_produce"):
            # Rule D: its open transaction was ended by name, not waited for.
            assert '"dead_worker_fenced"' in second.log(), second.tail()
        traffic.send(60, runs=True)
        wait_ruled(cluster)
        first.signal(signal.SIGCONT)
        # It ends fenced, or learns that it is out and joins again: both are right, and then there are two.
        wait_for(
            "the zombie to end or to be a member again",
            lambda: not first.alive or bool(cluster.members().get("a")),
        )
        return _finish(cluster, traffic, [first, second])
    finally:
        _end([first, second])


def revoked(cluster: Cluster, directory: Path, point: str, **extra: str) -> Sent:
    """Another worker joins while the commit is at the point: some partitions are revoked cooperatively."""
    action = "stop" if point == "in_commit" else "hold"
    planted = any("SABOTAGE" in name for name in extra)
    session_timeout_ms = SESSION_TIMEOUT_LONG_MS
    traffic, first = _begin(cluster, directory, point, action, session_timeout_ms=session_timeout_ms, **extra)
    second = Worker(cluster, directory, "b", session_timeout_ms=session_timeout_ms).start()
    try:
        if action == "stop":
            # Frozen well within the session timeout: the group waits for it to give partitions up.
            wait_for("the second worker to join", lambda: '"worker_started"' in second.log())
            time.sleep(SESSION_MARGIN_S)
            first.signal(signal.SIGCONT)
        else:
            # Whether the barrier holds or not shows here: the revoke may only end after the commit did.
            if planted:
                second.wait_live(1)
                traffic.send(40, runs=True)
                wait_for("the new owner to commit", lambda: _committed_more(cluster, second))
            else:
                wait_for("the second worker to join", lambda: '"worker_started"' in second.log())
                time.sleep(SESSION_MARGIN_S)
                assert not second.live(), "a partition moved while its commit was in flight"
            first.release.touch()
        second.wait_live(1)
        assert first.alive
        # Who is fenced with its commit is started again, as by any supervisor: its partitions are its own for
        # the whole of its session otherwise.
        supervised = [] if planted else [first, second]
        return _finish(cluster, traffic, [first, second], planted=planted, supervised=supervised)
    finally:
        _end([first, second])


def lost(cluster: Cluster, directory: Path, point: str, **extra: str) -> Sent:
    """SIGSTOP at the point beyond the session timeout, nobody else there: it wakes, is told on_lost, joins
    again."""
    traffic, first = _begin(cluster, directory, point, "stop", **extra)
    try:
        wait_for("the group to give the worker up", lambda: "a" not in cluster.members())
        first.signal(signal.SIGCONT)
        wait_for("the worker to be told", lambda: '"partitions_lost' in first.log() or not first.alive)
        if not first.alive:
            # Fenced for good (its transaction timed out meanwhile): a supervisor starts it again.
            assert first.wait_end() == 76, first.tail()
            first.start()
        elif point == "after_begin":
            # Rule A: the broker refused the offsets of a removed member.
            wait_for("the abort", lambda: '"commit_aborted"' in first.log() or not first.alive)
        first.wait_live(4)
        return _finish(cluster, traffic, [first])
    finally:
        _end([first])


def journalled(cluster: Cluster) -> set[str]:
    return {decode_journal(m.value()).env.event_id for m in cluster.read(cluster.topics.journal)}


def _committed_more(cluster: Cluster, worker: Worker) -> bool:
    committed = cluster.committed()
    ends = cluster.inbox_ends()
    return all(committed.get(number, -1) >= ends[number] for number in worker.live())


SCENARIOS: dict[str, Scenario] = {"killed": killed, "frozen": frozen, "revoked": revoked, "lost": lost}
