"""Copies of partitions on a real RocksDB: what they hold, how old they may be, when they are begun again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from engine.cluster import wait_for
from engine.standby_world import LIFETIME_MS, Placed, World, snapshot
from refold.engine import rows
from refold.engine.standby import copy as copies
from refold.engine.standby import tail as tails
from refold.engine.standby.copy import Look
from refold.engine.store import Store, UnreadableStore
from refold.engine.takeover import Committed
from refold.errors import StorageError


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.end()


def test_a_copy_holds_what_its_changelogs_say_and_is_a_local_copy_for_a_restore(world: World) -> None:
    """Goal: S2 and S3. Every kind of row, deletions, markers; the frontier belongs to nobody who was fed, and
    the restorer goes on from there."""
    log = world.log
    for number in range(50):
        log.state(5, f"s{number % 20}", number + 1)
    log.state(5, "s3", 0)
    log.put("history", 5, b"t/s1#00000000", b"block")
    log.put("generations", 5, b"t/s1#g", b"record")
    log.put("generations", 5, b"t/s1#gone", b"record")
    log.put("generations", 5, b"t/s1#gone", None)
    log.marker("state", 5)
    copy = world.open(5)
    world.whole(copy)
    log.state(5, "s4", 99)
    world.whole(copy)
    world.close(5)
    seqs = {f"s{number % 20}": number + 1 for number in range(50)}
    del seqs["s3"]
    seqs["s4"] = 99
    assert world.rows(5) == {f"t/{name}".encode(): snapshot(name, seq) for name, seq in seqs.items()}
    store = Store(world.restorer.path(5), world.memory)
    assert (store.side(b"t/s1#g"), store.side(b"t/s1#gone")) == (b"record", None)
    assert store.row(b"t/s4") is not None
    assert rows.tail_of(store.row(b"t/s4") or b"") == b"tail 52"
    store.close(flush=False)
    assert world.frontier(5) == rows.Frontier("ts", "th", "tg", -1, -1, 53, 1, 3, world.clock)
    # A restore takes it as it is.
    committed = Committed(1_000, None, 70)
    opened, frontier, why = world.restorer._open(5, committed, log.marks(5))
    opened.close(flush=False)
    assert (frontier.state_next, why) == (53, None)


def test_a_partition_given_up_here_is_gone_on_with(world: World) -> None:
    """Goal: the directory of a former owner is a copy; what is applied makes it nobody's who was fed."""
    for number in range(10):
        world.log.state(0, f"s{number}", 1)
    copy = world.open(0)
    world.whole(copy)
    world.close(0)
    store = Store(world.restorer.path(0), world.memory)
    batch = copies.Batch()
    batch.frontier(replace(store.frontier() or pytest.fail("no frontier"), inbox_next=700, batches_next=30))
    store.write(batch)
    store.close()
    world.log.state(0, "s1", 2)
    copy = world.open(0)
    world.whole(copy)
    assert copy.row(b"t/s1") is not None
    world.close(0)
    assert world.frontier(0).inbox_next == -1
    assert world.rows(0)[b"t/s1"] == snapshot("s1", 2)
    assert world.said.of("local_store_set_aside") == []


def test_nothing_is_said_of_a_session_before_the_copy_was_whole(world: World) -> None:
    """Goal: S4. No answer while a session that is not there may exist; later answers say how old they are."""
    world.consumer.silent.set()
    world.log.state(0, "s", 1)
    copy = world.open(0)
    copy.looked(Look(10.0, world.clock, world.log.stable(0)))
    assert copy.row(b"t/s") is None
    assert copy.freshness() == copies.Freshness(0, 1, None)
    world.consumer.silent.clear()
    wait_for("the record", lambda: copy.written[0] == 1)
    row, fresh = copy.row(b"t/s") or (None, None)
    assert row is not None
    assert fresh is not None
    assert (fresh.position, fresh.behind) == (1, 0)
    absent = copy.row(b"t/other")
    assert absent is not None
    assert absent[0] is None


def test_age_counts_from_the_last_look_that_was_caught_up_with(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what was committed before the age's moment is in the copy, whatever came since."""
    now = 100.0
    monkeypatch.setattr(copies, "time", Clock(lambda: now))
    world.log.state(0, "s", 1)
    copy = world.open(0)
    wait_for("the record", lambda: copy.written[0] == 1)
    copy.looked(Look(99.0, world.clock, (1, 0, 0)))
    assert copy.freshness() == copies.Freshness(1, 0, 1.0)
    now = 105.0
    copy.looked(Look(104.0, world.clock, (3, 0, 0)))
    copy.looked(Look(104.5, world.clock, (4, 0, 0)))
    assert copy.freshness() == copies.Freshness(1, 3, 6.0)
    world.log.state(0, "s", 2)
    world.log.state(0, "s", 3)
    wait_for("two more", lambda: copy.written[0] == 3)
    assert copy.freshness() == copies.Freshness(3, 1, 1.0)
    # However far it falls behind, what is remembered of looks is bounded, and the age stays an upper bound.
    for number in range(3 * copies.LOOKS_MAX):
        copy.looked(Look(105.0 + number, world.clock, (4 + number, 0, 0)))
    assert len(copy._looks) == copies.LOOKS_MAX
    now = 500.0
    assert copy.freshness().age_s == 500.0 - 104.0


class Clock:
    def __init__(self, monotonic: Any) -> None:
        self.monotonic = monotonic


@pytest.mark.parametrize(("stopped_ms", "why"), [(LIFETIME_MS + 1, "too_old"), (LIFETIME_MS - 1, None)])
def test_z_a_standby_stopped_across_the_expiry_of_tombstones_is_rebuilt(
    world: World, stopped_ms: int, why: str | None
) -> None:
    """Goal: a deletion that the copy has not read and that compaction has removed is not undone by a stale
    copy. Control: within the lifetime the copy is gone on with, and the same loss of the tombstone, which
    Kafka does not allow then, would show."""
    log = world.log
    for name in ("kept", "deleted"):
        log.state(0, name, 1)
    world.whole(world.open(0))
    world.again()
    log.state(0, "deleted", 0)
    log.state(0, "new", 1)
    log.compact()
    world.clock += stopped_ms
    copy = world.open(0)
    world.whole(copy)
    assert [fields["set_aside"] for fields in world.said.of("standby_opened")] == [None, why]
    world.close(0)
    stale = {b"t/deleted": snapshot("deleted", 1)} if why is None else {}
    assert world.rows(0) == {b"t/kept": snapshot("kept", 1), b"t/new": snapshot("new", 1), **stale}
    # It is as young as its beginning now.
    assert world.frontier(0).applied_ms == world.clock


def test_z_a_process_that_stood_still_across_the_expiry_of_tombstones_rebuilds(world: World) -> None:
    """Goal: the same for a copy that is open: what comes after the pause is not applied on top of it."""
    log = world.log
    for name in ("kept", "deleted"):
        log.state(0, name, 1)
    world.whole(world.open(0))
    world.silence()
    log.state(0, "deleted", 0)
    log.state(0, "new", 1)
    log.compact()
    world.clock += LIFETIME_MS + 1
    world.consumer.silent.clear()
    wait_for("the loss of the copy", lambda: bool(world.lost))
    assert world.lost == [(0, "too_old")]
    assert 0 not in world.tail.copies
    copy = world.open(0)
    world.whole(copy)
    world.close(0)
    assert world.rows(0) == {b"t/kept": snapshot("kept", 1), b"t/new": snapshot("new", 1)}


def test_z_an_idle_partition_stays_young(world: World) -> None:
    """Goal: no rebuild where nothing was written for days: to be whole at a look is to have seen every
    tombstone until then, and the frontier says so to the next life."""
    world.log.state(0, "s", 1)
    copy = world.open(0)
    for _ in range(5):
        world.clock += LIFETIME_MS - 1
        world.whole(copy)
    world.again()
    world.log.state(0, "s", 2)
    world.clock += LIFETIME_MS - 1
    copy = world.open(0)
    world.whole(copy)
    assert [fields["set_aside"] for fields in world.said.of("standby_opened")] == [None, None]
    assert world.lost == []
    # Whole when it is opened: no tombstone can have been missed, however long that took.
    world.again()
    world.clock += 10 * LIFETIME_MS
    copy = world.open(0)
    world.log.state(0, "s", 3)
    world.whole(copy)
    assert world.lost == []


def test_s3_when_a_close_is_done_the_directory_is_free(world: World) -> None:
    """Goal: one user at a time: opened, told to close from another thread, opened again by somebody else."""
    for number in range(200):
        world.log.state(number % 4, f"s{number}", 1)
    opened = [world.open(partition) for partition in range(4)]
    for partition in range(4):
        world.tail.open(partition, world.log.marks(partition), world.clock)
        world.close(partition)
        Store(world.restorer.path(partition), world.memory).close()
        assert opened[partition].row(b"t/s1") is None
    world.close(0)
    assert world.lost == []


def test_s3_nobody_waits_for_a_thread_that_has_ended(world: World) -> None:
    world.open(0)
    world.end()
    assert world.tail.copies == {}
    world.close(0)
    world.tail.open(0, world.log.marks(0), world.clock)
    assert world.tail.copies == {}
    Store(world.restorer.path(0), world.memory).close()


def test_an_error_among_records_costs_none_of_them(world: World) -> None:
    """Goal: no hole. librdkafka hands out errors between records; what was consumed does not come again."""
    copy = world.open(0)
    world.whole(copy)
    world.silence()
    for number in range(4):
        world.log.state(0, f"s{number}", 1)
    records: list[Any] = list(world.log.records["t.state", 0])
    failure = Placed(-1, None, -1, None, None, error=KafkaError(KafkaError._ALL_BROKERS_DOWN))
    world.consumer.at["t.state", 0] = 4
    world.consumer.injected.extend([*records[:2], failure, *records[2:]])
    world.consumer.silent.clear()
    world.whole(copy)
    world.close(0)
    assert sorted(world.rows(0)) == [b"t/s0", b"t/s1", b"t/s2", b"t/s3"]
    assert len(world.said.of("standby_read_failed")) == 1


def test_a_changelog_that_no_longer_holds_the_place_begins_the_copy_again(world: World) -> None:
    world.log.state(0, "s", 1)
    world.whole(world.open(0))
    world.again()
    world.log.state(0, "s", 2)
    world.log.state(0, "s", 3)
    world.log.compact()
    marks = world.log.marks(0)
    world.log.starts["t.state", 0] = 2
    world.tail.open(0, marks, world.clock)
    wait_for("the loss of the copy", lambda: bool(world.lost))
    assert world.lost == [(0, "log_gone")]
    copy = world.open(0)
    world.whole(copy)
    world.close(0)
    assert world.rows(0) == {b"t/s": snapshot("s", 3)}


def test_a_disk_that_fails_ends_the_copy_and_not_the_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    write = Store.write

    def failing(store: Store, batch: Any) -> None:
        if full.is_set():
            raise StorageError("no space left on the disk")
        write(store, batch)

    monkeypatch.setattr(Store, "write", failing)
    world.log.state(1, "t", 1)
    world.whole(world.open(0))
    full.set()
    world.log.state(0, "s", 1)
    wait_for("the loss of the copy", lambda: bool(world.lost))
    assert world.lost == [(0, "disk")]
    full.clear()
    for partition in (0, 1):
        world.whole(world.open(partition))
        world.close(partition)
    assert (world.rows(0), world.rows(1)) == ({b"t/s": snapshot("s", 1)}, {b"t/t": snapshot("t", 1)})


def test_a_copy_found_unreadable_is_set_aside_and_begun_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: whether a write or a reader's request finds it."""
    broken = threading.Event()
    write = Store.write

    def failing(store: Store, batch: Any) -> None:
        if broken.is_set():
            raise UnreadableStore("a file is damaged", store.path)
        write(store, batch)

    monkeypatch.setattr(Store, "write", failing)
    world.log.state(0, "s", 1)
    world.whole(world.open(0))
    broken.set()
    world.log.state(0, "s", 2)
    wait_for("the loss of the copy", lambda: bool(world.lost))
    broken.clear()
    world.whole(world.open(0))
    world.tail.damaged(0)
    world.tail.damaged(0)
    wait_for("the loss of the copy", lambda: len(world.lost) > 1)
    assert world.lost == [(0, "damaged"), (0, "damaged")]
    assert not world.restorer.path(0).exists()
    copy = world.open(0)
    world.whole(copy)
    world.close(0)
    assert world.rows(0) == {b"t/s": snapshot("s", 2)}


def test_many_records_are_read_in_bounded_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what waits to be written is bounded over all copies, and nothing is lost between the pieces."""
    monkeypatch.setattr(tails, "CHUNK_RECORDS", 10)
    monkeypatch.setattr(tails, "WAITING_BYTES_MAX", 20_000)
    most = 0
    write = copies.Copy.write

    def watched(copy: copies.Copy, points: Any) -> None:
        nonlocal most
        most = max(most, sum(len(one._run) for one in world.tail.copies.values()))
        write(copy, points)

    monkeypatch.setattr(copies.Copy, "write", watched)
    for number in range(600):
        world.log.state(number % 3, f"s{number}", 1)
    opened = [world.open(partition) for partition in range(3)]
    for copy in opened:
        world.whole(copy)
    for partition in range(3):
        world.close(partition)
        assert len(world.rows(partition)) == 200
    assert 10 < most < 100
