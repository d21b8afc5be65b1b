"""Opening, closing, deleting, quarantine and release: D18, D20 and the rules Q1 to Q4."""

from __future__ import annotations

import hashlib

import pytest

from refold.core import Accepted, Parked
from refold.core.envelope import SessionLink
from refold.wire.snapshot import decode_session, decode_snapshot, encode_snapshot

from .build import (
    Inbox,
    call,
    clear_caches,
    duplicate,
    event,
    fold_bytes,
    intended,
    message,
    outcome,
    rejected,
    result,
    step,
)


def closed() -> Inbox:
    inbox = Inbox().ok(
        message("u"),
        message("a", "assistant", [call("c1", operation_id="op1"), call("c2")]),
        intended("op1", "c1"),
        intended("op3"),
    )
    return inbox.ok(step("ToolCallStarted", "op1"), event("SessionClosed", reason="done"))


def test_d18_a_late_result_closes_its_row_after_the_session_closed() -> None:
    """D18: rows are settled and their results shown; closed stays closed."""
    inbox = closed().ok(
        outcome("op1", "c1"), message("t2", "tool", [result("c2")]), step("ToolCallDenied", "op3")
    )
    assert inbox.states() == {"op1": "done", "@2.1": "done", "op3": "denied"}
    assert inbox.session.status == "closed"
    assert [m.role for m in inbox.session.recent] == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    "late",
    [
        message("u2"),
        message("a2", "assistant"),
        message("s", "system"),
        intended("op9"),
        step("ToolCallStarted", "op3"),
        step("ToolCallApprovalRequested", "op3"),
        event("FactSet", name="f", value="1"),
        event("SessionConfigured", window_messages=3),
        event("SessionOpened"),
        event("BranchSwitched", head_message_id="u"),
    ],
    ids=lambda item: item[0],
)
def test_d18_what_goes_on_with_a_closed_session_is_refused_not_lost(
    late: tuple[str, dict[str, object]],
) -> None:
    """D18: a user message does not vanish: it is rejected with a code, and accepted after a reopening."""
    inbox = closed()
    assert rejected(inbox.send(late), "session_closed")
    inbox.ok(event("SessionReopened"), late)
    assert inbox.session.status == "open"


def test_closing_twice_and_reopening_twice_are_duplicates() -> None:
    inbox = closed()
    assert duplicate(inbox.send(event("SessionClosed")), 6)
    inbox.ok(event("SessionReopened"))
    assert duplicate(inbox.send(event("SessionReopened")), 7)
    assert rejected(Inbox().send(event("SessionReopened")), "no_session")


def test_unknown_types_are_kept_and_sequenced_also_when_closed() -> None:
    """D26 for types: a type nobody knows yet takes a seq and nothing else."""
    inbox = closed()
    before = decode_snapshot(encode_snapshot(inbox.session))
    for type_name in ("TokensCounted", "RunReady", "TimerArmed"):
        env = inbox.envelope(type_name, {}, payload=b"\x00\xff whatever")
        assert isinstance(inbox.put(_bytes(env)), Accepted)
    after = decode_snapshot(encode_snapshot(inbox.session))
    assert after["seq"] == before["seq"] + 3
    assert after["context"] == before["context"]
    assert after["tools"] == before["tools"]


def _bytes(env: object) -> bytes:
    from refold.wire.envelope import encode_envelope

    return encode_envelope(env)  # type: ignore[arg-type]


def test_opening_pins_the_configuration_by_its_digest() -> None:
    config = '{"model":"m","temperature":0}'
    digest = hashlib.sha256(config.encode()).hexdigest()
    inbox = Inbox().ok(event("SessionOpened", config_json=config))
    assert inbox.session.config is not None
    assert inbox.session.config.digest == digest
    assert duplicate(inbox.send(event("SessionOpened", config_json=config, config_digest=digest)), 1)
    assert duplicate(inbox.send(event("SessionOpened")), 1)
    assert rejected(inbox.send(event("SessionOpened", config_json="{}")), "conflict")
    assert rejected(inbox.send(event("SessionConfigured", json="{}", digest=digest)), "bad_value")
    assert rejected(inbox.send(event("SessionConfigured", json="{")), "bad_json")
    assert rejected(inbox.send(event("SessionConfigured", json='"' + "x" * 40_000 + '"')), "too_large")
    inbox.ok(event("SessionConfigured", json="{}"))
    assert inbox.session.config.seq == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [("window_messages", 0), ("window_messages", 101), ("window_bytes", 1023), ("window_bytes", 163_841)],
)
def test_settings_stay_within_the_hard_limits(setting: str, value: int) -> None:
    assert rejected(Inbox().send(event("SessionOpened", **{setting: value})), "bad_value")


def test_the_first_events_link_is_kept() -> None:
    inbox = Inbox()
    inbox.send(message("u"), link=SessionLink("child", "parent-session", 7, "op1"))
    inbox.send(message("u2"), link=SessionLink("fork", "other"))
    assert inbox.session.link == SessionLink("child", "parent-session", 7, "op1")
    assert decode_session(encode_snapshot(inbox.session)).link == inbox.session.link


def test_d20_deleted_then_used_again() -> None:
    """D20: the state is gone, the next event begins a new incarnation at seq 1; replay says the same."""
    inbox = Inbox().ok(message("u", content="A"), event("FactSet", name="f", value="1"))
    assert inbox.session.exists
    inbox.ok(event("SessionDeleted"))
    assert not inbox.session.exists
    assert duplicate(inbox.send(event("SessionDeleted")), 0)
    inbox.ok(message("u", content="B"))
    assert (inbox.session.seq, inbox.recent) == (1, ["u"])
    assert inbox.session.facts == {}
    fresh = Inbox()
    fresh.offset, fresh.clock = inbox.offset - 1, inbox.clock - 1000
    fresh.send(message("u", content="B"))
    assert encode_snapshot(fresh.session) == encode_snapshot(inbox.session)
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


# --- quarantine --------------------------------------------------------------------------------------------


def park(inbox: Inbox, item: tuple[str, dict[str, object]], **fields: object) -> bytes:
    """What the worker does with a parked record: keep it in order, journal SessionEventParked."""
    ruling = inbox.send(item, **fields)
    assert isinstance(ruling, Parked)
    assert rejected(
        inbox.send(event("SessionEventParked", event_id="x", partition=3, offset=1)), "reserved_type"
    )
    value = inbox.records[-2][0]
    from refold.wire.events import decode_event

    env = inbox.envelope("SessionEventParked", {"event_id": "x", "partition": 3, "offset": 1})
    session = inbox.session
    inbox.accept(Accepted(session.seq + 1, session.time_ms), env, decode_event(env))
    return value


def replay(inbox: Inbox, value: bytes) -> object:
    from refold.wire.envelope import decode_envelope

    return inbox.put(_bytes(decode_envelope(value).replace(origin=inbox.replay())))


def quarantined() -> Inbox:
    return Inbox().ok(
        message("u"),
        event("SessionQuarantined", code="InvariantViolation", reason="S2", partition=3, offset=1),
    )


def test_q1_while_quarantined_every_event_is_parked_in_order() -> None:
    inbox = quarantined()
    for item in (message("u2"), intended("op"), event("SessionClosed"), event("SessionReopened")):
        park(inbox, item)
    assert inbox.session.parked == 4
    assert inbox.recent == ["u"]
    public = decode_snapshot(encode_snapshot(inbox.session))
    assert (public["status"], public["parked"]) == ("quarantined", 4)
    finish = inbox.send(event("SessionReleaseFinished"))
    assert rejected(finish, "not_quarantined")


def test_q2_q3_a_release_replays_everything_parked_and_nothing_overtakes() -> None:
    """Events of one stamped producer keep arriving during the release: order and counts stay exact."""
    stamp = {"producer_id": "p", "producer_epoch": 1}
    inbox = quarantined()
    parked = [park(inbox, message(f"m{i}"), producer_counter=i + 1, **stamp) for i in range(3)]
    inbox.ok(event("SessionReleased", by="sre"))
    assert duplicate(inbox.send(event("SessionReleased")))
    for value in parked:
        assert isinstance(replay(inbox, value), Accepted)
    # A fresh event during the release is parked behind the others.
    late = park(inbox, message("m3"), producer_counter=4, **stamp)
    assert rejected(inbox.send(event("SessionReleaseFinished", parked=3)), "release_behind")
    assert isinstance(replay(inbox, late), Accepted)
    inbox.ok(event("SessionReleaseFinished", parked=4))
    assert inbox.session.status == "open"
    assert inbox.session.parked == 0
    inbox.send(message("m4"), producer_counter=5, **stamp)
    assert inbox.recent == ["u", "m0", "m1", "m2", "m3", "m4"]
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


def test_a_closed_session_is_closed_again_after_its_release() -> None:
    inbox = closed().ok(event("SessionQuarantined", code="c", reason="r", partition=3, offset=1))
    value = park(inbox, message("u9"))
    inbox.ok(event("SessionReleased"))
    assert rejected(replay(inbox, value), "session_closed")  # type: ignore[arg-type]
    inbox.ok(event("SessionReleaseFinished", parked=1))
    assert inbox.session.status == "closed"


def test_a_release_in_which_the_fold_raises_again_goes_back_to_quarantine() -> None:
    inbox = quarantined()
    park(inbox, message("u2"))
    inbox.ok(
        event("SessionReleased"), event("SessionQuarantined", code="c", reason="r", partition=3, offset=1)
    )
    assert inbox.session.status == "quarantined"
    assert inbox.session.parked == 1
    inbox.ok(event("SessionReleased"), event("SessionReleaseFinished"))
    assert inbox.session.status == "open"


def test_a_quarantined_session_can_be_deleted() -> None:
    inbox = quarantined().ok(event("SessionDeleted"))
    assert not inbox.session.exists


def test_releasing_what_is_not_quarantined_is_refused() -> None:
    inbox = Inbox().ok(message("u"))
    for name in ("SessionReleased", "SessionReleaseFinished"):
        assert rejected(inbox.send(event(name)), "not_quarantined")


def test_caches_do_not_outlive_what_they_encode() -> None:
    inbox = closed().ok(event("SessionReopened"), event("FactSet", name="f", value="1"))
    value = encode_snapshot(inbox.session)
    clear_caches(inbox.session)
    assert encode_snapshot(inbox.session) == value
