"""Validation of a local copy: real RocksDB, changelogs in memory; and the worker's part around it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.changelog_world import PARTITION, TOPICS, World
from engine.test_local_copies import flip, ssts
from refold.engine import rows
from refold.engine.admission import Pace
from refold.engine.assignment import Assignment, Partition
from refold.engine.config import EngineConfig
from refold.engine.lifecycle import Reopened, State
from refold.engine.plan import Written
from refold.engine.sabotage import Sabotage
from refold.engine.store import Batch, Store, UnreadableStore
from refold.engine.takeover import Cancelled
from refold.engine.validation import reading as reading_module
from refold.engine.validation import service
from refold.engine.validation.reading import Reading, Report
from refold.engine.validation.service import Validations, clear, validations
from refold.errors import StorageError, UnavailableError

SECONDS_MAX = 90.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch, modules=(reading_module,))
    made.restore()
    made.live_on(60)
    yield made
    made.close()


def read(
    world: World, *, stopped: Callable[[], bool] = lambda: False, rate: int = 0, taken: bool = False
) -> Report:
    assert world.store is not None
    copy = world.directory / "copy"
    if not taken:
        shutil.rmtree(copy, ignore_errors=True)
        assert world.store.checkpoint(copy)
    return Reading(
        world.config,
        world.cluster,  # type: ignore[arg-type]
        world.memory,
        partition=PARTITION,
        copy=copy,
        scratch=world.directory / "scratch",
        paces=(Pace(rate),),
        stopped=stopped,
    ).run()


def put(world: World, full_key: bytes, row: bytes | None) -> None:
    """Behind everybody's back."""
    assert world.store is not None
    batch = Batch()
    if row is None:
        batch.delete(full_key)
    else:
        batch.put(full_key, row)
    world.store.write(batch)


# --- one copy --------------------------------------------------------------------------------------------


def test_a_right_copy_has_no_differences_compacted_or_not(world: World) -> None:
    report = read(world)
    assert (dict(report.kinds), report.rows) == ({}, len(world.expected))
    assert report.records == sum(len(log.entries) for log in world.logs.by_topic.values())
    assert (report.state_topic, report.state_next) == ("ts", world.logs.state.end)
    for log in world.logs.by_topic.values():
        log.compact()
    assert dict(read(world).kinds) == {}
    for log in world.logs.by_topic.values():
        log.compact(tombstones=True)
    again = read(world)
    assert (dict(again.kinds), again.rows) == ({}, len(world.expected))
    assert again.records == len(world.expected)
    assert not (world.directory / "scratch").exists()


@pytest.mark.parametrize("seed", range(6))
def test_commits_deletions_and_compaction_meanwhile_are_no_differences(world: World, seed: int) -> None:
    """Goal: a busy partition is not taken for a wrong one. Method: before every piece that is read, sessions
    are written, deleted and opened again, and what has a newer record may be compacted away."""
    world.chance.seed(seed)
    assert world.store is not None
    world.store.checkpoint(world.directory / "copy")
    place = world.frontier()

    def meanwhile() -> None:
        world.live_on(2)
        if world.chance.random() < 0.5:
            for log in world.logs.by_topic.values():
                log.compact(world.chance.randint(0, log.end))
        if world.logs.state.end > place.state_next + 400:
            world.logs.meanwhile = lambda: None

    world.logs.meanwhile = meanwhile
    report = read(world, taken=True)
    assert dict(report.kinds) == {}
    assert report.state_next == place.state_next < world.logs.state.end


@pytest.mark.parametrize("topic", ["state", "history", "generations"])
@pytest.mark.parametrize("kind", ["missing", "other", "deleted", "unsaid"])
def test_what_is_wrong_in_any_of_the_three_is_found(world: World, topic: str, kind: str) -> None:
    prefix = {"state": rows.STATE, "history": rows.BLOCK, "generations": rows.SIDE}[topic]
    mine = sorted(key for key in world.expected if key.startswith(prefix))
    name = b"a/9#x" if prefix != rows.STATE else b"a/x"
    match kind:
        case "missing":
            put(world, mine[3], None)
        case "other":
            put(world, mine[3], world.expected[mine[3]][:-1] + b"\0\1")
        case "deleted":
            world.commit((prefix + name, b"to be deleted"))
            row = world.expected[prefix + name]
            world.commit((prefix + name, None))
            put(world, prefix + name, row)
        case "unsaid":
            put(world, prefix + name, rows.pack(1, b"", b"nobody said so"))
    report = read(world)
    assert dict(report.kinds) == {kind: 1}
    assert [(one[0], one[1]) for one in report.places] == [(getattr(TOPICS, topic), kind)]


def test_a_row_that_is_older_or_newer_than_its_record(world: World) -> None:
    keys = sorted(key for key in world.expected if key.startswith(rows.STATE))
    for key, shift in ((keys[0], -1), (keys[1], 1)):
        row = world.expected[key]
        put(world, key, rows.pack(rows.seq_of(row) + shift, b"", rows.snapshot_of(row)))
    assert dict(read(world).kinds) == {"older": 1, "newer": 1}


def test_a_block_that_cannot_be_read_is_told_apart_from_a_difference(world: World) -> None:
    assert world.store is not None
    world.store.checkpoint(world.directory / "copy")
    for sst in ssts(world.directory / "copy"):
        flip(sst, 0, sst.stat().st_size // 3)
    with pytest.raises(UnreadableStore):
        read(world, taken=True)
    assert not (world.directory / "scratch").exists()


def test_it_ends_when_it_is_told_to_and_when_the_log_does_not_move(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def stopped() -> bool:
        looks.append(1)
        return len(looks) > 3

    with pytest.raises(Cancelled):
        read(world, stopped=stopped)
    monkeypatch.setattr(reading_module, "STALL_S_MAX", -1.0)
    # An open transaction: the log goes on, and what is readable does not.
    world.logs.state.end += 1
    monkeypatch.setattr("engine.changelog_world.Reader.consume", lambda *_: [])
    with pytest.raises(UnavailableError, match="could not be read on"):
        read(world)
    monkeypatch.setattr(reading_module, "SECONDS_MAX", -1.0)
    with pytest.raises(UnavailableError, match="took longer"):
        read(world)


def test_log_and_rows_are_paid_for(world: World) -> None:
    """Goal: V bytes/s over both halves. Method: a clock that only sleeping moves; all bytes and 1 KiB for
    each record and row."""
    now = [0.0]
    pace = Pace(10_000_000, monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    assert world.store is not None
    world.live_on(400)
    world.store.checkpoint(world.directory / "copy")
    told: list[int] = []
    one = Reading(
        world.config,
        world.cluster,  # type: ignore[arg-type]
        world.memory,
        partition=PARTITION,
        copy=world.directory / "copy",
        scratch=world.directory / "scratch",
        paces=(pace,),
        stopped=lambda: False,
    )
    one.told = told.append
    report = one.run()
    logs = [entry for log in world.logs.by_topic.values() for entry in log.entries.values()]
    sent = sum(len(key) + len(value or b"") for key, value, _ in logs)
    assert sum(told) == sent
    assert now[0] >= (sent + 1_024 * report.records) / 10_000_000 - 0.25


# --- the worker's part -----------------------------------------------------------------------------------


class Host:
    def __init__(self) -> None:
        self.assignment = Assignment()
        self.pool = ThreadPoolExecutor(1)
        self.distrusted: list[tuple[int, str, Reopened]] = []

    async def on_disk(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    def distrust(self, owner: Partition, written: Written, error: StorageError, why: Reopened) -> None:
        self.distrusted.append((owner.number, str(error), why))
        written.unproved = False

    def live(self, number: int, written: Written) -> Partition:
        owner = self.assignment.add(number, self.assignment.next_epoch())
        for state in (State.WAITING, State.RESTORING, State.LIVE):
            owner.move(state)
        owner.written = written
        return owner


class Run:
    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.host = Host()
        self.config = replace(world.config, validate_after_ms=0, validate_bytes_per_s_max=10**9, **changes)
        self.service = Validations(
            self.config,
            world.cluster,  # type: ignore[arg-type]
            world.memory,
            Pace(0),
            metrics=world.told,
            log=world.told,
        )
        self.task = asyncio.get_running_loop().create_task(self.service.run(self.host))

    def outcome(self, name: str) -> float:
        return self.world.told.counts.get(("refold_store_validations_total", name), 0)

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                if what():
                    return
                await asyncio.sleep(0.005)


@pytest.fixture
async def start(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Run]]:
    monkeypatch.setattr(service, "LOOK_S", 0.01)
    runs: list[Run] = []

    def make(**changes: Any) -> Run:
        runs.append(Run(world, **changes))
        return runs[-1]

    yield make
    for one in runs:
        one.task.cancel()
        one.service.stop()
        await asyncio.gather(one.task, return_exceptions=True)


async def test_a_copy_is_validated_once_and_remembers_it(world: World, start: Callable[..., Run]) -> None:
    """Goal: made from the log it needs none; at its first start on this disk it is validated; never again,
    but for other topics."""
    written = world.restore().written
    assert written.unproved
    run = start()
    run.host.live(PARTITION, written)
    await run.until(lambda: run.outcome("done") == 1)
    assert world.store is not None
    await run.until(lambda: not written.unproved)
    note = world.store.note(rows.VALIDATED_KEY)
    assert note is not None
    assert rows.Validated.decode(note) == rows.Validated("ts", world.logs.state.end)
    assert not world.restore().written.unproved
    world.live_on(5)
    assert not world.restore().written.unproved
    assert run.host.distrusted == []


async def test_a_new_copy_is_not_validated_and_a_note_that_is_none_says_nothing(world: World) -> None:
    world.close()
    shutil.rmtree(world.path)
    assert not world.restore().written.unproved
    assert world.store is not None
    world.store.put_note(rows.VALIDATED_KEY, b"nonsense")
    assert world.restore().written.unproved


@pytest.mark.parametrize("harm", ["differs", "unreadable"])
async def test_what_is_wrong_closes_the_partition(
    world: World, start: Callable[..., Run], harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = next(key for key in sorted(world.expected) if key.startswith(rows.STATE))
    if harm == "differs":
        put(world, key, rows.pack(1, b"", b"something else"))
    written = world.restore().written
    if harm == "unreadable":
        checkpoint = Store.checkpoint

        def rotten(self: Store, path: Path) -> bool:
            taken = checkpoint(self, path)
            for sst in ssts(path):
                # The links are the DB's own files: as if they had rotted under it.
                flip(sst, 0, sst.stat().st_size // 3)
            return taken

        monkeypatch.setattr(Store, "checkpoint", rotten)
    run = start()
    run.host.live(PARTITION, written)
    await run.until(lambda: bool(run.host.distrusted))
    ((number, text, why),) = run.host.distrusted
    assert (number, why) == (PARTITION, Reopened.DIFFERS if harm == "differs" else Reopened.READ)
    assert run.outcome(harm) == 1
    assert b"a/" not in text.encode(), "a key names a session"
    assert not list(world.config.store_dir.glob("*.validating*"))


async def test_restores_come_first_and_a_partition_that_leaves_ends_it(
    world: World, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nothing is read while any partition of the worker is being restored, and a revoke waits for
    nothing. Method: a second partition that is assigned in the middle; then the first one is taken away."""
    reads = 0

    def meanwhile() -> None:
        nonlocal reads
        reads += 1
        if reads == 3:
            # On the validation's thread: by the next piece the loop has seen it.
            loop.call_soon_threadsafe(run.host.assignment.add, PARTITION + 1, 99)
            end = time.monotonic() + SECONDS_MAX
            while run.service._turn.is_set() and time.monotonic() < end:
                time.sleep(0.002)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(reading_module, "CHUNK_RECORDS", 2)
    monkeypatch.setattr(service, "TURN_S", 0.01)
    world.logs.meanwhile = meanwhile
    written = world.restore().written
    reads = 0
    run = start()
    owner = run.host.live(PARTITION, written)
    await run.until(lambda: reads == 3 and not run.service._turn.is_set())
    await asyncio.sleep(0.1)
    assert reads == 3
    owner.cancelled.set()
    await run.until(lambda: run.outcome("given_up") == 1)
    assert reads == 3
    assert run.host.distrusted == []


async def test_it_waits_for_its_time_and_tries_again_after_a_failure(
    world: World, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RETRY_S", 0.05)
    failures = [UnavailableError("planted"), ZeroDivisionError()]
    marks = world.cluster.marks

    def fails(partition: int) -> Any:
        if failures:
            raise failures.pop()
        return marks(partition)

    written = world.restore().written
    monkeypatch.setattr(world.cluster, "marks", fails)
    later = start()
    later.service._busy_at = time.monotonic() + 1_000
    later.host.live(PARTITION, written)
    run = start()
    run.host.live(PARTITION, written)
    await run.until(lambda: run.outcome("done") == 1)
    assert run.outcome("failed") == 2
    said = [fields["error"] for event, fields in world.told.events if event == "validation_failed"]
    assert said == ["ZeroDivisionError", "planted"]


async def test_it_is_off_by_its_setting_and_where_a_guarantee_is_broken_on_purpose(world: World) -> None:
    names = ("p00003.validating", "p00003.validating.tmp", "p00003.validating.scratch")
    for number, name in enumerate(names):
        (world.config.store_dir / name / str(number)).mkdir(parents=True)

    def made(config: EngineConfig) -> Validations | None:
        arguments: Any = (config, world.cluster, world.memory, Pace(0))
        return validations(*arguments, metrics=world.told, log=world.told)

    assert made(replace(world.config, validate_store=False)) is None
    assert not list(world.config.store_dir.glob("*.validating*")), "what a killed process left"
    assert made(replace(world.config, sabotage=Sabotage.parse("skip-dedup", environment="dev"))) is None
    on = made(world.config)
    assert on is not None
    on.stop()
    clear(world.config.store_dir)
