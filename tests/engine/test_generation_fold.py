"""Markers, the look at batches (rule G10) and the fold of batches, without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.generation_traffic import TENANT, Generated, event, started
from engine.test_step import KEY, PARTITION, View, code_of, record
from engine.test_store import Bench
from refold.core.envelope import Envelope
from refold.core.limits import ERROR_CODE_BYTES_MAX, GENERATION_NAME_BYTES_MAX
from refold.core.progress import Ack, Batch, Marker, Progress, advance
from refold.core.rulings import Accepted
from refold.engine import generations as generations_module
from refold.engine import seal
from refold.engine.assignment import Assignment
from refold.engine.generations import ACK_BYTES, ENTRY_BYTES, Generations
from refold.engine.overlay import Overlay
from refold.engine.plan import Written
from refold.engine.step import BatchesBehind, Effects, step
from refold.engine.store import Memory, Store
from refold.errors import InvariantViolation
from refold.topology.names import TopicNames
from refold.wire.batches import decode_item, decode_progress, encode_item, generation_key
from refold.wire.envelope import encode_envelope

TOPICS = TopicNames("t")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store(tmp_path / "p0", Memory())
    yield opened
    opened.close()


def take(view: View, env: Envelope | None, offset: int) -> Effects:
    return step(view, record(None if env is None else encode_envelope(env), offset))


def said(effects: Effects) -> list[tuple[str, str, int, str]]:
    """(generation, kind, attempt, state) of the markers, in order."""
    found = []
    for out in effects.outputs:
        if out.topic == TOPICS.batches:
            assert (out.partition, out.key, out.session) == (PARTITION, KEY, KEY)
            item = decode_item(out.value)
            assert isinstance(item, Marker)
            found.append((item.generation, item.kind, item.attempt, item.state))
    return found


def test_each_event_says_among_the_batches_what_it_decided() -> None:
    view, one = View(), Generated("s1", "g1")
    first = take(view, started("s1", 1, "g1"), 0)
    assert said(first) == [("g1", "begin", 1, "")]
    marker = decode_item(first.outputs[0].value)
    assert isinstance(marker, Marker)
    assert (marker.holder, marker.lease_ms, marker.message_id, marker.journal_seq) == (
        "h1",
        60_000,
        "m-g1",
        1,
    )
    again = take(view, one.attempted(2, "continue"), 1)
    assert said(again) == [("g1", "begin", 2, "")]
    assert said(take(view, one.stop(3), 2)) == [("g1", "stop", 2, "")]
    one.attempt = 2
    assert said(take(view, one.failed(4), 3)) == [("g1", "end", 2, "failed")]
    assert said(take(view, started("s1", 1, "g1"), 4)) == [], "a duplicate says nothing"


def test_the_code_of_a_failure_is_cut_as_in_the_row() -> None:
    """Goal: what a producer puts there cannot make a marker that the topic does not take."""
    view = View()
    take(view, started("s1", 1, "g1"), 0)
    fields = {"generation_id": "g1", "attempt": 1, "code": "x" * 500_000, "error": None, "retryable": False}
    (out,) = take(view, event("GenerationFailed", "s1", 2, fields), 1).outputs
    marker = decode_item(out.value)
    assert isinstance(marker, Marker)
    assert (
        marker.error == view.entries[KEY].session.generations["g1"].error_code == "x" * ERROR_CODE_BYTES_MAX
    )


def test_a_deleted_session_ends_what_is_open_and_forgets_everything() -> None:
    view = View()
    for number in range(3):
        take(view, started("s1", number, f"g{number}"), number)
    take(view, Generated("s1", "g0").failed(9), 3)
    assert said(take(view, None, 4)) == [
        ("g1", "end", 1, "failed"),
        ("g2", "end", 1, "failed"),
        ("g0", "forget", 1, ""),
        ("g1", "forget", 1, ""),
        ("g2", "forget", 1, ""),
    ]


def test_a_row_that_makes_room_is_forgotten() -> None:
    """Goal: G12, the session keeps 8 that have ended. Method: nine of them."""
    view, marks = View(), []
    for number in range(9):
        take(view, started("s1", 2 * number, f"g{number}"), 2 * number)
        marks = said(take(view, Generated("s1", f"g{number}").failed(2 * number + 1), 2 * number + 1))
    assert marks == [("g8", "end", 1, "failed"), ("g0", "forget", 1, "")]


def progress_of(one: Generated, *items: Batch) -> Progress:
    # Not from before the session was made, whenever that is.
    progress, _ = advance(None, Marker(one.generation, "begin", 1, time_ms=1 << 50), 0, 0)
    for offset, item in enumerate(items, 1):
        progress, _ = advance(progress, item, offset, 0)
    assert progress is not None
    return progress


def test_a_finish_that_is_ahead_of_its_batches_changes_nothing_yet() -> None:
    """Goal: G10. Method: step it with batches behind, then read to the end in both ways."""
    view, one = View(), Generated("s1", "g1")
    take(view, started("s1", 1, "g1"), 0)
    batches = [one.next_batch(b"a"), one.next_batch(b"b")]
    view.read["g1"] = progress_of(one, batches[0])
    seq = view.entries[KEY].session.seq
    with pytest.raises(BatchesBehind):
        take(view, one.finished(2), 1)
    assert view.entries[KEY].session.seq == seq
    view.to_the_end = True
    refused = take(view, one.finished(2), 1)
    assert code_of(refused) == "batches_missing"
    assert said(refused) == []
    view.read["g1"] = progress_of(one, *batches)
    accepted = take(view, one.finished(3), 2)
    assert isinstance(accepted.ruling, Accepted)
    assert said(accepted) == [("g1", "end", 1, "finished")]


async def test_what_a_quarantine_takes_back_is_not_said(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: markers go with their event. Method: a session that cannot be encoded at the seal; another one
    on the same partition keeps its own."""
    bench = Bench(store)
    real = seal.encode_snapshot

    def broken(session: Any) -> bytes:
        if session.status == "open":
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    bench.fold(encode_envelope(started("s1", 1, "g1")))
    assert bench.inflight is None
    assert len(bench.current.parts[PARTITION].outputs) == 1
    ((key, _),) = await bench.begin_commit()
    assert key == KEY
    assert bench.inflight is not None
    outputs = bench.inflight.parts[PARTITION].outputs
    assert [out.topic for out in outputs] == [TOPICS.rejected]


async def test_what_was_said_before_a_deletion_stands_whatever_becomes_of_the_session_after_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the begin of a generation that a deletion ended, and its end, belong to events that stay in the
    journal when the session made anew in the same overlay is quarantined; the new begin does not."""
    bench = Bench(store)
    real = seal.encode_snapshot

    def broken(session: Any) -> bytes:
        if session.status == "open":
            raise InvariantViolation("too large, or whatever")
        return real(session)

    monkeypatch.setattr(seal, "encode_snapshot", broken)
    bench.fold(encode_envelope(started("s1", 1, "g1")), None, encode_envelope(started("s1", 2, "g2")))
    ((key, _),) = await bench.begin_commit()
    assert key == KEY
    assert bench.inflight is not None
    part = bench.inflight.parts[PARTITION]
    markers = [decode_item(out.value) for out in part.outputs if out.topic == TOPICS.batches]
    assert [(m.generation, m.kind) for m in markers if isinstance(m, Marker)] == [
        ("g1", "begin"),
        ("g1", "end"),
        ("g1", "forget"),
    ]
    assert [out.topic for out in part.outputs if out.topic != TOPICS.batches] == [TOPICS.rejected]
    assert [entry.env.type for entry in bench.journal()] == [
        "GenerationStarted",
        "SessionDeleted",
        "SessionQuarantined",
        "SessionEventParked",
    ]
    assert (part.touched[KEY].deleted, part.touched[KEY].seq) == (True, 2)


# --- the fold of batches -----------------------------------------------------------------------------------


class FakeMessage:
    def __init__(self, value: bytes | None, offset: int, key: bytes | None = KEY) -> None:
        self._value, self._offset, self._key = value, offset, key

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return PARTITION

    def timestamp(self) -> tuple[int, int]:
        return (2, 1_000 + self._offset)

    def headers(self) -> None:
        return None


class Folding:
    """Generations over a real store; ``commit`` writes what a commit writes."""

    def __init__(self, store: Store, bytes_max: int = 1_000_000) -> None:
        self.store = store
        assignment = Assignment()
        assignment.add(PARTITION, 1).written = Written(store, "ts", "th", "tg", 0, 0, 0)
        self.generations = Generations(TOPICS, assignment, bytes_max)
        self.overlay = Overlay()
        self.offset = 0

    def fold(self, *values: Any, key: bytes | None = KEY) -> None:
        part = self.overlay.part(PARTITION, 1, 0, self.offset)
        for value in values:
            raw = value if isinstance(value, bytes | None) else encode_item(value)
            self.generations.fold(View(), self.overlay, part, FakeMessage(raw, self.offset, key))
            self.offset += 1
        assert part.batches_next == self.offset

    def commit(self) -> dict[bytes, bytes | None]:
        part = self.overlay.parts[PARTITION]
        for row in part.side.values():
            row.seal()
        written = {key: row.encoded for key, row in part.side.items()}
        from refold.engine.store import Batch as Writes

        batch = Writes()
        for key, record_ in written.items():
            if record_ is None:
                batch.delete_side(key)
            else:
                batch.put_side(key, record_)
        self.store.write(batch)
        for row in part.side.values():
            row.confirm()
        self.overlay = Overlay()
        return written


def begin(generation: str = "g1", attempt: int = 1) -> Marker:
    return Marker(generation, "begin", attempt, time_ms=5)


def test_one_record_per_touched_generation_and_commit(store: Store) -> None:
    folding, one = Folding(store), Generated("s1", "g1")
    folding.fold(begin(), *(one.next_batch(b"x") for _ in range(20)), Ack("g1", 1, "phone", 3))
    written = folding.commit()
    (record_,) = written.values()
    assert list(written) == [generation_key(KEY, "g1")]
    assert record_ is not None
    progress = decode_progress(record_)
    assert (progress.produced, progress.length, progress.acks) == (20, 20, {"phone": (3, 1_021)})


def test_an_abort_forgets_what_was_folded_on_top(store: Store) -> None:
    """Goal: rule A. Method: fold, commit, fold more, discard; the next look is what is on disk."""
    folding, one = Folding(store), Generated("s1", "g1")
    folding.fold(begin(), one.next_batch(b"a"))
    folding.commit()
    folding.fold(one.next_batch(b"b"))
    progress = folding.generations.progress(KEY, PARTITION, "g1")
    assert progress is not None
    assert progress.produced == 2
    for _, row in folding.overlay.side_rows():
        row.discard()
    progress = folding.generations.progress(KEY, PARTITION, "g1")
    assert progress is not None
    assert progress.produced == 1


def test_what_cannot_be_taken_is_rejected_with_its_origin_and_the_rest_counted(store: Store) -> None:
    folding, one = Folding(store), Generated("s1", "g1")
    folding.fold(begin(), one.next_batch(b"a"))
    folding.fold(b"", b"abc", None, Batch("nobody", 1, 1), Batch("g1", 1, 9), Batch("a#b", 1, 1))
    folding.fold(begin(), key=None)
    folding.fold(begin(), Batch("g1", 1, 1), Marker("g9", "end", 1, state="failed"), Marker("g1", "odd", 1))
    overlay = folding.overlay
    assert overlay.refused == {
        "empty_value": 2,
        "bad_magic": 1,
        "unknown_generation": 1,
        "batch_gap": 1,
        "bad_id": 1,
        "bad_key": 1,
    }
    assert overlay.ignored == {"repeat": 2, "late": 1, "marker": 1}
    origins = {dict(out.headers)["refold-origin"] for out in overlay.parts[PARTITION].outputs}
    assert origins == {b"t.batches/%d/%d" % (PARTITION, offset) for offset in range(2, 9)}


def test_p_a_batch_on_the_wrong_partition_is_forwarded_and_not_folded(store: Store) -> None:
    folding = Folding(store)
    elsewhere = next(
        key
        for key in (f"{TENANT}/x{number}".encode() for number in range(50))
        if View().partition_of(key) != PARTITION
    )
    folding.fold(begin(), key=elsewhere)
    part = folding.overlay.parts[PARTITION]
    (out,) = part.outputs
    assert (out.topic, out.partition, out.key) == (TOPICS.batches, View().partition_of(elsewhere), elsewhere)
    assert dict(out.headers)["refold-origin"] == b"t.batches/%d/0" % PARTITION
    assert part.side == {}


def test_a_decoder_s_own_fault_is_one_record_s_ruling(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding(store)

    def overflow(*_: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    with monkeypatch.context() as broken:
        broken.setattr(generations_module, "decode_item", overflow)
        folding.fold(begin())
    assert folding.overlay.refused == {"undecodable": 1}
    folding.fold(begin())
    assert folding.overlay.refused == {"undecodable": 1}, "the next one is read as ever"


def test_an_id_that_no_session_can_have_is_refused_and_not_remembered(store: Store) -> None:
    """Goal: the cache counts 2 kB for an entry; ids of a megabyte must not be in it."""
    folding = Folding(store)
    longest = "g" * GENERATION_NAME_BYTES_MAX
    folding.fold(begin(longest), begin(longest + "g"), Batch("é" * 65, 1, 1), Ack("x" * 1_000_000, 1, "c", 0))
    assert folding.overlay.refused == {"bad_id": 3}
    assert list(folding.overlay.parts[PARTITION].side) == [generation_key(KEY, longest)]
    assert len(folding.generations) == 1


def test_while_all_is_unconfirmed_the_entries_are_not_walked_for_each_new_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: many generations at once cost a look each, not a walk over all of them each."""
    folding = Folding(store, 80 * ENTRY_BYTES)
    walks = 0
    real = folding.generations._evict

    def counted(spared: Any) -> None:
        nonlocal walks
        walks += 1
        real(spared)

    monkeypatch.setattr(folding.generations, "_evict", counted)
    folding.fold(*(begin(f"g{number}") for number in range(400)))
    assert (len(folding.generations), walks) == (400, 30)
    folding.commit()
    folding.fold(begin("one-more"))
    assert folding.generations.bytes <= 80 * ENTRY_BYTES


def test_forgetting_is_a_tombstone(store: Store) -> None:
    folding = Folding(store)
    folding.fold(begin(), Batch("g1", 1, 1))
    folding.commit()
    folding.fold(Marker("g1", "forget", 1), Batch("g1", 1, 2))
    assert folding.overlay.refused == {"unknown_generation": 1}
    assert folding.commit() == {generation_key(KEY, "g1"): None}
    assert store.side(generation_key(KEY, "g1")) is None
    folding.fold(Marker("g1", "forget", 1))
    assert folding.commit() == {}


def test_the_cache_is_bounded_and_keeps_what_is_unconfirmed(store: Store) -> None:
    room = 10 * ENTRY_BYTES
    folding = Folding(store, room)
    folding.fold(*(begin(f"g{number}") for number in range(40)))
    # Nothing of it is on disk yet: none may go.
    assert len(folding.generations) == 40
    folding.commit()
    for number in range(40, 60):
        folding.fold(begin(f"g{number}"))
        folding.commit()
    assert folding.generations.bytes <= room + ENTRY_BYTES + ACK_BYTES
    progress = folding.generations.progress(KEY, PARTITION, "g0")
    assert progress is not None
    assert progress.attempt == 1
