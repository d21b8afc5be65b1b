"""Side rows: their keys, and that they move with the overlay they are in, or not at all."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.engine import rows, seal
from refold.engine.overlay import Overlay, PartitionOverlay
from refold.engine.side import TIMER, USAGE, kind_of, side_key, split_side_key
from refold.engine.store import Batch, Memory, Store
from refold.errors import InvalidRecord, InvariantViolation
from refold.wire.batches import generation_key

from .test_store import PARTITION, Bench, event


@pytest.mark.parametrize(
    "parts",
    [(b"acme", b"user-1", b"gpt-4o"), (b"a/b", b"#%", " é\n".encode()), (b"", b"x"), (b"%41", b"a%")],
)
def test_keys_are_read_back_and_never_a_generations(parts: tuple[bytes, ...]) -> None:
    key = side_key(USAGE, *parts)
    assert b"/" not in key
    assert split_side_key(key) == (USAGE, list(parts))
    assert kind_of(key) == "usage"


def test_two_rows_never_have_one_key() -> None:
    """Goal: what a part holds cannot make it another part's end."""
    made = {side_key(TIMER, *parts) for parts in [(b"a#b",), (b"a", b"b"), (b"a%23b",), (b"a", b"", b"b")]}
    assert len(made) == 4


@pytest.mark.parametrize("key", [b"t/s#g", b"usage", b"#a", b"a#%4", b"a#%zz", b"a#%41", b"a# "])
def test_what_a_worker_does_not_make_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidRecord):
        split_side_key(key)


def test_generations_keep_their_keys() -> None:
    assert kind_of(generation_key(b"t/s", "g-1")) == "generation"


class Counted:
    """How many events of the inbox were accepted, by their offsets: what a usage row is, without the
    usage."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.encoded: bytes | None = None
        self.calls: list[str] = []

    def take_back(self, offsets: Container[int]) -> None:
        assert self.encoded is None, "sessions are sealed first"
        self.offsets = [offset for offset in self.offsets if offset not in offsets]

    def seal(self) -> None:
        self.encoded = b",".join(b"%d" % offset for offset in self.offsets) or None

    def confirm(self) -> None:
        self.calls.append("confirm")

    def discard(self) -> None:
        self.calls.append("discard")


class Count:
    def into(self, overlay: Overlay, part: PartitionOverlay, offset: int) -> None:
        key = side_key(USAGE, b"acme", b"u", b"m")
        row = part.side.get(key)
        if row is None:
            row = part.side[key] = Counted()
            overlay.bytes += 100
        assert isinstance(row, Counted)
        row.offsets.append(offset)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "p0", Memory())
    yield opened
    opened.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every accepted event counts."""
    from refold.engine import step as stepping

    real: Any = stepping._accept

    def accept(*given: Any) -> Any:
        effects = real(*given)
        if effects.journal:
            effects.side = (Count(),)
        return effects

    monkeypatch.setattr(stepping, "_accept", accept)


@pytest.mark.usefixtures("counted")
async def test_a_row_is_what_was_accepted(store: Store) -> None:
    bench = Bench(store)
    bench.fold(event(1), b"bad", event(1), event(2))
    assert await bench.begin_commit() == []
    assert bench.inflight is not None
    (row,) = bench.inflight.parts[PARTITION].side.values()
    assert row.encoded == b"0,3"


@pytest.mark.usefixtures("counted")
async def test_what_is_taken_back_at_the_seal_is_in_no_row(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a row that follows from accepted events stays a function of the journal when a session cannot be
    encoded; what stands from before its deletion is kept. Method: of four events the two after the deletion
    are taken back."""
    bench = Bench(store)
    real = seal.encode_snapshot

    def broken(session: Any) -> bytes:
        if session.status == "open":
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    bench.fold(event(1), None, event(2), event(3))
    assert len(await bench.begin_commit()) == 1
    assert bench.inflight is not None
    part = bench.inflight.parts[PARTITION]
    (row,) = part.side.values()
    assert row.encoded == b"0,1"
    accepted = [e.offset for e in bench.journal() if e.env.type in ("MessageAppended", "SessionDeleted")]
    assert accepted == [0, 1]


def test_a_range_of_rows_is_read_in_the_order_of_keys(store: Store) -> None:
    """Goal: timers and usage rows lie apart from generations, in the order of their keys."""
    batch = Batch()
    names = [side_key(TIMER, b"%013d" % at, b"t/s") for at in (30, 10, 20)]
    for key in (*names, side_key(USAGE, b"a"), generation_key(b"t/s", "g"), generation_key(b"u/s", "g")):
        batch.put_side(key, key)
    batch.put_state(b"timer#/x", rows.pack(1, b"", b"s"))
    store.write(batch)
    first, end = side_key(TIMER, b""), side_key(TIMER, b"%013d" % 30)
    assert store.side_range(first, end, 10) == [(key, key) for key in sorted(names)[:2]]
    assert store.side_range(first, b"timer$", 2) == [(key, key) for key in sorted(names)[:2]]
    assert store.side_range(b"v", b"w", 2) == []
