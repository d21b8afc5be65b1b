"""The worker's watch over reducers: who is stopped, what is journalled, and what a fold of the journal makes
of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.test_plain import Lane, inbox_record
from engine.test_plain import View as LaneView
from engine.test_step import PARTITION, View, record
from engine.test_store import Bench
from engine.traffic import TENANT, message_event
from refold.core import Envelope, evolve, initial
from refold.core import reducers as pure
from refold.core.limits import REDUCED_PARTS_MAX
from refold.core.reducers import NAME_BYTES_MAX, Reducer, Registry, Unfit
from refold.core.rulings import Accepted
from refold.engine import reducers as watching
from refold.engine import seal
from refold.engine.commitmeta import CommitMeta
from refold.engine.reducers import SLOW_IN_A_ROW, SLOW_WALL_S, TWICE_EVERY, Guard
from refold.engine.step import Effects, step
from refold.engine.store import Memory, Store
from refold.errors import ConfigError, InvariantViolation
from refold.ops.refolding import Refolder
from refold.reducers.event import Event, viewer
from refold.wire.envelope import encode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot

Fold = Callable[[Any, Event], Any]

#: What brokers take (``offset.metadata.max.bytes``).
METADATA_BYTES_MAX = 4_096


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> Iterator[list[tuple[str, str]]]:
    before = pure.active
    yield []
    pure.install(before)


def install(
    told: list[tuple[str, str]],
    function: Fold,
    *,
    cpu: Clock | None = None,
    wall: Clock | None = None,
    types: tuple[str, ...] = ("Counted",),
) -> Registry:
    registry = Registry([Reducer("total", 1, frozenset(types), b"{}", function, {})], viewer({}))
    pure.install(registry)
    registry.guard = Guard(lambda *pair: told.append(pair), cpu or Clock(), wall or Clock())
    return registry


def total(state: Any, happened: Event) -> Any:
    state["sum"] = state.get("sum", 0) + happened.payload["n"]
    return state


def counted(number: int, session: str = "s1") -> bytes:
    payload = json.dumps({"n": number}).encode()
    env = Envelope(f"c{number}", TENANT, session, "Counted", event_time_ms=1, payload=payload)
    return encode_envelope(env)


def fold(view: View, count: int) -> list[Effects]:
    return [step(view, record(counted(number), number)) for number in range(1, count + 1)]


def agrees(view: View, effects: list[Effects]) -> bool:
    """Whether a fold of what was journalled, by a process that watches nothing, gives the same bytes."""
    refolder = Refolder()
    with watching.unwatched():
        for one in effects:
            for item in one.journal:
                refolder.feed(item.key, item.value)
    (entry,) = view.entries.values()
    return refolder.encoded(entry.key) == encode_snapshot(entry.session)


def types(effects: list[Effects]) -> list[str]:
    return [decode_journal(item.value).env.type for one in effects for item in one.journal]


def part_of(view: View) -> tuple[str, bytes, int, str | None]:
    (entry,) = view.entries.values()
    part = entry.session.reduced["total"]
    return part.status, part.state, part.seq, part.error


def test_what_goes_well_leaves_no_trace(told: list[tuple[str, str]]) -> None:
    install(told, total)
    view = View()
    effects = fold(view, 40)
    assert part_of(view) == ("ok", b'{"sum":820}', 40, None)
    assert set(types(effects)) == {"Counted"}
    assert agrees(view, effects)
    assert told == []


def test_a_raising_one_is_journalled_behind_its_event_with_the_part(told: list[tuple[str, str]]) -> None:
    def breaks(state: Any, happened: Event) -> Any:
        if happened.payload["n"] == 3:
            raise ValueError(happened.payload)
        return total(state, happened)

    install(told, breaks)
    view = View()
    effects = fold(view, 5)
    assert types(effects) == ["Counted"] * 3 + ["ReducerQuarantined"] + ["Counted"] * 2
    assert part_of(view) == ("quarantined", b'{"sum":3}', 6, "raised: ValueError")
    assert [one.ruling for one in effects][2] == Accepted(3, 1_800_000_000_003)
    note = effects[2].journal[1]
    assert list(note.headers) == [("refold-type", b"ReducerQuarantined")]
    assert b'{"n"' not in note.value
    assert told == [("total", "raised")]
    assert agrees(view, effects)


def test_code_that_would_not_raise_folds_the_journal_alike(
    told: list[tuple[str, str]],
) -> None:
    """Goal: a fixed reducer changes nothing that has been stored; a release does."""
    install(told, lambda s, e: total(s, e) if e.payload["n"] < 3 else e.payload["gone"])
    view = View()
    effects = fold(view, 4)
    install(told, total)
    assert agrees(view, effects)


@pytest.mark.parametrize("which", ["cpu", "wall"])
def test_three_slow_events_in_a_row_stop_it(told: list[tuple[str, str]], which: str) -> None:
    clock, slow = Clock(), {2, 5, 6, 9, 10, 11}

    def drags(state: Any, happened: Event) -> Any:
        if happened.payload["n"] in slow:
            clock.now += SLOW_WALL_S + 0.1
        return total(state, happened)

    install(told, drags, **{which: clock})
    view = View()
    effects = fold(view, 12)
    assert SLOW_IN_A_ROW == 3
    assert part_of(view) == ("quarantined", b'{"sum":55}', 13, "slow")
    assert types(effects)[11] == "ReducerQuarantined"
    assert agrees(view, effects)
    assert told == [("total", "slow")]


def test_one_that_answers_differently_is_found_by_the_sample(told: list[tuple[str, str]]) -> None:
    """Goal: within a few samples; what it had made up to then is journalled, so folds agree again."""
    numbers = itertools.count()

    def erratic(state: Any, happened: Event) -> Any:
        return {"id": next(numbers)}

    install(told, erratic)
    view = View()
    effects = fold(view, 8 * TWICE_EVERY)
    status, _, _, error = part_of(view)
    assert (status, error) == ("quarantined", "non_deterministic")
    assert told == [("total", "non_deterministic")]
    assert agrees(view, effects)


def test_one_that_changes_its_input_answers_the_same_twice(told: list[tuple[str, str]]) -> None:
    """Goal: each of the two gets a copy of its own."""

    def eats(state: Any, happened: Event) -> Any:
        payload = happened.payload
        state["sum"] = state.get("sum", 0) + payload.pop("n")
        return state

    install(told, eats)
    view = View()
    fold(view, 4 * TWICE_EVERY)
    assert part_of(view)[0] == "ok"


def test_the_sample_is_the_same_in_every_process(told: list[tuple[str, str]]) -> None:
    seen: list[int] = []

    def watched(state: Any, happened: Event) -> Any:
        seen.append(happened.seq)
        return state

    install(told, watched)
    fold(View(), 64)
    twice = [seq for seq in range(1, 65) if seen.count(seq) == 2]
    # crc32 of "acme/s1/<seq>": a change of the sample would judge a rolling fleet by two measures.
    assert twice == [2, 13, 24, 45]


def test_rebuilding_a_session_stops_nothing_anew(told: list[tuple[str, str]]) -> None:
    """Goal: a session made anew from what is journalled is judged by what is journalled."""
    wall = Clock()

    def drags(state: Any, happened: Event) -> Any:
        wall.now += SLOW_WALL_S + 0.1
        return total(state, happened)

    install(told, drags, wall=wall)
    view = View()
    effects = fold(view, 2)
    session = initial(TENANT, "s1")
    with watching.unwatched():
        for _ in range(2):
            session.clear()
            for one in effects:
                entry = decode_journal(one.journal[0].value)
                evolve(
                    session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env,
                    decode_event(entry.env),
                )  # fmt: skip
    assert session.reduced["total"].status == "ok"
    assert pure.active is not None
    assert pure.active.guard is not None


def test_messages_leave_the_fast_lane_only_where_a_reducer_wants_them(told: list[tuple[str, str]]) -> None:
    stamps = [{"producer_id": "p", "producer_epoch": 1, "producer_counter": number} for number in range(12)]
    records = [
        inbox_record(
            number, encode_envelope(message_event(number, "s1", **stamps[number])), 1_800_000_000_000
        )
        for number in range(1, 12)
    ]
    folded = {}
    for wanted in ("Counted", "MessageAppended"):
        install(told, lambda s, _e: {"messages": s.get("messages", 0) + 1}, types=(wanted,))
        lane = Lane(LaneView(), use=True)
        lane.fold(records)
        entry = lane.view.cache.peek(records[0].key or b"")
        assert entry is not None
        folded[wanted] = (lane.fast, entry.session.reduced["total"].state)
    assert folded == {"Counted": (10, b"{}"), "MessageAppended": (0, b'{"messages":11}')}


def test_a_guard_hears_nothing_of_an_unfit_step(told: list[tuple[str, str]]) -> None:
    guard = Guard(lambda *pair: told.append(pair), Clock(), Clock())

    def unfit() -> bytes:
        raise Unfit("raised", KeyError())

    with pytest.raises(Unfit, match="raised"):
        guard.run("acme/s1", 1, "total", unfit)
    assert guard.take() == []


# --- who may take a partition over -----------------------------------------------------------------------


def test_versions_travel_with_the_offset_of_batches_and_fit_into_it(told: list[tuple[str, str]]) -> None:
    install(told, total)
    assert watching.folded_with() == {"total": 1}
    many = {f"{number:02}" + "n" * (NAME_BYTES_MAX - 2): 2**31 - 1 for number in range(REDUCED_PARTS_MAX)}
    meta = CommitMeta("refold-" + "i" * 200, 2**50, 2**50, 2**50, 1, reducers=many)
    assert len(meta.encode()) < METADATA_BYTES_MAX
    assert CommitMeta.parse(meta.encode()) == meta
    assert "reducers" not in CommitMeta("p-a", 12, 3, 5, 1).encode()


def test_an_older_worker_does_not_take_over_what_a_newer_one_has_folded(told: list[tuple[str, str]]) -> None:
    install(told, total)
    watching.check_versions(3, {"total": 1}, ())
    with pytest.raises(ConfigError, match="version 2 of the reducer total; this worker has version 1"):
        watching.check_versions(3, {"total": 2}, ())
    pure.install(None)
    with pytest.raises(ConfigError, match="reducers_removed"):
        watching.check_versions(3, {"total": 1}, ())
    watching.check_versions(3, {"total": 1}, ("total",))
    watching.check_versions(3, {}, ())


# --- at the seal -------------------------------------------------------------------------------------------


async def test_a_note_about_a_part_goes_with_its_event_when_the_session_is_quarantined(
    told: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what the worker has noted itself is not parked as if somebody had sent it. Method: a session
    whose part stopped in the overlay in which it cannot be encoded."""
    install(told, lambda s, e: total(s, e) if e.payload["n"] < 3 else e.payload["gone"])
    store = Store(tmp_path / "p0", Memory())
    try:
        bench = Bench(store)
        bench.fold(counted(1))
        assert await bench.begin_commit() == []
        bench.write()
        first, bench.inflight = bench.journal(), None
        real = seal.encode_snapshot

        def broken(session: Any) -> bytes:
            if session.status == "open" and session.seq > 1:
                raise InvariantViolation("too large, or whatever")
            return real(session)

        monkeypatch.setattr(seal, "encode_snapshot", broken)
        bench.fold(counted(2), counted(3), counted(4))
        assert [entry.env.type for entry in bench.journal()].count("ReducerQuarantined") == 1
        ((_, error),) = await bench.begin_commit()
        assert isinstance(error, InvariantViolation)
        types = [entry.env.type for entry in bench.journal()]
        assert types == ["SessionQuarantined"] + ["SessionEventParked"] * 3
        assert bench.inflight is not None
        part = bench.inflight.parts[PARTITION]
        session = initial(TENANT, "s1")
        with watching.unwatched():
            for entry in [*first, *bench.journal()]:
                evolve(
                    session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env,
                    decode_event(entry.env),
                )  # fmt: skip
        (touched,) = part.touched.values()
        assert touched.encoded == encode_snapshot(session)
        assert session.reduced["total"].state == b'{"sum":1}'
        assert session.reduced["total"].status == "ok"
    finally:
        store.close()
