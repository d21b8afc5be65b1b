"""Downloads keep the pace of restores; a filter is found without downloading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint_world import PARTITION, Told, World, frontier, seqs
from refold.engine.admission import BURST_S, Pace
from refold.engine.checkpoints import source as sources
from refold.engine.checkpoints.fetch import DOWNLOADS_MAX, PIECE_BYTES_MIN, fetch, piece_bytes
from refold.engine.checkpoints.remote import READ_BYTES
from refold.engine.checkpoints.source import CheckpointSource
from refold.engine.store import Store

MB = 1_000_000


class Clock:
    """Time that passes when somebody sleeps, from several threads; and how much had been read when."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("rate", "piece"),
    [
        (0, READ_BYTES),
        (1_000 * MB, READ_BYTES),
        (16 * MB, int(16 * MB * BURST_S) // DOWNLOADS_MAX),
        (1_000, PIECE_BYTES_MIN),
    ],
)
def test_the_pieces_of_all_downloads_together_are_a_bursts_worth(rate: int, piece: int) -> None:
    assert piece_bytes(Pace(rate)) == piece
    assert piece_bytes(None) == READ_BYTES


def test_every_byte_of_a_download_is_paid_for(world: World, tmp_path: Path) -> None:
    """Goal: a checkpoint of L bytes at B bytes/s takes L / B - 0.25 s at least, by the simulated clock, and
    none of it counts as read from the brokers."""
    world.go_on(300)
    manifest = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    rate = manifest.length // 4
    clock, told = Clock(), list[int]()
    pace = Pace(rate, monotonic=lambda: clock.now, sleep=clock.sleep)
    pace.told = told.append
    fetch(world.remote, manifest, tmp_path / "to", pace=pace)
    assert clock.now >= manifest.length / rate - BURST_S - 0.01
    assert told == []


def test_a_paced_download_ends_when_the_partition_is_taken_away(world: World, tmp_path: Path) -> None:
    """Goal: a revoke does not wait for bytes. Method: a pace at which it would take a month."""
    world.go_on(20)
    manifest = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    looks = []

    def stopped() -> bool:
        looks.append(1)
        return len(looks) > 20

    with pytest.raises(InterruptedError):
        fetch(world.remote, manifest, tmp_path / "to", stopped=stopped, pace=Pace(1))
    assert not (tmp_path / "to").exists()


def test_the_time_a_download_may_take_grows_with_the_pace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what B makes slow is not given up as hanging. Method: no time at all beside what B asks for."""
    world.go_on(300)
    manifest = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    monkeypatch.setattr(sources, "FETCH_SECONDS_MAX", 0.0)
    told = Told()
    source = CheckpointSource(world.remote, world.memory, metrics=told, log=told)
    clock = Clock()
    # At this rate a second was asked for every byte, and none is waited for: the clock stands.
    source.pace = Pace(1, monotonic=lambda: clock.now, sleep=clock.sleep)
    store = Store(world.directory / "other" / "p", world.memory)
    store, _ = source.better(PARTITION, store, frontier(0, inbox_next=-1), lambda _: None, lambda: False)
    assert seqs(store) == {300}
    store.close()
    assert told.counts[("refold_checkpoint_bytes_total", "fetched")] == manifest.length


def test_what_has_become_too_old_while_it_was_downloaded_is_not_used(world: World) -> None:
    """Goal: rule Z holds when the tail is read, not only when the manifest was. Method: a judgement that
    changes after it was asked once."""
    world.go_on(5)
    world.publish()
    told = Told()
    source = CheckpointSource(world.remote, world.memory, metrics=told, log=told)
    answers = iter([None, "too_old"])
    path = world.directory / "other" / "p"
    store, at = source.better(
        PARTITION,
        Store(path, world.memory),
        frontier(0, inbox_next=-1),
        lambda _: next(answers),
        lambda: False,
    )
    store.close()
    assert at.inbox_next == -1
    assert told.reasons() == ["too_old"]
    assert [one.name for one in path.parent.iterdir()] == ["p"]


def test_the_newest_filter_that_the_rules_allow_is_found_without_a_download(world: World) -> None:
    world.go_on(5)
    world.publish()
    world.go_on(5)
    world.publish()
    world.go_on(5)
    newest = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    assert newest.keys is not None
    told = Told()
    source = CheckpointSource(world.remote, world.memory, metrics=told, log=told)
    found = source.key_filter(PARTITION, lambda _: None)
    assert found is not None
    assert found[0] == newest
    assert found[1].state_next == frontier(15).state_next
    found = source.key_filter(PARTITION, lambda at: "ahead" if at.inbox_next == 15 else None)
    assert found is not None
    assert found[1].state_next == frontier(10).state_next
    assert source.key_filter(PARTITION, lambda _: "other_topic") is None
    # All three name the one file; damaged, there is none, and that is said.
    world.file(newest.keys.sha256).write_bytes(b"damaged")
    assert source.key_filter(PARTITION, lambda _: None) is None
    assert told.reasons() == ["filter"] * 3
