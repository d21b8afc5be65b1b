"""Checkpoints of a real RocksDB in a local store: taken under writes, incremental, damaged, restored."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint_world import PARTITION, PREFIX, Told, World, frontier, seqs, write
from engine.cluster import wait_for
from refold.engine import rows
from refold.engine.checkpoints.fetch import fetch
from refold.engine.checkpoints.publish import Hashes, prune
from refold.engine.checkpoints.remote import Remote
from refold.engine.checkpoints.retention import PRUNE_AGE_MS
from refold.engine.checkpoints.service import clear
from refold.engine.checkpoints.source import AHEAD_RECORDS_MIN, CheckpointSource
from refold.engine.points import CHECKPOINT
from refold.engine.rows import Frontier
from refold.engine.store import Memory, Store, stored_frontier
from refold.engine.takeover import Cancelled
from refold.errors import ConfigError, StorageError, UnavailableError


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def content(path: Path, memory: Memory) -> tuple[Frontier, set[int]]:
    store = Store(path, memory)
    try:
        at = store.frontier()
        assert at is not None
        return at, seqs(store)
    finally:
        store.close()


def restored(world: World, local: Frontier | None = None) -> tuple[Frontier, Told]:
    """What a restore goes on with after its disk was lost (or is at ``local``)."""
    told = Told()
    source = CheckpointSource(world.remote, world.memory, metrics=told, log=told)
    path = world.directory / "other" / f"p{PARTITION:05d}"
    shutil.rmtree(path, ignore_errors=True)
    store = Store(path, world.memory)
    opened, at = source.better(
        PARTITION, store, local or frontier(0, inbox_next=-1), lambda _: None, lambda: False
    )
    try:
        if told.counts.get(("refold_checkpoint_restores_total", "used")):
            assert opened.frontier() == at
            assert seqs(opened) == {at.inbox_next}
        else:
            assert opened is store
    finally:
        opened.close()
    assert list(path.parent.glob("*.fetched")) == []
    return at, told


def test_a_checkpoint_under_writes_is_exactly_one_commit(world: World, tmp_path: Path) -> None:
    """Goal: hard links of a DB that goes on are consistent. Method: every batch writes one number to all keys
    and the frontier; another thread writes all the time; each copy must hold one number everywhere."""
    stop, failures = threading.Event(), list[BaseException]()

    def go_on() -> None:
        try:
            while not stop.is_set():
                world.go_on()
        except BaseException as error:
            failures.append(error)

    world.go_on()
    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        copies = []
        for number in range(6):
            wait_for(
                "the writer to go on", lambda n=number: world.number > 4 * (n + 1) or failures, every=0.001
            )
            before = world.number - 1
            assert world.store.checkpoint(tmp_path / f"c{number}")
            copies.append((tmp_path / f"c{number}", before, world.number + 1))
    finally:
        stop.set()
        writer.join()
    assert failures == []
    assert world.number > 20
    for path, at_least, at_most in copies:
        at, found = content(path, world.memory)
        assert found == {at.inbox_next}
        assert at_least <= at.inbox_next <= at_most


def test_a_closed_db_is_not_copied(world: World, tmp_path: Path) -> None:
    world.close()
    assert world.store.checkpoint(tmp_path / "c") is False
    assert not (tmp_path / "c").exists()


def test_looking_at_a_copy_does_not_change_it(world: World, tmp_path: Path) -> None:
    world.go_on(3)
    world.store.checkpoint(tmp_path / "c")
    before = sorted((path.name, path.stat().st_size) for path in (tmp_path / "c").iterdir())
    assert stored_frontier(tmp_path / "c", world.memory) == frontier(3)
    assert sorted((path.name, path.stat().st_size) for path in (tmp_path / "c").iterdir()) == before


def test_only_new_sst_files_are_sent(world: World) -> None:
    world.go_on(200)
    first = world.publish()
    assert first.reused_bytes == 0
    world.go_on()
    second = world.publish()
    assert second.reused_bytes > 0
    names = [
        {entry.sha256 for entry in world.remote.manifest(PARTITION, checkpoint).files if ".sst" in entry.name}
        for checkpoint in (first.checkpoint, second.checkpoint)
        if checkpoint is not None
    ]
    assert len(names) == 2
    assert names[0] & names[1]
    new = len(names[1] - names[0])
    # Beside the new SST files: CURRENT, MANIFEST, OPTIONS, an empty log, rocksdict's own.
    assert new <= second.uploaded_files <= new + 5
    assert second.uploaded_bytes < first.uploaded_bytes
    # A restarted worker has no hashes and sends no more than that either.
    world.go_on()
    third = world.publish(hashes=Hashes())
    assert third.reused_bytes > 0


def test_nothing_new_is_not_published_again_unless_a_file_is_gone(world: World) -> None:
    world.go_on(3)
    first = world.publish()
    assert world.publish().checkpoint is None
    entry = world.remote.manifest(PARTITION, str(first.checkpoint)).files[0]
    world.remote.delete_file(PARTITION, entry.sha256)
    healed = world.publish()
    assert healed.checkpoint is not None
    assert entry.sha256 in world.remote.files(PARTITION)


def test_a_lost_disk_is_restored_from_the_newest(world: World) -> None:
    for _ in range(3):
        world.go_on(5)
        world.publish()
    at, told = restored(world)
    assert at == frontier(15)
    assert told.reasons() == []


@pytest.mark.parametrize("inbox_next", [1, -1])
def test_a_local_copy_is_replaced_only_by_one_that_is_far_ahead(world: World, inbox_next: int) -> None:
    """Goal: also of a restore that was cut short (no inbox offset yet, but sessions) what is here counts.
    Method: a local DB with content, a checkpoint just below and just at the limit."""
    local = frontier(1, inbox_next=inbox_next)
    at = frontier(5)
    others = at.history_next + at.generations_next - local.history_next - local.generations_next
    limit = local.state_next + AHEAD_RECORDS_MIN - others
    for ahead, used in ((limit - 1, False), (limit, True)):
        told = Told()
        source = CheckpointSource(world.remote, world.memory, metrics=told, log=told)
        write(world.store, 5, state_next=ahead)
        world.publish()
        store = Store(world.directory / "other" / "p", world.memory)
        write(store, 1, inbox_next=inbox_next)
        store, at = source.better(PARTITION, store, local, lambda _: None, lambda: False)
        assert seqs(store) == ({5} if used else {1})
        assert store.frontier() == at
        store.close()
        assert told.restores() == {"used" if used else "none": 1}


def test_a_download_that_takes_too_long_is_given_up_for_the_changelogs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.go_on(5)
    world.publish()
    monkeypatch.setattr("refold.engine.checkpoints.source.FETCH_SECONDS_MAX", -1.0)
    at, told = restored(world)
    assert at.inbox_next == -1
    assert told.counts == {("refold_checkpoint_restores_total", "unreachable"): 1}
    assert "took longer" in told.events[-1][1]["error"]


def test_what_a_killed_process_left_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    for name in (
        "p00001",
        "p00001.aside",
        "p00001.fetched",
        "p00001.7.fetched",
        "p00002.checkpoint",
        # What RocksDB calls a copy that it has not finished (see below).
        "p00002.checkpoint.tmp",
        "p00002.checkpoint.scratch",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    clear(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p00001", "p00001.aside"]


#: Ends when the directory (first argument) has an entry of that name (second).
LOOKER = "import os, sys\nwhile sys.argv[2] not in os.listdir(sys.argv[1]): pass"


def test_a_copy_under_way_has_the_name_that_a_start_deletes(world: World) -> None:
    """RocksDB's own choice. A copy that was killed holds its files, which compaction no longer frees, for as
    long as the directory is there."""
    world.go_on(3)
    taken = world.directory / "p00003.checkpoint"
    # A process of its own: the copy is made with the interpreter held.
    looker = subprocess.Popen([sys.executable, "-c", LOOKER, str(world.directory), f"{taken.name}.tmp"])
    try:
        end = time.monotonic() + 60
        while looker.poll() is None and time.monotonic() < end:
            assert world.store.checkpoint(taken)
            shutil.rmtree(taken)
        assert looker.poll() == 0, "no copy was seen under its own name and .tmp"
    finally:
        looker.kill()
        looker.wait()


@pytest.mark.parametrize("harm", ["changed", "cut", "longer", "missing"])
def test_a_bad_file_of_the_newest_leads_to_the_next_older_one(world: World, harm: str) -> None:
    world.go_on(5)
    first = world.publish()
    world.go_on(5)
    second = world.publish()
    older, newer = (
        {entry.sha256: entry for entry in world.remote.manifest(PARTITION, str(one.checkpoint)).files}
        for one in (first, second)
    )
    only = next(entry for address, entry in newer.items() if address not in older and entry.length > 100)
    path = world.directory / "remote" / PREFIX / f"p{PARTITION:05d}" / "files" / only.sha256
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        harmed = {"changed": data[:50] + b"!" + data[51:], "cut": data[:-1], "longer": data + b"x"}
        path.write_bytes(harmed[harm])
    at, told = restored(world)
    assert at == frontier(5)
    assert told.reasons() == ["missing" if harm == "missing" else "damaged"]
    assert only.name in str(told.events[0][1]["error"])


def test_a_damaged_manifest_leads_to_the_next_older_one_and_all_bad_to_the_changelogs(world: World) -> None:
    world.go_on(5)
    first = world.publish()
    world.go_on(5)
    second = world.publish()
    directory = world.directory / "remote" / PREFIX / f"p{PARTITION:05d}" / "manifests"
    (directory / f"{second.checkpoint}.json").write_text("{}")
    at, told = restored(world)
    assert at == frontier(5)
    assert told.reasons() == ["manifest"]
    (directory / f"{first.checkpoint}.json").write_bytes(b"")
    at, told = restored(world)
    assert at.inbox_next == -1
    assert told.reasons() == ["manifest", "manifest"]


@pytest.mark.parametrize("why", ["too_old", "ahead", "other_topic", "format"])
def test_z_what_the_rules_refuse_is_skipped(world: World, why: str) -> None:
    world.go_on(5)
    world.publish()
    world.go_on(5)
    world.publish()
    told = Told()
    source = CheckpointSource(world.remote, world.memory, metrics=told, log=told)
    path = world.directory / "other" / "p"
    store, at = source.better(
        PARTITION,
        Store(path, world.memory),
        frontier(0, inbox_next=-1),
        lambda one: why if one.inbox_next == 10 else None,
        lambda: False,
    )
    store.close()
    assert at == frontier(5)
    assert told.reasons() == [why]


def test_a_partition_that_is_taken_away_ends_the_download(world: World) -> None:
    world.go_on(5)
    world.publish()
    told = Told()
    source = CheckpointSource(world.remote, world.memory, metrics=told, log=told)
    store = Store(world.directory / "other" / "p", world.memory)
    with pytest.raises(Cancelled):
        source.better(PARTITION, store, frontier(0, inbox_next=-1), lambda _: None, lambda: True)
    # Closed, so that the next try in this process can open it.
    Store(store.path, world.memory).close()
    assert sorted(path.name for path in (world.directory / "other").iterdir()) == ["p"]


def test_a_store_that_fails_costs_a_warning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.go_on(5)
    world.publish()

    def fails(*_: object, **__: object) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr(type(world.remote._fs), "open", fails)
    at, told = restored(world)
    assert at.inbox_next == -1
    assert told.counts[("refold_checkpoint_restores_total", "unreachable")] == 1
    assert told.events[-1][0] == "checkpoints_unreachable"


def test_retention_on_a_real_store(world: World) -> None:
    """Four checkpoints, two kept; files go when they are old, crashed uploads' leftovers with them."""
    for _ in range(4):
        world.go_on(3)
        world.publish(keep=2)
    assert len(world.remote.checkpoints(PARTITION)) == 2
    base = world.directory / "remote" / PREFIX / f"p{PARTITION:05d}"
    crashed = world.remote.checkpoints(PARTITION)[0] + ".json." + "0" * 32
    (base / "files" / ("9" * 64 + "." + "0" * 32)).write_bytes(b"half")
    (base / "manifests" / crashed).write_bytes(b"half")
    later = max(stored.modified_ms or 0 for stored in world.remote.files(PARTITION).values()) + 1
    assert prune(world.remote, PARTITION, keep=2, now_ms=later).files == ()
    later += PRUNE_AGE_MS + 60_000
    plan = prune(world.remote, PARTITION, keep=2, now_ms=later, dry_run=True)
    assert len(plan.files) > 1
    assert prune(world.remote, PARTITION, keep=2, now_ms=later) == plan
    named = {
        entry.sha256
        for checkpoint in world.remote.checkpoints(PARTITION)
        for entry in world.remote.manifest(PARTITION, checkpoint).named
    }
    assert set(world.remote.files(PARTITION)) == named
    assert not (base / "manifests" / crashed).exists()
    assert restored(world)[0] == frontier(12)


def test_what_a_pruner_takes_during_an_upload_is_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.go_on(200)
    world.publish()
    world.go_on()
    put, victims = world.remote.put_manifest, list[str]()

    def taken_meanwhile(manifest: object, scratch: Path) -> str:
        victims.append(next(e.sha256 for e in manifest.files if e.name.endswith(".sst")))  # type: ignore[attr-defined]
        world.remote.delete_file(PARTITION, victims[0])
        return put(manifest, scratch)  # type: ignore[arg-type]

    monkeypatch.setattr(world.remote, "put_manifest", taken_meanwhile)
    assert world.publish().checkpoint is not None
    assert victims[0] in world.remote.files(PARTITION)
    assert restored(world)[0] == frontier(201)


def test_a_worker_that_stops_ends_its_upload_and_the_next_one_uses_what_was_sent(world: World) -> None:
    world.go_on(200)
    looked = []

    def stopped() -> bool:
        looked.append(1)
        return len(world.remote.files(PARTITION)) >= 2

    with pytest.raises(UnavailableError, match="given up"):
        world.publish(stopped=stopped)
    assert looked
    assert world.remote.checkpoints(PARTITION) == []
    sent = len(world.remote.files(PARTITION))
    assert sent >= 2
    assert world.publish().reused_bytes > 0
    assert restored(world)[0] == frontier(200)


PROGRAM = """
import sys
from pathlib import Path
from engine.checkpoint_world import World
from refold.engine.points import Points
world = World(Path(sys.argv[1]))
world.number = int(sys.argv[3])
world.go_on(5)
world.publish(points=Points(sys.argv[2]), keep=1)
raise SystemExit("the point was not reached")
"""


@pytest.mark.parametrize(
    ("point", "nth"), [*((point, 1) for point in CHECKPOINT), ("checkpoint_file", 2), ("checkpoint_file", 3)]
)
def test_killed_between_any_two_steps_the_store_is_readable(world: World, point: str, nth: int) -> None:
    """Goal: whatever the moment of death, a restore finds the old or the new checkpoint, whole. Method: a
    process that publishes is killed at each named point; then restore, publish over what it left, restore."""
    world.go_on(5)
    world.publish()
    world.close()
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(world.directory), f"{point}:kill:{nth}", "5"],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    published = CHECKPOINT.index(point) >= CHECKPOINT.index("checkpoint_after_manifest")
    at, told = restored(world)
    assert at == frontier(10 if published else 5)
    assert told.reasons() == []
    # The next life goes on over the remains.
    again = World(world.directory)
    again.number = 10
    again.go_on(5)
    assert again.publish(keep=1).checkpoint is not None
    again.close()
    assert len(again.remote.checkpoints(PARTITION)) == 1
    assert restored(again)[0] == frontier(15)


def test_killed_while_it_downloads_nothing_half_is_used(world: World) -> None:
    """The directory of a download has its own name until it is whole, and the next attempt deletes it."""
    world.go_on(5)
    world.publish()
    half = world.directory / "other" / f"p{PARTITION:05d}.1.fetched"
    half.mkdir(parents=True)
    (half / "CURRENT").write_text("half")
    assert restored(world)[0] == frontier(5)


def test_a_download_that_fails_leaves_nothing(world: World, tmp_path: Path) -> None:
    world.go_on(5)
    manifest = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    world.remote.delete_file(PARTITION, manifest.files[-1].sha256)
    with pytest.raises(Exception, match="not in the checkpoint store"):
        fetch(world.remote, manifest, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_store_that_lets_nothing_be_deleted_takes_checkpoints_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials without the right to delete, a bucket with object lock: what was published counts, and is
    not published again each minute as if it had failed."""

    def refused(_path: str) -> None:
        raise PermissionError("AccessDenied")

    monkeypatch.setattr(world.remote._fs, "rm_file", refused)
    for _ in range(2):
        world.go_on(5)
        published = world.publish(keep=1)
        assert published.checkpoint is not None
    assert "AccessDenied" in str(published.pruned.refused)
    assert len(world.remote.checkpoints(PARTITION)) == 2
    assert restored(world)[0] == frontier(10)


def test_a_manifest_copied_from_elsewhere_is_refused(world: World) -> None:
    world.go_on(5)
    checkpoint = str(world.publish().checkpoint)
    base = world.directory / "remote" / PREFIX
    (base / "p00009" / "manifests").mkdir(parents=True)
    name = f"manifests/{checkpoint}.json"
    (base / "p00009" / name).write_bytes((base / f"p{PARTITION:05d}" / name).read_bytes())
    assert world.remote.partitions() == [PARTITION, 9]
    with pytest.raises(StorageError, match="copied here"):
        world.remote.manifest(9, checkpoint)


def test_a_clock_that_is_behind_does_not_hide_the_newest(world: World) -> None:
    world.go_on(5)
    first = world.publish()
    world.now_ms -= 3_600_000
    world.go_on(5)
    second = world.publish()
    assert world.remote.checkpoints(PARTITION) == [second.checkpoint, first.checkpoint]


def test_a_store_without_its_own_moves_is_served_too(tmp_path: Path) -> None:
    """Any other fsspec file system: files are written aside and moved."""
    url = f"memory://{tmp_path.name}"
    world = World(tmp_path, url)
    world.go_on(5)
    world.publish()
    world.go_on(5)
    world.publish()
    assert restored(world)[0] == frontier(10)
    world.remote._atomic = False
    world.go_on(5)
    world.publish()
    assert restored(world)[0] == frontier(15)
    world.close()


def test_a_scheme_nobody_serves_is_a_setting_that_is_wrong() -> None:
    with pytest.raises(ConfigError, match="checkpoint_url"):
        Remote("nonsense://x", "t")


def test_rows_are_what_a_batch_says() -> None:
    """The world's own check can fail: two numbers in one DB are seen."""
    assert rows.seq_of(rows.pack(4, b"", b"x")) != rows.seq_of(rows.pack(5, b"", b"x"))
