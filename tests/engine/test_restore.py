"""Which local copies are used, which are set aside, and where the source starts: rules T and Z without a
broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel

from refold.engine import rows
from refold.engine.commitmeta import CommitMeta
from refold.engine.config import EngineConfig
from refold.engine.points import Points
from refold.engine.restore import TOMBSTONE_MARGIN_MS, Restorer, TopicFacts
from refold.engine.sabotage import Sabotage
from refold.engine.store import Batch, Memory
from refold.engine.takeover import FENCE_AGAIN_MS, FOREIGN_MS_MAX, Cancelled, Cluster, Committed, Marks, Stall
from refold.errors import ConfigError, UnavailableError

NOW = 2_000_000_000_000
DAY = 86_400_000


class Quiet:
    def __getattr__(self, _name: str) -> Any:
        return lambda *_a, **_k: None


@pytest.fixture
def restorer(tmp_path: Path) -> Restorer:
    return make(tmp_path)


def make(tmp_path: Path, sabotage: Sabotage | None = None) -> Restorer:
    config = EngineConfig(
        kafka={}, prefix="t", instance="a", data_dir=tmp_path, sabotage=sabotage or Sabotage()
    )
    return Restorer(
        config,
        Cluster(config, None, None, log=Quiet()),  # type: ignore[arg-type]
        TopicFacts("ts", "th", "tg", DAY),
        Memory(),
        Points(),
        log=Quiet(),
        now_ms=lambda: NOW,
    )


def local(**changes: Any) -> rows.Frontier:
    values = {
        "state_topic": "ts",
        "history_topic": "th",
        "generations_topic": "tg",
        "inbox_next": 50,
        "batches_next": 20,
        "state_next": 80,
        "history_next": 8,
        "generations_next": 30,
        "applied_ms": NOW - 1_000,
        **changes,
    }
    return rows.Frontier(**values)


def marks_of(**changes: int) -> Marks:
    values = {
        "state_start": 0,
        "state_end": 100,
        "history_start": 0,
        "history_end": 10,
        "generations_start": 0,
        "generations_end": 40,
        "inbox_start": 0,
        "inbox_end": 70,
        "batches_start": 0,
        "batches_end": 33,
        **changes,
    }
    return Marks(**values)


MARKS = marks_of()
COMMITTED = Committed(60, CommitMeta("t-b", 90, 9, 35, 0), 25)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"format": rows.FORMAT + 1}, "format"),
        ({"state_topic": "recreated"}, "other_topic"),
        ({"history_topic": "recreated"}, "other_topic"),
        ({"generations_topic": "recreated"}, "other_topic"),
        ({"state_next": 101}, "ahead"),
        ({"history_next": 11}, "ahead"),
        ({"generations_next": 41}, "ahead"),
        ({"inbox_next": 61}, "ahead"),
        ({"batches_next": 26}, "ahead"),
        ({"applied_ms": NOW - DAY}, "too_old"),
        ({"applied_ms": NOW + TOMBSTONE_MARGIN_MS + 1}, "too_old"),
        ({"applied_ms": NOW - DAY + TOMBSTONE_MARGIN_MS - 1}, "too_old"),
        ({"applied_ms": NOW - DAY + TOMBSTONE_MARGIN_MS}, None),
        # Nothing to catch up with: no tombstone can have been missed.
        ({"applied_ms": 0, "state_next": 100, "history_next": 10, "generations_next": 40}, None),
        ({"applied_ms": 0, "state_next": 100, "history_next": 10}, "too_old"),
    ],
)
def test_z_an_old_or_foreign_copy_is_rebuilt(
    restorer: Restorer, changes: dict[str, Any], why: str | None
) -> None:
    assert restorer._distrust(local(**changes), COMMITTED, MARKS) == why


def test_the_planted_fault_trusts_a_disk_that_is_ahead(tmp_path: Path) -> None:
    sabotaged = make(tmp_path, Sabotage(disk_before_commit=True))
    assert sabotaged._distrust(local(inbox_next=61), COMMITTED, MARKS) is None


def test_a_new_directory_begins_at_the_log_start(restorer: Restorer) -> None:
    marks = marks_of(state_start=5, history_start=2, generations_start=3)
    store, frontier, why = restorer._open(0, COMMITTED, marks)
    store.close()
    assert (frontier.state_next, frontier.history_next, frontier.generations_next) == (5, 2, 3)
    assert (frontier.inbox_next, frontier.batches_next, why) == (-1, -1, None)
    # A process killed before the first flush leaves an empty DB: not damage.
    store, frontier, why = restorer._open(0, COMMITTED, marks)
    store.close()
    assert (frontier.inbox_next, why) == (-1, None)


def test_a_damaged_directory_is_set_aside(restorer: Restorer) -> None:
    store, _, _ = restorer._open(0, COMMITTED, MARKS)
    store.close()
    (store.path / "CURRENT").write_text("nonsense\n")
    store, frontier, why = restorer._open(0, COMMITTED, MARKS)
    store.close()
    assert (frontier.inbox_next, why) == (-1, "damaged")
    assert store.path.with_name(store.path.name + ".aside").exists()


@pytest.mark.parametrize(
    ("offset", "marks", "start"),
    [
        (-1, marks_of(inbox_start=7), 7),
        (60, MARKS, 60),
        (60, marks_of(inbox_start=80, inbox_end=80), 80),
    ],
)
def test_t_the_source_starts_at_the_committed_offset(
    restorer: Restorer, offset: int, marks: Marks, start: int
) -> None:
    assert restorer._start(0, Committed(offset, None), marks) == start


def test_t_expired_input_is_not_skipped_silently(restorer: Restorer) -> None:
    with pytest.raises(ConfigError, match="retention may have deleted unread records"):
        restorer._start(0, Committed(60, None), marks_of(inbox_start=65))


@pytest.mark.parametrize(
    ("offset", "marks", "start"),
    [
        # A group from before there were batches: from the beginning.
        (-1, marks_of(batches_start=4), 4),
        (25, MARKS, 25),
        # Retention took what was not folded yet: those generations cannot finish, everything else goes on.
        (25, marks_of(batches_start=30), 30),
    ],
)
def test_t_batches_start_at_their_committed_offset_or_where_they_begin_now(
    restorer: Restorer, offset: int, marks: Marks, start: int
) -> None:
    assert restorer._start_batches(0, Committed(60, None, offset), marks) == start


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        pytest.param({"batches_start": 26, "batches_end": 26}, "info", id="no more than a marker"),
        pytest.param({"batches_start": 27, "batches_end": 27}, "error", id="records may be gone"),
        pytest.param({"batches_start": 26, "batches_end": 27}, "error", id="somebody wrote meanwhile"),
    ],
)
def test_t_the_marker_of_the_last_commit_is_no_loss(
    restorer: Restorer, marks: dict[str, int], said: str
) -> None:
    """Goal: after a quiet day `batches` is empty, and all that was not read is the marker of our own last
    transaction: that is no error in the log of every restart."""
    levels: list[str] = []

    class Log:
        def __getattr__(self, level: str) -> Any:
            return lambda *_, **__: levels.append(level)

    restorer._log = Log()
    assert restorer._start_batches(0, Committed(60, None, 25), marks_of(**marks)) == marks["batches_start"]
    assert levels == [said]


def test_t_batches_that_end_before_their_committed_offset_refuse_to_start(restorer: Restorer) -> None:
    with pytest.raises(ConfigError, match="recreated or truncated"):
        restorer._start_batches(0, Committed(60, None, 34), MARKS)


def test_a_store_of_the_format_before_generations_is_set_aside_as_such(restorer: Restorer) -> None:
    """Goal: an update says `format`, not `damaged`. Method: the frontier row as format 1 wrote it."""
    store, _, _ = restorer._open(0, COMMITTED, MARKS)
    old = {
        "state_topic": "ts",
        "history_topic": "th",
        "inbox_next": 50,
        "state_next": 80,
        "history_next": 8,
        "applied_ms": NOW,
        "format": 1,
    }
    batch = Batch()
    batch.raw.put(rows.FRONTIER_KEY, json.dumps(old).encode())
    store.write(batch)
    store.close()
    store, frontier, why = restorer._open(0, COMMITTED, MARKS)
    store.close()
    assert (frontier.inbox_next, why) == (-1, "format")


# --- rule D ----------------------------------------------------------------------------------------------


class FakeCluster:
    def __init__(self, txid: str | None) -> None:
        self.meta = None if txid is None else CommitMeta(txid, 0, 0, 0, 0)
        self.fenced: list[str] = []
        self.members: set[str] = set()
        self.asked = 0

    def at_work(self, txid: str) -> bool:
        self.asked += 1
        return txid in self.members

    def committed(self, _partition: int, *, stable: bool) -> Committed:
        assert not stable  # the stable one is what it waits for
        return Committed(5, self.meta)

    def fence(self, txid: str) -> bool:
        self.fenced.append(txid)
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("refold.engine.takeover.time.monotonic", lambda: now[0])
    return now


def test_d_the_last_writer_is_fenced_after_200_ms_without_progress(clock: list[float]) -> None:
    cluster = FakeCluster("t-dead")
    stall = Stall(cluster, 0, limit_ms=60_000)  # type: ignore[arg-type]
    for at in (100.0, 100.1, 100.19):
        clock[0] = at
        stall.waiting("why")
    assert cluster.fenced == []
    clock[0] = 100.21
    stall.waiting("why")
    stall.waiting("why")
    assert cluster.fenced == ["t-dead"]
    stall.moved()
    assert stall.waited_s == pytest.approx(0.21)
    clock[0] = 105.0
    stall.waiting("why")
    clock[0] = 105.3
    stall.waiting("why")
    assert cluster.fenced == ["t-dead", "t-dead"]


def test_d_a_worker_that_was_stopped_itself_looks_again_before_it_fences(clock: list[float]) -> None:
    """Goal: a takeover frozen in the middle (SIGSTOP) does not end the worker that has come back."""
    cluster = FakeCluster("t-back-again")
    stall = Stall(cluster, 0, limit_ms=60_000)  # type: ignore[arg-type]
    stall.waiting("why")
    clock[0] += 30.0
    stall.waiting("why")
    clock[0] += 0.1
    stall.waiting("why")
    assert cluster.fenced == []


def test_d_without_progress_it_fails_loudly_and_names_the_writer(clock: list[float]) -> None:
    stall = Stall(FakeCluster("t-dead"), 3, limit_ms=1_000)  # type: ignore[arg-type]
    stall.waiting("why")
    clock[0] = 101.2
    with pytest.raises(UnavailableError, match=r"partition 3 .* why .*t-dead"):
        stall.waiting("why")


def test_d_our_own_id_is_never_fenced(tmp_path: Path) -> None:
    config = EngineConfig(kafka={}, prefix="t", instance="a", data_dir=tmp_path)
    assert Cluster(config, None, None, log=Quiet()).fence("t-a") is False  # type: ignore[arg-type]


def test_t_waiting_for_a_stable_offset_ends_when_the_partition_is_taken_away() -> None:
    class Unstable(FakeCluster):
        stable_offset = Cluster.stable_offset

        def committed(self, _partition: int, *, stable: bool) -> Any:
            return None if stable else Committed(5, None)

    answers = iter([False, False, True])
    cluster = Unstable(None)
    stall = Stall(cluster, 0, limit_ms=60_000)  # type: ignore[arg-type]
    with pytest.raises(Cancelled):
        cluster.stable_offset(0, lambda: next(answers), stall)  # type: ignore[arg-type]


@pytest.mark.parametrize("held", ["journal", "rejected", "review", "work", "batches"])
def test_d_a_transaction_open_on_an_output_alone_is_waited_for_and_fenced(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], held: str
) -> None:
    """A worker stopped between its journal and its state records shows in no offset and no changelog; journal
    readers must not wait for the broker's time-out."""

    class Outputs(FakeCluster):
        outputs_closed = Cluster.outputs_closed
        _config = EngineConfig(kafka={}, prefix="t", instance="a", data_dir=Path())

        _log = Quiet()

        def _ends(self, partitions: Any, isolation: Any) -> list[int]:
            open_ = isolation == IsolationLevel.READ_COMMITTED and not self.fenced
            return [7 if open_ and tp.topic == f"t.{held}" else 9 for tp in partitions]

    monkeypatch.setattr("refold.engine.takeover.time.sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    cluster = Outputs("t-dead")
    stall = Stall(cluster, 0, limit_ms=60_000)  # type: ignore[arg-type]
    cluster.outputs_closed(0, lambda: False, stall)  # type: ignore[arg-type]
    assert cluster.fenced == ["t-dead"]
    assert 0.2 <= stall.waited_s < 0.3


def test_d_a_producers_transaction_on_batches_does_not_hold_a_takeover_for_ever(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    """Goal: what a worker cannot have left open is none of its business; the source waits for it anyway. The
    last writer, alive in a cooperative move, is not fenced for a producer's transaction, which would end it
    with 76; it is when it leaves the group meanwhile."""

    class Held(FakeCluster):
        outputs_closed = Cluster.outputs_closed
        _config = EngineConfig(kafka={}, prefix="t", instance="a", data_dir=Path())
        _log = Quiet()

        def _ends(self, partitions: Any, isolation: Any) -> list[int]:
            open_ = isolation == IsolationLevel.READ_COMMITTED
            return [7 if open_ and tp.topic == "t.batches" else 9 for tp in partitions]

    monkeypatch.setattr("refold.engine.takeover.time.sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    cluster = Held("t-alive")
    cluster.members.add("t-alive")
    stall = Stall(cluster, 0, limit_ms=60_000)  # type: ignore[arg-type]
    cluster.outputs_closed(0, lambda: False, stall)  # type: ignore[arg-type]
    assert FOREIGN_MS_MAX / 1000 <= stall.waited_s < FOREIGN_MS_MAX / 1000 + 1
    assert cluster.fenced == []
    assert 2 <= cluster.asked <= 1 + FOREIGN_MS_MAX // FENCE_AGAIN_MS
    cluster.members.clear()
    cluster.outputs_closed(0, lambda: False, Stall(cluster, 0, limit_ms=60_000))  # type: ignore[arg-type]
    assert cluster.fenced[0] == "t-alive"
