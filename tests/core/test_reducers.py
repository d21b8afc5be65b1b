"""X: parts of the session that the application's own reducers fold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from refold.core import Accepted, Rejected, evolve, fold, initial
from refold.core import reducers as pure
from refold.core.limits import REDUCED_BYTES_MAX, REDUCED_PARTS_MAX, REDUCED_ROW_BYTES
from refold.core.policystate import Reduced
from refold.core.reduced import comparable
from refold.core.reducers import STATE_BYTES_MAX, STATES_BYTES_MAX, Reducer, Registry, Unfit, encode_state
from refold.core.session import Session
from refold.reducers.event import Event, viewer
from refold.wire.snapshot import decode_session, decode_snapshot, encode_snapshot

from .build import SESSION, TENANT, Inbox, event, message

Fold = Callable[[Any, Event], Any]


def total(state: Any, happened: Event) -> Any:
    state["sum"] = state.get("sum", 0) + happened.payload["n"]
    return state


def made(
    function: Fold = total,
    name: str = "total",
    version: int = 1,
    types: tuple[str, ...] = ("Counted",),
    start: bytes = b"{}",
    upcast: Mapping[int, Callable[[Any], Any]] | None = None,
) -> Reducer:
    return Reducer(name, version, frozenset(types), start, function, upcast or {})


@pytest.fixture(autouse=True)
def nothing_installed() -> Iterator[None]:
    before = pure.active
    pure.install(None)
    yield
    pure.install(before)


def install(*reducers: Reducer) -> Registry:
    registry = Registry(reducers, viewer({}))
    pure.install(registry)
    return registry


def counted(inbox: Inbox, payload: Any = None, kind: str = "Counted", raw: bytes | None = None) -> Accepted:
    body = json.dumps({"n": 1} if payload is None else payload).encode() if raw is None else raw
    ruling = inbox.send((kind, {}), payload=body)
    assert isinstance(ruling, Accepted), ruling
    return ruling


def row(inbox: Inbox, name: str = "total") -> tuple[str, bytes, int, int, str | None]:
    part = inbox.session.reduced[name]
    return part.status, part.state, part.version, part.seq, part.error


def folded(inbox: Inbox) -> Session:
    return fold(initial(TENANT, SESSION), inbox.entries())


def test_x1_a_part_begins_with_its_session_and_folds_its_types() -> None:
    install(made(), made(lambda s, e: {**s, "last": e.payload["role"]}, "roles", types=("MessageAppended",)))
    inbox = Inbox().ok(message("u1"))
    assert row(inbox) == ("ok", b"{}", 1, 0, None)
    assert row(inbox, "roles") == ("ok", b'{"last":"user"}', 1, 1, None)
    counted(inbox, {"n": 3})
    counted(inbox, {"n": 4})
    counted(inbox, {"n": 9}, kind="Other")
    assert row(inbox) == ("ok", b'{"sum":7}', 1, 3, None)
    assert encode_snapshot(folded(inbox)) == encode_snapshot(inbox.session)
    shown = decode_snapshot(encode_snapshot(inbox.session))["reduced"]
    assert [part["name"] for part in shown] == ["roles", "total"]
    assert shown[1]["state"] == b'{"sum":7}'


def test_x1_state_is_canonical_and_shared_with_nobody() -> None:
    """Goal: what a reducer keeps of its values changes nothing later, and equal states have equal bytes."""
    kept: list[Any] = []

    def keeps(state: Any, happened: Event) -> Any:
        for old in kept:
            old["sum"] = "changed behind the fold's back"
        state["b"], state["a"] = happened.payload["n"], "é"
        kept.append(state)
        return state

    install(made(keeps))
    inbox = Inbox()
    counted(inbox, {"n": 1.5})
    counted(inbox, {"n": 2})
    assert row(inbox)[1] == '{"a":"é","b":2}'.encode()


def test_x1_what_a_later_version_of_refold_has_written_is_no_reducers() -> None:
    install(made(lambda s, _e: {"n": s.get("n", 0) + 1}, types=("MessageAppended", "Counted")))
    inbox = Inbox()
    inbox.send(("MessageAppended", {}), payload=b"\x00 of the future", type_version=2)
    inbox.send(("Counted", {}), payload=b"{}", type_version=2)
    assert row(inbox) == ("ok", b'{"n":1}', 1, 2, None)


def test_x1_without_reducers_nothing_is_kept_and_none_is_asked_for() -> None:
    inbox = Inbox()
    counted(inbox)
    assert (inbox.session.reduced, pure.active, pure.takes_messages) == ({}, None, False)
    install()
    assert pure.active is None
    install(made(types=("MessageAppended", "Counted")))
    assert pure.takes_messages


class Panic(BaseException):
    """What extensions written in Rust raise where they meet a bug of theirs: no Exception."""


class Broken(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("changed while it was looked at")


def panics(_state: Any, _event: Event) -> Any:
    raise Panic


BAD: dict[str, tuple[Fold, str]] = {
    "panics": (panics, "raised: Panic"),
    "a dict of its own kind": (lambda _s, _e: Broken(a=1), "raised: RuntimeError"),
    "raises": (lambda _s, e: e.payload["gone"], "raised: KeyError"),
    "exits": (lambda _s, _e: exit(3), "raised: SystemExit"),
    "forgets its return": (lambda _s, _e: None, "no_state"),
    "is no JSON": (lambda _s, _e: {"when": object()}, "not_json: TypeError"),
    "a set": (lambda _s, _e: {"names": {"a"}}, "not_json: TypeError"),
    "not a number": (lambda _s, _e: {"x": float("nan")}, "not_json: ValueError"),
    "a key that is no text": (lambda _s, _e: {"by": {1: "a"}}, "not_json: TypeError"),
    "half a pair": (lambda _s, _e: {"x": "\ud800"}, "not_json: UnicodeEncodeError"),
    "too large": (lambda _s, _e: {"x": "y" * STATE_BYTES_MAX}, "too_large"),
    "too deep": (lambda _s, _e: json.loads("[" * 200 + "]" * 200), "not_json: ValueError"),
    "unreadable payload": (lambda _s, e: {"raw": e.payload}, "raised: InvalidRecord"),
}


@pytest.mark.parametrize("what", BAD)
def test_x2_what_is_no_state_quarantines_its_part_alone(what: str) -> None:
    function, error = BAD[what]
    install(made(), made(function, "bad"))
    inbox = Inbox().ok(message("u1"))
    if what == "unreadable payload":
        install(made(lambda s, _e: {"sum": s.get("sum", 0) + 1}), made(function, "bad"))
        counted(inbox, raw=b"\x00 no JSON")
        counted(inbox, raw=b"\x00 no JSON")
    else:
        counted(inbox)
        counted(inbox)
    assert row(inbox) == ("ok", b'{"sum":2}', 1, 3, None)
    assert row(inbox, "bad") == ("quarantined", b"{}", 1, 3, error)
    inbox.ok(message("u2"))
    assert inbox.session.status == "open"
    assert encode_snapshot(decode_session(encode_snapshot(inbox.session))) == encode_snapshot(inbox.session)


def test_x2_no_number_of_large_parts_exceeds_the_limit() -> None:
    """Goal: the sum of all parts stays below its bound, rows of quarantined ones included."""
    names = [f"{number:02}" + "n" * 126 for number in range(REDUCED_PARTS_MAX)]
    install(*(made(lambda _s, _e: {"x": "y" * (STATE_BYTES_MAX - 20)}, name) for name in names))
    inbox = Inbox()
    counted(inbox)
    counted(inbox)
    parts = inbox.session.reduced.values()
    assert {part.status for part in parts} == {"ok", "quarantined"}
    assert pure.states_bytes(inbox.session) <= STATES_BYTES_MAX
    assert (
        sum(len(part.state) + len(part.name) + len(part.error or "") + REDUCED_ROW_BYTES for part in parts)
        <= REDUCED_BYTES_MAX
    )
    inbox.ok(message("u1"))


def test_x4_an_older_part_is_upcast_when_an_event_of_its_types_comes() -> None:
    install(made())
    inbox = Inbox()
    counted(inbox, {"n": 5})
    seen: list[Any] = []

    def newer(state: Any, happened: Event) -> Any:
        seen.append(dict(state))
        return {"total": state["total"] + happened.payload["n"], "unit": state["unit"]}

    install(
        made(
            newer,
            version=3,
            start=b'{"total":0,"unit":"EUR"}',
            upcast={1: lambda s: {"total": s["sum"]}, 2: lambda s: {**s, "unit": "EUR"}},
        )
    )
    inbox.ok(message("u1"))
    assert row(inbox) == ("ok", b'{"sum":5}', 1, 1, None)
    counted(inbox, {"n": 2})
    assert seen == [{"total": 5, "unit": "EUR"}]
    assert row(inbox) == ("ok", b'{"total":7,"unit":"EUR"}', 3, 3, None)
    assert encode_snapshot(folded(inbox)) == encode_snapshot(inbox.session)


def test_x4_a_part_that_cannot_go_on_stands_still() -> None:
    """Goal: no way up, a way up that raises, a newer part: the state is never touched."""
    cases: list[tuple[int, Mapping[int, Any], str]] = [
        (3, {1: lambda s: s}, "no_upcast"),
        (2, {1: lambda s: s["gone"]}, "no_upcast: KeyError"),
        (2, {1: lambda s: panics(s, None)}, "no_upcast: Panic"),  # type: ignore[arg-type]
    ]
    for version, upcast, error in cases:
        install(made())
        inbox = Inbox()
        counted(inbox, {"n": 5})
        install(made(version=version, upcast=upcast))
        counted(inbox)
        assert row(inbox) == ("quarantined", b'{"sum":5}', 1, 2, error)
    install(made(version=2))
    inbox = Inbox()
    counted(inbox, {"n": 5})
    install(made())
    counted(inbox)
    assert row(inbox) == ("quarantined", b'{"sum":5}', 2, 2, "newer")


def test_x4_a_reducer_that_came_after_the_session_is_late() -> None:
    inbox = Inbox()
    counted(inbox)
    install(made())
    inbox.ok(message("u1"))
    assert inbox.session.reduced == {}
    counted(inbox)
    assert row(inbox) == ("quarantined", b"null", 1, 3, "late")


def test_x4_where_there_is_no_room_a_part_without_a_reducer_goes() -> None:
    inbox = Inbox()
    for number in range(REDUCED_PARTS_MAX):
        inbox.session.reduced[f"old{number:02}"] = Reduced(f"old{number:02}", 1, 0, b"{}")
    counted(inbox)
    inbox.session.reduced.pop("total", None)
    install(made(), made(name="old00", types=("Never",)))
    counted(inbox)
    assert len(inbox.session.reduced) == REDUCED_PARTS_MAX
    assert "old00" in inbox.session.reduced
    assert "old01" not in inbox.session.reduced


def test_deletion_forgets_the_parts_and_the_next_incarnation_begins_anew() -> None:
    install(made(types=("Counted", "SessionDeleted")))
    inbox = Inbox()
    counted(inbox)
    inbox.check = False
    inbox.ok(event("SessionDeleted"))
    assert inbox.session.reduced == {}
    counted(inbox, {"n": 9})
    assert row(inbox) == ("ok", b'{"sum":9}', 1, 1, None)


# --- X5: what the journal says -----------------------------------------------------------------------------


def release(at_seq: int, state: bytes = b'{"sum":40}', version: int = 1, name: str = "total") -> Any:
    return event("ReducerReleased", name=name, version=version, at_seq=at_seq, state=state)


def test_x5_a_release_replaces_the_part_and_any_process_folds_it_so() -> None:
    install(made(lambda _s, e: {"sum": e.payload["n"] / 0}))
    inbox = Inbox()
    counted(inbox)
    install(made())
    counted(inbox)
    assert row(inbox)[:4] == ("quarantined", b"{}", 1, 2)
    inbox.ok(release(2, b'{"sum":2}'))
    assert row(inbox) == ("ok", b'{"sum":2}', 1, 2, None)
    counted(inbox)
    assert row(inbox) == ("ok", b'{"sum":3}', 1, 4, None)
    # From a journal without the part's quarantine, with the code that is right now: the same bytes.
    assert encode_snapshot(folded(inbox)) == encode_snapshot(inbox.session)


PLACE = {"partition": 0, "offset": 0}

REFUSED: dict[str, tuple[Any, str]] = {
    "events have come since": (release(1), "expected_seq"),
    "the future": (release(9), "expected_seq"),
    "another version": (release(2, version=2), "bad_value"),
    "no version": (release(2, version=0), "bad_value"),
    "a reducer nobody has": (release(2, name="gone"), "bad_value"),
    "no name": (release(2, name=""), "bad_id"),
    "a long name": (release(2, name="n" * 129), "bad_id"),
    "not canonical": (release(2, b'{"sum": 1}'), "bad_value"),
    "null": (release(2, b"null"), "bad_value"),
    "a number longer than Python reads": (release(2, b"1" * 5_000), "bad_value"),
    "not JSON": (release(2, b"{"), "bad_value"),
    "not UTF-8": (release(2, b'"\xff"'), "bad_value"),
    "too large": (release(2, b'"' + b"x" * STATE_BYTES_MAX + b'"'), "too_large"),
    "the worker's": (
        event(
            "ReducerQuarantined",
            name="total",
            version=1,
            at_seq=2,
            error="",
            state=b"{}",
            partition=0,
            offset=0,
        ),
        "reserved_type",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_x5_a_release_that_does_not_fit_is_refused(what: str) -> None:
    install(made())
    inbox = Inbox()
    counted(inbox)
    counted(inbox)
    item, code = REFUSED[what]
    ruling = inbox.send(item)
    assert isinstance(ruling, Rejected)
    assert ruling.code == code
    assert row(inbox) == ("ok", b'{"sum":2}', 1, 2, None)


def test_x5_a_part_that_is_not_there_hears_of_no_event_so_none_may_have_come_since() -> None:
    """Goal: workers are changed one by one. One without the reducer may have folded an event of its types
    after the journal was folded for the release, and left no trace of it."""
    inbox = Inbox()
    counted(inbox)
    counted(inbox)
    install(made())
    ruling = inbox.send(release(1))
    assert isinstance(ruling, Rejected)
    assert ruling.code == "expected_seq"
    assert "total" not in inbox.session.reduced
    inbox.ok(release(2, b'{"sum":2}'))
    counted(inbox)
    assert row(inbox) == ("ok", b'{"sum":3}', 1, 4, None)


def test_x5_a_session_that_is_not_there_is_not_begun_by_a_release() -> None:
    install(made())
    ruling = Inbox().send(release(0))
    assert isinstance(ruling, Rejected)
    assert ruling.code == "no_session"


def test_x5_a_closed_session_takes_a_release() -> None:
    install(made())
    inbox = Inbox()
    counted(inbox)
    inbox.ok(event("SessionClosed"), release(1))
    assert row(inbox) == ("ok", b'{"sum":40}', 1, 1, None)


class Suspicious:
    """A guard that finds what it is told to."""

    def __init__(self, error: str) -> None:
        self.error = error
        self.found: list[str] = []

    def run(self, key: str, seq: int, name: str, step: Callable[[], bytes]) -> bytes:
        step()
        raise Unfit(self.error)

    def quarantined(self, part: Reduced) -> None:
        self.found.append(part.name)


def test_x3_x5_what_a_guard_finds_is_folded_alike_by_who_has_no_guard() -> None:
    """Goal: a worker's verdict on time is in the journal with the whole part; a replay that was quick enough,
    or has other code, comes to the same bytes."""
    from refold.core.reducerevents import ReducerQuarantined

    registry = install(made())
    inbox = Inbox()
    counted(inbox, {"n": 5})
    guard = registry.guard = Suspicious("slow")
    counted(inbox, {"n": 6})
    assert guard.found == ["total"]
    part = inbox.session.reduced["total"]
    assert row(inbox) == ("quarantined", b'{"sum":5}', 1, 2, "slow")
    # The worker journals the part behind the event; here its event is folded into a replay by hand.
    replay = initial(TENANT, SESSION)
    registry.guard = None
    fold(replay, inbox.entries())
    assert replay.reduced["total"].state == b'{"sum":11}'
    note = ReducerQuarantined("total", 1, part.seq, part.state, "slow")
    for session in (inbox.session, replay):
        evolve(session, 3, session.time_ms, 3, 9, inbox.envelope("ReducerQuarantined", {}, payload=b""), note)
    assert encode_snapshot(replay) == encode_snapshot(inbox.session)


# --- comparing stored and folded -------------------------------------------------------------------------


def test_a_part_of_before_the_version_bump_is_compared_as_its_next_event_would_find_it() -> None:
    install(made())
    inbox = Inbox()
    counted(inbox, {"n": 5})
    stored = decode_session(encode_snapshot(inbox.session))
    doubled = lambda s, e: {"twice": s["twice"] + 2 * e.payload["n"]}  # noqa: E731
    install(made(doubled, version=2, start=b'{"twice":0}', upcast={1: lambda s: {"twice": 2 * s["sum"]}}))
    anew = folded(inbox)
    assert encode_snapshot(anew) != encode_snapshot(stored)
    assert comparable(stored, anew) == []
    assert encode_snapshot(anew) == encode_snapshot(stored)


def test_a_wrong_part_is_not_made_equal() -> None:
    install(made())
    inbox = Inbox()
    counted(inbox)
    stored = decode_session(encode_snapshot(inbox.session))
    stored.reduced["total"].state = b'{"sum":2}'
    anew = folded(inbox)
    assert comparable(stored, anew) == []
    assert encode_snapshot(anew) != encode_snapshot(stored)


def test_what_cannot_be_compared_is_named_and_left_out() -> None:
    """Goal: without the reducer, with an older one, and where it came later, nothing is taken for a fault."""
    install(made(), made(name="other"))
    inbox = Inbox()
    counted(inbox)
    stored = encode_snapshot(inbox.session)
    pure.install(None)
    session, anew = decode_session(stored), folded(inbox)
    assert comparable(session, anew) == ["other", "total"]
    assert encode_snapshot(session) == encode_snapshot(anew)
    install(made(), made(name="other"), made(name="later"))
    session, anew = decode_session(stored), folded(inbox)
    session.reduced["other"].version = 2
    assert comparable(session, anew) == ["later", "other"]
    assert encode_snapshot(session) == encode_snapshot(anew)


def test_encoding_refuses_what_python_would_mend() -> None:
    assert encode_state({"b": (1, 2), "a": [True, None]}) == b'{"a":[true,null],"b":[1,2]}'
    for bad in (None, {1: 2}, {"x": b"bytes"}, float("inf"), {"x": {None: 1}}):
        with pytest.raises(Unfit):
            encode_state(bad)
