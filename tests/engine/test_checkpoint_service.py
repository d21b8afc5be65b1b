"""The worker's part without a broker: real DBs of live partitions, a store that may fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint_world import PREFIX, Told, write
from refold.engine.assignment import Assignment, Partition
from refold.engine.checkpoints import service
from refold.engine.checkpoints.remote import Remote
from refold.engine.checkpoints.service import UPLOADS_MAX, Checkpoints
from refold.engine.config import EngineConfig
from refold.engine.lifecycle import State
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.store import Memory, Store

SECONDS_MAX = 60.0


class Host:
    """Live partitions and the one disk thread."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self.memory = Memory()
        self.assignment = Assignment()
        self.pool = ThreadPoolExecutor(1)
        self.asked = 0
        self.owners = [self.add(directory, number) for number in range(partitions)]

    def add(self, directory: Path, number: int) -> Partition:
        owner = self.assignment.add(number, self.assignment.next_epoch())
        for state in (State.WAITING, State.RESTORING, State.LIVE):
            owner.move(state)
        store = Store(directory / PREFIX / f"p{number:05d}", self.memory)
        owner.written = Written(store, "ts", "th", "tg", 0, 0, 0)
        owner.committed = owner.batches_committed = 0
        return owner

    async def on_disk(self, work: Callable[[], Any]) -> Any:
        self.asked += 1
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    def commit(self, owner: Partition) -> None:
        assert owner.written is not None
        owner.committed += 1
        owner.batches_committed += 1
        write(owner.written.store, owner.committed)

    def close(self) -> None:
        for owner in self.owners:
            if owner.written is not None:
                owner.written.store.close()


class Run:
    def __init__(self, directory: Path, partitions: int) -> None:
        self.told = Told()
        self.host = Host(directory, partitions)
        self.remote = Remote(f"file://{directory / 'remote'}", PREFIX)
        config = EngineConfig(
            kafka={}, prefix=PREFIX, instance="a", data_dir=directory, checkpoint_interval_ms=50, seed=1
        )
        self.service = Checkpoints(
            config,
            self.remote,
            self.host.memory,
            points=Points(),
            metrics=self.told,
            log=self.told,
            now_ms=lambda: 1_000,
        )
        self.task = asyncio.get_running_loop().create_task(self.service.run(self.host))

    def outcome(self, name: str) -> float:
        return self.told.counts.get(("refold_checkpoints_total", name), 0)

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                if what():
                    return
                await asyncio.sleep(0.005)


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[int], Run]]:
    monkeypatch.setattr(service, "LOOK_S", 0.01)
    runs: list[Run] = []

    def start(partitions: int) -> Run:
        runs.append(Run(tmp_path, partitions))
        return runs[-1]

    yield start
    for one in runs:
        one.task.cancel()
        one.service.stop()
        await asyncio.gather(one.task, return_exceptions=True)
        one.host.close()


async def test_every_partition_is_taken_when_something_was_committed(make: Callable[[int], Run]) -> None:
    """Also: nothing more is published while nothing more is committed, and the age says so."""
    run = make(3)
    for owner in run.host.owners:
        run.host.commit(owner)
    await run.until(lambda: run.outcome("done") == 3)
    assert run.remote.partitions() == [0, 1, 2]
    run.host.commit(run.host.owners[1])
    await run.until(lambda: run.outcome("done") == 4)
    assert [len(run.remote.checkpoints(number)) for number in range(3)] == [1, 2, 1]
    await run.until(
        lambda: all(
            run.told.counts[("refold_checkpoint_age_seconds", str(number))] == 0 for number in range(3)
        )
    )
    assert run.outcome("failed") == 0


async def test_uploads_are_bounded_and_a_partition_may_leave_meanwhile(
    make: Callable[[int], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: at most two at once; a partition that is given up while its upload runs is closed without waiting
    for it, and what was taken is published all the same."""
    run = make(4)
    put, at_once, going = run.remote.put_manifest, list[int](), set[int]()
    held = asyncio.Event()

    def slowly(manifest: Any, scratch: Path) -> str:
        going.add(manifest.partition)
        at_once.append(len(going))
        asyncio.run_coroutine_threadsafe(held.wait(), loop).result(SECONDS_MAX)
        try:
            return put(manifest, scratch)
        finally:
            going.discard(manifest.partition)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(run.remote, "put_manifest", slowly)
    for owner in run.host.owners:
        run.host.commit(owner)
    await run.until(lambda: len(going) == UPLOADS_MAX)
    leaves = run.host.owners[min(going)]
    assert leaves.written is not None
    leaves.cancelled.set()
    await run.host.on_disk(leaves.written.store.close)
    run.host.assignment.forget(leaves)
    held.set()
    await run.until(lambda: run.outcome("done") == 4)
    assert max(at_once) == UPLOADS_MAX
    assert len(run.remote.checkpoints(leaves.number)) == 1


async def test_a_store_that_fails_is_counted_and_tried_again(
    make: Callable[[int], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends: neither a failure of the store nor one that nobody foresaw."""
    run = make(1)
    put, failures = run.remote.put_file, [OSError(28, "No space left on device"), ZeroDivisionError()]

    def fails(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        put(*arguments)

    monkeypatch.setattr(run.remote, "put_file", fails)
    run.host.commit(run.host.owners[0])
    await run.until(lambda: run.outcome("done") == 1)
    assert run.outcome("failed") == 2
    said = [fields["error"] for event, fields in run.told.events if event == "checkpoint_failed"]
    assert said[0] == "ZeroDivisionError"
    assert "No space left" in said[1]
    assert not run.task.done()


async def test_a_partition_that_is_not_live_or_closed_is_not_taken(make: Callable[[int], Run]) -> None:
    run = make(2)
    first, second = run.host.owners
    for owner in (first, second):
        run.host.commit(owner)
    first.move(State.WAITING)
    await run.until(lambda: run.outcome("done") == 1)
    assert run.remote.partitions() == [1]
    assert second.written is not None
    second.written.store.close()
    second.committed += 1
    asked = run.host.asked
    await run.until(lambda: run.host.asked > asked + 2)
    assert (run.outcome("done"), run.outcome("failed")) == (1, 0)
    # The directory of a copy that was not made is not uploaded.
    assert len(run.remote.checkpoints(1)) == 1


async def test_the_last_round_takes_what_is_committed_since_and_the_longest_tail_first(
    make: Callable[[int], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a stop leaves checkpoints of everything, in an order that saves most where its time is over; a
    partition without a tail is left alone; one that is on its way is taken again after that."""
    monkeypatch.setattr(service, "UPLOADS_MAX", 1)
    run = make(4)
    for owner in run.host.owners:
        run.host.commit(owner)
    await run.until(lambda: run.outcome("done") == 4)
    run.task.cancel()
    for owner, commits in zip(run.host.owners, (2, 0, 5, 1), strict=True):
        for _ in range(commits):
            run.host.commit(owner)
    run.told.events.clear()
    await run.service.last(run.host, time.monotonic() + SECONDS_MAX)
    published = [fields["partition"] for event, fields in run.told.events if event == "checkpoint_published"]
    assert published == [2, 0, 3]
    for owner in run.host.owners:
        newest = run.remote.manifest(owner.number, run.remote.checkpoints(owner.number)[0])
        assert newest.frontier.inbox_next == owner.committed
    assert "checkpoints_cut_short" not in [event for event, _ in run.told.events]


async def test_a_store_that_hangs_does_not_hold_a_stop(
    make: Callable[[int], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: at the end of its time the last round returns, whatever the store does, and says what is left."""
    run = make(3)
    hangs = threading.Event()
    monkeypatch.setattr(run.remote, "put_manifest", lambda *_: hangs.wait(SECONDS_MAX))
    for owner in run.host.owners:
        run.host.commit(owner)
    began = time.monotonic()
    await run.service.last(run.host, began + 0.3)
    # The store hangs for a minute.
    assert 0.3 <= time.monotonic() - began < SECONDS_MAX / 2
    assert ("checkpoints_cut_short", {"partitions": [0, 1, 2]}) in run.told.events
    assert run.outcome("done") == 0
    hangs.set()


async def test_a_stop_without_time_or_without_the_setting_takes_none(make: Callable[[int], Run]) -> None:
    run = make(1)
    run.task.cancel()
    run.host.commit(run.host.owners[0])
    now = time.monotonic()
    order = run.service.at_drain(run.host, now, 0.0)
    assert order is not None
    await order()
    assert run.remote.partitions() == []
    object.__setattr__(run.service._config, "checkpoint_at_drain", False)
    assert run.service.at_drain(run.host, now + SECONDS_MAX, SECONDS_MAX) is None
