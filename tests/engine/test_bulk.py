"""Runs of a restore (rules B1 to B3 of docs/internals/recovery.md) on a real RocksDB, without a broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import bulk_world
from engine.bulk_world import PARTITION, Record, changelog, folded, held, marks_of, restore
from refold.engine import bulk, rows
from refold.engine.bulk import Run
from refold.engine.points import BULK, Points
from refold.engine.store import RUN_SUFFIX, Batch, Memory, Store
from refold.errors import StorageError

FRONTIER = rows.Frontier("ts", "th", "tg", -1, -1, 7, 0, 0, 0)


def leftover(directory: Path) -> Path:
    return directory / f"p{PARTITION:05d}{RUN_SUFFIX}"


@pytest.mark.parametrize("seed", range(6))
def test_b_what_is_restored_is_the_fold_of_the_changelog(tmp_path: Path, seed: int) -> None:
    """Goal: files and batches, however mixed, are the order of the log. Oracle: one record after another."""
    reached: list[str] = []

    class Told(Points):
        def reach(self, name: str) -> None:
            reached.append(name)

    logs = changelog(seed, 700)
    rows_, records, _ = restore(tmp_path, logs, points=Told(), seed=seed)
    assert rows_ == folded(logs)
    assert records == 700
    assert reached.count("run_built") == reached.count("run_ingested") >= 3
    assert not leftover(tmp_path).exists()


@pytest.mark.parametrize("seed", range(3))
def test_b_a_restore_goes_on_from_the_last_run(tmp_path: Path, seed: int) -> None:
    """Goal: cut short at any time, it reads what was not written and no more, over rows newer than the place
    it goes on from as well. Method: cancelled after some looks, the memtable lost; again until it is done."""
    logs = changelog(seed, 900)
    looks, total, lives = 0, 0, 0

    def cancelled() -> bool:
        nonlocal looks
        looks += 1
        return looks % 40 == 0

    while True:
        lives += 1
        try:
            found, records, before = restore(tmp_path, logs, seed=lives, cancelled=cancelled)
        except bulk_world.changelogs.Cancelled:
            continue
        assert before is not None
        assert before.state_next > 0
        assert records < 900
        total += records
        break
    assert lives > 1
    assert found == folded(logs)


PROGRAM = """
import sys
from pathlib import Path
from engine.bulk_world import changelog, restore
from refold.engine.points import Points
restore(Path(sys.argv[1]), changelog(int(sys.argv[3]), 700), points=Points(sys.argv[2]))
raise SystemExit("the point was not reached")
"""


@pytest.mark.parametrize(("point", "nth"), [(point, nth) for point in BULK for nth in (1, 3)])
def test_b_killed_between_file_and_frontier_the_next_restore_is_right(
    tmp_path: Path, point: str, nth: int
) -> None:
    """Goal: whatever the moment of death, nothing is lost, doubled or left behind. Method: a process that
    restores is killed at each named point; what it left is looked at, restored over and compared."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), f"{point}:kill:{nth}", str(nth)],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert leftover(tmp_path).exists() == (point == "run_built")
    logs = changelog(nth, 700)
    found, records, before = restore(tmp_path, logs)
    assert found == folded(logs)
    assert not leftover(tmp_path).exists()
    if point == "run_ingested":
        # Its place is in the file: durable at once.
        assert before is not None
        assert records < 700
    elif nth == 1:
        # The file that was not ingested is as good as none.
        assert records == 700


def test_b_a_file_is_over_what_was_written_before_and_under_what_comes_after(tmp_path: Path) -> None:
    """Goal: the order of writes, whatever they went through: memtable, file, memtable; deletions as well."""
    store = Store(tmp_path / "p0", Memory())
    first = Batch()
    first.put(b"sa", b"batch 1")
    first.put(b"sb", b"batch 1")
    first.put(b"sc", b"batch 1")
    first.frontier(FRONTIER)
    store.write(first)
    store.build([(rows.FRONTIER_KEY, FRONTIER.encode()), (b"sa", b"file"), (b"sb", None), (b"sd", b"file")])
    store.ingest()
    second = Batch()
    second.put(b"sb", b"batch 2")
    second.delete(b"sd")
    second.frontier(FRONTIER)
    store.write(second)
    assert held(store) == {b"sa": b"file", b"sb": b"batch 2", b"sc": b"batch 1"}
    store.close(flush=False)


def test_b_a_crash_after_a_file_keeps_what_was_written_before_it(tmp_path: Path) -> None:
    """Goal: the DB is a prefix of what was written also where a file follows a batch that was in memory."""
    program = """
import os, sys
from pathlib import Path
from refold.engine import rows
from refold.engine.store import Batch, Memory, Store
store = Store(Path(sys.argv[1]), Memory())
frontier = rows.Frontier("ts", "th", "tg", -1, -1, 7, 0, 0, 0)
batch = Batch()
batch.put(b"sa", b"batch")
batch.frontier(frontier)
store.write(batch)
store.build([(rows.FRONTIER_KEY, frontier.encode()), (b"sz", b"file")])
store.ingest()
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "p0")], check=False, timeout=180)
    assert done.returncode == -signal.SIGKILL
    store = Store(tmp_path / "p0", Memory())
    assert held(store) == {b"sa": b"batch", b"sz": b"file"}
    assert store.frontier() == FRONTIER
    store.close()


def record(number: int, size: int) -> Any:
    return Record("t.history", number, b"k%d" % number, b"x" * size)


def test_b_a_run_is_bounded_in_records_and_in_bytes_that_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "RUN_RECORDS_MAX", 10)
    few = Run()
    for number in range(10):
        assert not few.full
        few.put(b"h%d" % number, record(number, 1))
    assert few.full
    large = Run()
    size = bulk.RUN_BYTES_MAX // 4
    for number in range(40):
        # One key over and over: what is replaced is not held.
        large.put(b"hk", record(number, size))
    assert not large.full
    for number in range(3):
        large.put(b"h%d" % number, record(number, size))
    assert large.full


def test_b_a_paced_restore_writes_more_often() -> None:
    """Goal: what a crash costs is bounded in seconds also at 100 kB/s."""
    run = Run(100_000)
    run.put(b"h", record(0, 100_000 * bulk.RUN_SECONDS_MAX))
    assert run.full


@pytest.mark.parametrize("size", [10, 200_000], ids=["batch", "file"])
def test_b_what_is_no_snapshot_is_named(tmp_path: Path, size: int) -> None:
    """Goal: a foreign record in the state topic ends a restore with its reason, however it would be
    written."""
    logs = changelog(1, 30)
    logs["t.state"].append(Record("t.state", 10_000, b"a/1", b"\xff" * size))
    with pytest.raises(StorageError, match="not a snapshot"):
        restore(tmp_path, logs)
    assert marks_of(logs).state_end == 10_002


def test_b_a_second_start_sees_that_there_are_sessions(tmp_path: Path) -> None:
    """Goal: a start that was refused (sessions, but no committed offset) is refused again: the first one left
    everything on the disk, so the second one reads nothing."""
    logs = changelog(3, 300)
    restore(tmp_path, logs)
    store = Store(tmp_path / f"p{PARTITION:05d}", Memory())
    frontier = store.frontier()
    assert frontier is not None
    assert frontier.inbox_next == -1
    reading = bulk_world.Reading(
        bulk_world.EngineConfig(kafka={}, prefix="t", instance="a", data_dir=tmp_path),
        PARTITION,
        store,
        frontier,
        marks_of(logs),
        lambda: False,
        lambda _: None,
        bulk_world.Stall(bulk_world.Nobody(), PARTITION, limit_ms=60_000),  # type: ignore[arg-type]
    )
    assert reading.found_state
    store.close()
