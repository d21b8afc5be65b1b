"""RocksDB per partition, reading sessions through it, and sealing: real disk, no broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.test_step import KEY, PARTITION, SLOTS, event, record
from engine.traffic import TENANT
from refold.core.evolve import evolve
from refold.core.session import initial
from refold.engine import history, rows, seal
from refold.engine.assignment import Assignment
from refold.engine.cache import SessionCache
from refold.engine.generations import Generations
from refold.engine.overlay import Overlay, apply
from refold.engine.plan import Written
from refold.engine.sabotage import Sabotage
from refold.engine.seal import Sealer
from refold.engine.sessions import Sessions
from refold.engine.step import Limits, step
from refold.engine.store import Batch, BlockedStore, Memory, Store, set_aside
from refold.engine.timers import Timers
from refold.engine.usage import Usages
from refold.errors import InvariantViolation, StorageError
from refold.topology.names import TopicNames
from refold.wire.batches import generation_key
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot

FRONTIER = rows.Frontier("ts", "th", "tg", 10, 7, 20, 3, 4, 1_000)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store(tmp_path / "p0", Memory())
    yield opened
    opened.close()


def test_a_batch_carries_its_frontier(store: Store, tmp_path: Path) -> None:
    assert store.empty()
    assert store.frontier() is None
    batch = Batch()
    batch.put_state(b"a/1", rows.pack(4, b"t", b"snap"))
    batch.put_block(history.block_key(b"a/1", 0), b"block")
    batch.frontier(FRONTIER)
    store.write(batch)
    assert not store.empty()
    store.close()
    again = Store(tmp_path / "p0", Memory())
    assert again.frontier() == FRONTIER
    row = again.row(b"a/1")
    assert row is not None
    assert rows.seq_of(row) == 4
    assert again.block(b"a/1", 0) == b"block"
    assert again.block(b"a/1", 1) is None
    assert again.keys() == [b"a/1"]
    batch = Batch()
    batch.delete_state(b"a/1")
    batch.delete_block(history.block_key(b"a/1", 0))
    again.write(batch)
    assert again.row(b"a/1") is None
    assert again.empty()
    again.close()


def test_after_a_kill_the_disk_is_behind_but_whole(tmp_path: Path) -> None:
    """Goal: no write-ahead log is needed. Method: write, flush, write more, die; look at what is there."""
    program = """
import os, sys
from pathlib import Path
from refold.engine import rows
from refold.engine.store import Batch, Memory, Store
store = Store(Path(sys.argv[1]), Memory())
for number in range(1, 201):
    batch = Batch()
    for key in range(20):
        batch.put_state(b"a/%d" % key, rows.pack(number, b"", b"x" * 500))
    batch.frontier(rows.Frontier("s", "h", "g", number, 0, number, 0, 0, 0))
    store.write(batch)
    if number == 100:
        store.flush()
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "p")], check=False, env=os.environ)
    assert done.returncode == -9
    store = Store(tmp_path / "p", Memory())
    frontier = store.frontier()
    assert frontier is not None
    assert 100 <= frontier.inbox_next <= 200
    for key in range(20):
        row = store.row(b"a/%d" % key)
        assert row is not None
        assert rows.seq_of(row) == frontier.inbox_next
    store.close()


def test_a_locked_directory_names_the_way_out(store: Store) -> None:
    with pytest.raises(StorageError, match=r"locked by another process.*--data-dir"):
        Store(store.path, Memory())


def test_a_damaged_db_is_explained_and_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "p0"
    Store(path, Memory()).close()
    (path / "CURRENT").write_text("nonsense\n")
    with pytest.raises(StorageError, match="only a cache of the state topic"):
        Store(path, Memory())
    set_aside(path)
    Store(path, Memory()).close()
    (path / "CURRENT").write_text("nonsense again\n")
    set_aside(path)
    assert not path.exists()
    assert (tmp_path / "p0.aside").exists()


@pytest.mark.parametrize("name", ["BLOCKS", "unlocked", "no space left here"])
def test_what_is_wrong_is_not_told_by_the_directorys_name(tmp_path: Path, name: str) -> None:
    """Messages hold the path. A damaged copy that counted as locked was never set aside."""
    path = tmp_path / name / "p0"
    store = Store(path, Memory())
    with pytest.raises(BlockedStore, match="locked by another process"):
        Store(path, Memory())
    store.close()
    for manifest in path.glob("MANIFEST-*"):
        manifest.unlink()
    with pytest.raises(StorageError, match="only a cache of the state topic") as raised:
        Store(path, Memory())
    assert not isinstance(raised.value, BlockedStore)


def test_a_session_and_its_generation_are_read_as_of_one_commit(store: Store) -> None:
    """Goal: an answer with a row that has finished and a progress that has not never was the state. Method: a
    commit comes between the two reads."""
    full_key = generation_key(KEY, "g1")

    def commit(number: int) -> None:
        batch = Batch()
        batch.put_state(KEY, b"row %d" % number)
        batch.put_side(full_key, b"record %d" % number)
        store.write(batch)

    commit(1)
    real = store._db

    class Slow:
        """The DB, with a commit after the first look."""

        def iter(self) -> Any:
            return SlowCursor(real.iter())

    class SlowCursor:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def value(self) -> Any:
            store._db = real
            commit(2)
            return self._inner.value()

    store._db = Slow()  # type: ignore[assignment]
    assert store.with_generation(KEY, full_key) == (b"row 1", b"record 1")
    store._db = real
    assert store.with_generation(KEY, full_key) == (b"row 2", b"record 2")
    assert store.with_generation(KEY + b"x", full_key + b"x") == (None, None)


# --- sessions and seal -----------------------------------------------------------------------------------


class Bench:
    """Sessions over a real store, two overlays, and a commit done by hand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        assignment = Assignment()
        part = assignment.add(PARTITION, 1)
        part.written = Written(store, "ts", "th", "tg", 0, 0, 0)
        self.inflight: Overlay | None = None
        self.current = Overlay()
        self.generations = Generations(TopicNames("t"), assignment)
        self.sessions = Sessions(
            TopicNames("t"),
            Limits(1_179_648, 1_179_648, 1_114_112, 1_048_576, 1_114_112, 1_048_576),
            SLOTS,
            assignment,
            SessionCache(1_000_000),
            lambda: [self.current] if self.inflight is None else [self.inflight, self.current],
            Sabotage(),
            self.generations.progress,
            Usages(assignment),
        )
        self.timers = Timers()
        self.sealer = Sealer(self.sessions, self.timers)
        self.offset = 0

    def fold(self, *values: bytes | None) -> list[Any]:
        part = self.current.part(PARTITION, 1, self.offset)
        done = []
        for value in values:
            one = record(value, self.offset)
            effects = step(self.sessions, one)
            apply(self.current, part, one, effects)
            done.append(effects)
            self.offset += 1
        return done

    async def begin_commit(self) -> list[tuple[bytes, BaseException]]:
        self.inflight, self.current = self.current, Overlay()
        return await self.sealer.seal(self.inflight)

    def write(self) -> None:
        assert self.inflight is not None
        part = self.inflight.parts[PARTITION]
        batch = Batch()
        for key, touched in part.touched.items():
            if touched.encoded is None:
                batch.delete_state(key)
            else:
                batch.put_state(key, rows.pack(touched.seq, b"", touched.encoded))
        batch.frontier(rows.Frontier("ts", "th", "tg", part.next_offset, 0, 0, 0, 0, 0))
        self.store.write(batch)

    def journal(self) -> list[Any]:
        return [
            decode_journal(item.value)
            for overlay in (self.inflight, self.current)
            if overlay is not None and PARTITION in overlay.parts
            for item in overlay.parts[PARTITION].journal
        ]


def folded(entries: list[Any]) -> bytes | None:
    session = initial(TENANT, "s1")
    for e in entries:
        evolve(session, e.seq, e.time_ms, e.partition, e.offset, e.env, decode_event(e.env))
    return encode_snapshot(session) if session.seq else None


@pytest.mark.parametrize("written", [False, True])
async def test_a_session_is_rebuilt_from_disk_and_both_overlays(store: Store, written: bool) -> None:
    """Goal: exactly what was accepted so far, whether or not overlay k has reached the disk yet."""
    bench = Bench(store)
    bench.fold(event(1), event(2), None, event(3), event(4))
    await bench.begin_commit()
    bench.fold(event(5), event(6))
    entry = bench.sessions.cached(KEY)
    assert entry is not None
    before = encode_snapshot(entry.session)
    if written:
        bench.write()
    entry.session.head = "half changed"
    assert bench.sessions.rebuild(entry) is entry
    assert encode_snapshot(entry.session) == before == folded(bench.journal())


async def with_one_event(store: Store) -> tuple[Bench, list[Any]]:
    """A bench whose first event is committed, and its journal."""
    bench = Bench(store)
    bench.fold(event(1))
    assert await bench.begin_commit() == []
    bench.write()
    first = bench.journal()
    bench.inflight = None
    return bench, first


async def test_a_session_that_cannot_be_encoded_is_quarantined_at_the_seal(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: only that session is affected, and what is committed is still a fold of the journal."""
    bench, first = await with_one_event(store)
    real = seal.encode_snapshot

    def broken(session: Any) -> bytes:
        if session.status == "open" and session.seq == 3:
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    bench.fold(event(2), event(3), b"bad")
    ((key, error),) = await bench.begin_commit()
    assert key == KEY
    assert isinstance(error, InvariantViolation)
    assert bench.inflight is not None
    part = bench.inflight.parts[PARTITION]
    types = [e.env.type for e in bench.journal()]
    assert types == ["SessionQuarantined", "SessionEventParked", "SessionEventParked"]
    assert part.touched[KEY].encoded == folded([*first, *bench.journal()])
    assert {offset: r[0].code for offset, r in part.rulings.items()} == {  # type: ignore[union-attr]
        1: "quarantined",
        2: "quarantined",
        3: "bad_magic",
    }
    # Rejected with the producers' own bytes.
    assert [out.value for out in part.outputs] == [b"bad", event(2), event(3)]
    assert (part.next_offset, bench.inflight.records) == (4, 3)


@pytest.mark.parametrize("kept", [True, False], ids=["as it is", "control"])
async def test_a_quarantine_at_the_seal_of_a_partition_that_was_found_bad_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Goal: another task discards the partition's sessions between two slices of the seal (a flush on a full
    disk, a bad block): its commit goes on, and the events of a session that cannot be encoded are parked and
    not accepted once more by a second session of the same key. Method: discard them before the encoding
    fails; and where nothing is put back, as a control."""
    bench, first = await with_one_event(store)
    real = seal.encode_snapshot

    def broken(session: Any) -> bytes:
        if session.status == "open" and session.seq == 3:
            bench.sessions.cache.discard_partition(PARTITION)
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    bench.fold(event(2), event(3))
    if not kept:
        entry = bench.sessions.cached(KEY)
        monkeypatch.setattr(bench.sessions.cache, "peek", lambda _key: entry)
    await bench.begin_commit()
    assert bench.inflight is not None
    entries = bench.journal()
    seqs = [entry.seq for entry in (*first, *entries)]
    types = [entry.env.type for entry in entries]
    assert (types == ["SessionQuarantined", "SessionEventParked", "SessionEventParked"]) == kept
    assert (seqs == [1, 2, 3, 4]) == kept
    if kept:
        assert bench.inflight.parts[PARTITION].touched[KEY].encoded == folded([*first, *entries])


@pytest.mark.parametrize("bad", ["before", "deleted", "after"])
async def test_a_quarantine_at_the_seal_stops_at_no_deletion(
    store: Store, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """Goal: whichever side of a deletion the session that cannot be encoded is on, and whether or not it was
    there before, the worker goes on and what it writes is the fold of the journal."""
    bench = Bench(store)
    first: list[Any] = []
    if bad != "before":
        bench.fold(event(1))
        assert await bench.begin_commit() == []
        bench.write()
        first, bench.inflight = bench.journal(), None
    real = seal.encode_snapshot
    tries = 0

    def broken(session: Any) -> bytes:
        nonlocal tries
        tries += 1
        if session.status != "quarantined" and (bad != "deleted" or tries == 1):
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    values = {
        "before": [event(2), None, event(3), event(4)],
        "deleted": [event(2), None, event(3), None, event(4)],
        "after": [event(2), event(3), None, event(4), event(5)],
    }
    bench.fold(*values[bad])
    ((key, _),) = await bench.begin_commit()
    assert key == KEY
    assert bench.inflight is not None
    part = bench.inflight.parts[PARTITION]
    assert part.touched[KEY].encoded == folded([*first, *bench.journal()])
    bench.write()


async def test_what_cannot_be_encoded_even_in_quarantine_ends_the_worker(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(store)
    bench.fold(event(1))

    def broken(_session: Any) -> bytes:
        raise InvariantViolation("never")

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    with pytest.raises(InvariantViolation):
        await bench.begin_commit()
