"""Goal: a partition is served from its changelog's newest end while its checkpoint is on its way, ends with
the rows of one that had it from the beginning, and no store, however slow, holds a restore that is called
off.

Method: the real restore, real RocksDB and a real store whose downloads wait at a gate (``Gated``).
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.changelog_world import NOW, PARTITION, PREFIX
from engine.checkpoint_world import publish
from engine.cluster import wait_for
from engine.test_warming_restore import SESSIONS, Hot, small
from refold.engine import rows
from refold.engine.checkpoints import fetching, source
from refold.engine.checkpoints.keyfilter import KeyFilter
from refold.engine.checkpoints.manifest import Manifest
from refold.engine.checkpoints.remote import Remote
from refold.engine.checkpoints.source import CheckpointSource
from refold.engine.config import EngineConfig
from refold.engine.points import Points
from refold.engine.restore import Restored, Restorer
from refold.engine.takeover import Cancelled
from refold.engine.warming import arriving
from refold.engine.warming.arriving import Arrived, Arriving

__all__ = ["small"]

SEEDS = 8
#: Of the whole restore or of its end: far above what either takes, far below what the store would take.
SOON_S = 5.0


class Gated(Remote):
    """Files come when the gate is open. ``hangs``: and a download that is called off is no exception."""

    def __init__(self, url: str) -> None:
        super().__init__(url, PREFIX)
        self.open = threading.Event()
        self.asked = threading.Event()
        self.hangs = False
        #: Threads that were within a call.
        self.threads: set[str] = set()

    def checkpoints(self, partition: int) -> list[str]:
        self.threads.add(threading.current_thread().name)
        return super().checkpoints(partition)

    def key_filter(self, manifest: Manifest) -> KeyFilter | None:
        self.threads.add(threading.current_thread().name)
        return super().key_filter(manifest)

    def get_file(self, partition: int, entry: Any, to: Any, stopped: Callable[[], bool], **more: Any) -> None:
        self.asked.set()
        while not self.open.wait(0.01):
            if stopped() and not self.hangs:
                raise InterruptedError
        super().get_file(partition, entry, to, stopped, **more)


class Slow(Hot):
    """One partition whose checkpoints are behind the gate."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> None:
        super().__init__(directory, monkeypatch, seed)
        world, slow = self.world, self
        self.remote = Gated(f"file://{directory / 'remote'}")
        self.source = CheckpointSource(self.remote, world.memory, metrics=world.told, log=world.told)
        self.hot_first = True

        class Restoring(type(world)):  # type: ignore[misc]
            @property
            def config(self) -> EngineConfig:
                return replace(super().config, hot_first=slow.hot_first)

            def restorer(self, facts: Any = None) -> Restorer:
                return Restorer(
                    self.config,
                    self.cluster,
                    self.facts,
                    self.memory,
                    Points(),
                    log=self.told,
                    now_ms=lambda: NOW,
                    checkpoints=slow.source,
                )

        world.__class__ = Restoring

    def checkpoint(self) -> None:
        """Of a life that has everything; its disk is lost."""
        world = self.world
        self.remote.open.set()
        hot, self.hot_first = self.hot_first, False
        world.restore()
        assert world.store is not None
        publish(self.remote, world.store, world.memory, world.directory, NOW, points=Points())
        world.close()
        self.hot_first = hot
        shutil.rmtree(world.path)
        self.remote.open.clear()
        world.told.counts.clear()

    def go_over(self) -> None:
        """What the event loop does when the checkpoint has arrived."""
        assert self.warmer is not None
        self.warmer.close()
        self.world.close()
        self.start()

    def left(self) -> list[Path]:
        return list(self.world.path.parent.glob("*.fetched"))

    def over(self) -> None:
        fetch = self.source.under_way(PARTITION)
        assert fetch is not None
        wait_for("the checkpoint", lambda: fetch.over, SOON_S, every=0.01)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> Iterator[Slow]:
    monkeypatch.setattr(source, "PATIENCE_S", 0.05)
    monkeypatch.setattr(source, "AHEAD_RECORDS_MIN", 5)
    monkeypatch.setattr(arriving, "AHEAD_RECORDS_MIN", 5)
    made = Slow(tmp_path, monkeypatch)
    made.world.live_on(60, SESSIONS)
    made.checkpoint()
    made.world.live_on(4, SESSIONS)
    yield made
    made.remote.open.set()
    if made.warmer is not None:
        made.warmer.close()
    made.world.close()


def test_recent_sessions_are_served_while_the_checkpoint_is_on_its_way(slow: Slow) -> None:
    """Goal: the newest is known at once; who is not in the checkpoint is known to be absent as soon as what
    is newer was read; nobody else is; and then the checkpoint is what the restore ends with."""
    slow.start()
    assert slow.warmer is not None
    newest = slow.world.logs.state.entries[max(slow.world.logs.state.entries)][0]
    assert slow.knows(newest)
    slow.check()
    fetch, unread = slow.source.under_way(PARTITION), slow.unread
    assert fetch is not None
    assert unread is not None
    wait_for("the key filter", lambda: fetch.filter is not None and fetch.state_next is not None, every=0.01)
    assert not slow.knows(b"a/nobody")
    while unread.high > fetch.state_next:  # type: ignore[operator]
        assert not slow.warmer.step()
    assert not slow.warmer.step()
    assert slow.knows(b"a/nobody")
    slow.check()
    assert [key for key in slow.world.expected if key[:1] == rows.STATE and not slow.knows(key[1:])]
    slow.commit()
    assert slow.world.told.restores() == {}
    slow.remote.open.set()
    slow.over()
    with pytest.raises(Arrived):
        slow.warmer.step()
    slow.go_over()
    assert slow.world.told.restores() == {"used": 1}
    while slow.warmer is not None and not slow.warmer.step():
        pass
    assert slow.world.found() == slow.world.expected
    assert slow.left() == []


def test_the_changelog_may_be_read_before_it_comes(slow: Slow) -> None:
    """Goal: then nothing is fetched any more, and nothing of it stays on the disk."""
    slow.start()
    assert slow.warmer is not None
    assert slow.remote.asked.wait(SOON_S)
    while not slow.warmer.step():
        pass
    slow.warmer.close()
    slow.warmer = None
    assert slow.world.found() == slow.world.expected
    assert slow.source.under_way(PARTITION) is None
    wait_for("the fetch to end", lambda: slow.left() == [], SOON_S, every=0.01)


def test_one_that_saves_next_to_nothing_is_left(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: to be taken over again costs more than to read the last records."""
    monkeypatch.setattr(arriving, "AHEAD_RECORDS_MIN", 1_000)
    slow.start()
    assert slow.warmer is not None
    slow.remote.open.set()
    slow.over()
    while not slow.warmer.step():
        pass
    assert slow.world.found() == slow.world.expected
    assert slow.left() == []


def test_a_checkpoint_that_is_there_in_time_is_what_it_was(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: nothing is served twice where the store is near."""
    slow.remote.open.set()
    monkeypatch.setattr(source, "PATIENCE_S", SOON_S)
    slow.start()
    assert slow.world.told.restores() == {"used": 1}
    assert slow.source.under_way(PARTITION) is None


def test_who_has_waited_once_does_not_wait_for_a_while(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: with a slow store the 64th partition of a worker is served as soon as the first. Method: a
    patience that would be noticed."""
    slow.start()
    assert slow.warmer is not None
    slow.warmer.close()
    slow.world.close()
    monkeypatch.setattr(source, "PATIENCE_S", 60.0)
    began = time.monotonic()
    slow.start()
    assert time.monotonic() - began < SOON_S


def test_a_restore_that_is_called_off_does_not_wait_for_the_store(slow: Slow) -> None:
    """Goal: the rebalance that takes the partition away waits for its restore; a call of a store that hangs
    lasts for minutes. Its directory is free at once, and what comes later is thrown away."""
    slow.hot_first = False
    slow.remote.hangs = True
    called_off = threading.Event()
    ended: list[float] = []

    def run() -> None:
        with pytest.raises(Cancelled):
            slow.world.restorer().run(PARTITION, called_off.is_set, lambda _: None)
        ended.append(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    assert slow.remote.asked.wait(SOON_S)
    began = time.monotonic()
    called_off.set()
    thread.join(SOON_S)
    late = thread.is_alive()
    slow.remote.hangs = False
    slow.remote.open.set()
    thread.join()
    assert not late, "it waited for the store"
    assert ended[0] - began < SOON_S
    wait_for("the fetch to end", lambda: slow.left() == [], SOON_S, every=0.01)
    restored: Restored = slow.world.restore()
    assert restored.set_aside is None
    assert slow.world.found() == slow.world.expected


@pytest.mark.parametrize("hot_first", [False, True])
def test_a_store_that_answers_no_more_is_given_up(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, hot_first: bool
) -> None:
    """Goal: a mount that hangs costs the time until it is taken for gone, not the restore."""
    monkeypatch.setattr(fetching, "STILL_S_MAX", 0.3)
    slow.hot_first = hot_first
    slow.remote.hangs = True
    slow.start()
    while slow.warmer is not None and not slow.warmer.step():
        pass
    if slow.warmer is not None:
        slow.warmer.close()
    assert slow.world.found() == slow.world.expected
    assert slow.source.under_way(PARTITION) is None
    if not hot_first:
        assert slow.world.told.restores() == {"unreachable": 1}


def test_one_that_is_damaged_still_proves_who_is_not_in_it(slow: Slow) -> None:
    """Goal: its filter is a file of its own. And it is not asked for by the restore itself."""
    for file in (slow.world.directory / "remote").rglob("files/*"):
        if file.stat().st_size > 1_000 and not file.read_bytes().startswith(b"RFKF"):
            file.write_bytes(b"damaged")
    slow.remote.open.set()
    slow.remote.threads.clear()
    slow.start()
    assert slow.warmer is not None
    if slow.source.under_way(PARTITION) is not None:
        slow.over()
    assert slow.remote.threads == {"refold-fetching"}
    assert not slow.knows(b"a/nobody")
    while slow.unread is not None and not slow.unread.proves:
        assert not slow.warmer.step()
    assert slow.knows(b"a/nobody")
    assert not slow.warmer.step()
    slow.check()
    assert slow.source.proof(PARTITION) is None, "it is not kept"


class Coming:
    """A fetch as far as it is looked at."""

    def __init__(self, state_next: int | None, *, over: bool = False) -> None:
        self.state_next, self.over, self.filter, self.found = state_next, over, None, None


class Left:
    high, reading_state = 100, True

    def told(self, _proof: Any) -> None:
        raise AssertionError("there is none")


@pytest.mark.parametrize(
    ("paced", "fetch", "waits"),
    [
        (True, Coming(100), True),
        (True, Coming(99), False),
        (True, Coming(None), False),
        (True, Coming(100, over=True), False),
        (False, Coming(100), False),
    ],
)
def test_reading_waits_only_where_bytes_are_short_and_the_checkpoint_has_them(
    paced: bool, fetch: Coming, waits: bool
) -> None:
    made = Arriving(fetch, Left(), 200, paced=paced, forget=lambda: None)  # type: ignore[arg-type]
    assert made.waits == waits


def test_whatever_happens_meanwhile_the_rows_are_those_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    """Goal: as ``test_warming_restore``, with a checkpoint that comes at some moment. Method: commits of
    known sessions, compaction and deaths between the steps; the gate opens before one of them."""
    happened: dict[str, int] = {}
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            patch.setattr(source, "PATIENCE_S", 0.02)
            patch.setattr(source, "AHEAD_RECORDS_MIN", 5)
            patch.setattr(arriving, "AHEAD_RECORDS_MIN", 5)
            for what, count in one_partition(tmp_path / str(seed), patch, seed).items():
                happened[what] = happened.get(what, 0) + count
    for what in ("served", "gone over", "changed meanwhile", "deleted meanwhile", "killed"):
        assert happened[what] >= 2, what


def one_partition(directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> dict[str, int]:
    directory.mkdir()
    slow, chance = Slow(directory, monkeypatch, seed), random.Random(seed)
    world, logs = slow.world, slow.world.logs
    if chance.random() < 0.5:
        # A copy that is far behind.
        world.live_on(10, SESSIONS)
        slow.hot_first = False
        world.restore()
        world.close()
        old = directory / "old"
        world.path.rename(old)
        slow.hot_first = True
    else:
        old = None
    world.live_on(chance.randint(30, 60), SESSIONS)
    slow.checkpoint()
    if old is not None:
        old.rename(world.path)
    world.live_on(chance.randint(3, 20), SESSIONS)
    if chance.random() < 0.5:
        logs.state.compact()
    opens = chance.randrange(6)
    slow.start()
    steps = 0
    while slow.warmer is not None:
        slow.check()
        # Or the log would grow faster than so small ranges are read.
        for _ in range(chance.randrange(4) if steps < 20 else 0):
            slow.commit()
        slow.check()
        if chance.random() < 0.3:
            slow.image()
        if chance.random() < 0.1 and slow.happened.get("killed", 0) < 2:
            slow.note("killed")
            slow.end()
            slow.start()
            continue
        if steps == opens and slow.source.under_way(PARTITION) is not None:
            slow.remote.open.set()
            slow.over()
        steps += 1
        try:
            done = slow.warmer.step()
        except Arrived:
            slow.note("gone over")
            slow.go_over()
            continue
        if done:
            slow.warmer.close()
            slow.warmer = None
    slow.check()
    slow.commit()
    assert world.found() == world.expected, seed
    world.close()
    slow.remote.open.set()
    wait_for("fetches to end", lambda: slow.left() == [], SOON_S, every=0.01)
    return slow.happened
