"""When a session wants a summary (Y1), and that the policy is judged and kept."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.policystate import SessionPolicy
from refold.core.rulings import Accepted, Duplicate, Rejected
from refold.core.session import Session
from refold.core.wanting import GROWN_MESSAGES, SummaryWant, summary_want
from refold.core.work import SUMMARY_WORK, may_change_work, work_changes, work_items
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.work import decode_work, encode_work

from .build import Inbox, call, event, message, result


def opened(**policy: Any) -> Inbox:
    inbox = Inbox()
    assert isinstance(inbox.send(event("SessionOpened", policy=policy)), Accepted)
    return inbox


def say(inbox: Inbox, count: int, first: int = 0) -> None:
    for at in range(first, first + count):
        assert isinstance(inbox.send(message(f"m{at}", "user" if at % 2 == 0 else "assistant")), Accepted)


@pytest.mark.parametrize(
    "policy",
    [
        {"on_busy": "later"},
        {"ttl_action": "forget"},
        {"ttl_ms": -1},
        {"ttl_ms": 2**60},
        {"summary_messages": 100},
        {"summary_messages": -1},
        {"summary_bytes": 1_023},
        {"summary_bytes": 131_072},
    ],
)
def test_a_policy_out_of_its_range_is_refused(policy: dict[str, Any]) -> None:
    inbox = Inbox()
    inbox.send(message("m0"))
    ruling = inbox.send(event("SessionConfigured", policy=policy))
    assert isinstance(ruling, Rejected)
    assert ruling.code == "bad_value"


def test_a_policy_is_changed_field_by_field_and_ends_as_none() -> None:
    """What is null stays; a policy of defaults is none, so that the session is a plain one again."""
    inbox = opened(summary_messages=8, ttl_ms=5_000)
    inbox.send(event("SessionConfigured", policy={"ttl_action": "delete"}))
    assert inbox.session.policy == SessionPolicy("queue", 5_000, "delete", 8, 0)
    inbox.send(event("SessionConfigured", window_messages=10))
    assert inbox.session.policy is not None
    inbox.send(event("SessionConfigured", policy={"ttl_action": "close", "ttl_ms": 0, "summary_messages": 0}))
    assert inbox.session.policy is None
    assert inbox.session.timer_ms == 0


def test_opening_again_with_the_same_policy_is_a_repeat() -> None:
    inbox = opened(summary_messages=8)
    assert isinstance(inbox.send(event("SessionOpened", policy={"summary_messages": 8})), Duplicate)
    other = inbox.send(event("SessionOpened", policy={"summary_messages": 9}))
    assert isinstance(other, Rejected)
    assert other.code == "conflict"


def test_the_first_message_above_the_limit_asks_and_the_next_ones_say_nothing_new() -> None:
    """Y1: one record when the limit is passed, one for each sixteen more, one when it is below again."""
    inbox = opened(summary_messages=4)
    heard: list[tuple[str, int]] = []
    for at in range(GROWN_MESSAGES + 4):
        before = work_items(inbox.session)
        say(inbox, 1, at)
        heard += [(name, at) for name, item in work_changes(before, inbox.session) if item is not None]
    assert heard == [(SUMMARY_WORK, 4), (SUMMARY_WORK, GROWN_MESSAGES - 1)]
    item = work_items(inbox.session)[SUMMARY_WORK]
    assert (item.kind, item.state, item.reason, item.seq, item.notices) == (
        "summary", "ready", "messages", inbox.session.recent[4].seq, 1,
    )  # fmt: skip
    assert decode_work(encode_work(item)) == item
    before = work_items(inbox.session)
    assert isinstance(
        inbox.send(event("ContextSummarized", text="so far", through_message_id="m15")), Accepted
    )
    assert work_changes(before, inbox.session) == [(SUMMARY_WORK, None)]


def test_bytes_ask_too() -> None:
    inbox = opened(summary_bytes=2_048)
    inbox.send(message("m0", content="x" * 1_500))
    assert summary_want(inbox.session) is None
    inbox.send(message("m1", "assistant", content="x" * 1_500))
    want = summary_want(inbox.session)
    assert want is not None
    assert (want.reason, want.seq) == ("bytes", inbox.session.seq)


def test_a_window_that_holds_asks_above_its_settings() -> None:
    inbox = Inbox()
    inbox.send(event("SessionOpened", hold_for_summary=True, window_messages=3))
    say(inbox, 3)
    assert summary_want(inbox.session) is None
    say(inbox, 1, 3)
    assert summary_want(inbox.session) == SummaryWant(
        "held", inbox.session.recent[3].time_ms, inbox.session.recent[3].seq, 0
    )


def test_messages_stay_until_the_summary_that_the_policy_asks_for() -> None:
    """W4: with a policy nothing leaves the window uncovered, whatever its settings."""
    inbox = opened(summary_messages=30)
    say(inbox, 40)
    assert len(inbox.session.recent) == 40
    assert inbox.session.uncovered == 0
    inbox.send(event("ContextSummarized", text="so far", through_message_id="m33"))
    assert (len(inbox.session.recent), inbox.session.uncovered) == (6, 0)


def test_one_group_of_calls_and_results_wants_none() -> None:
    """No summary could make it smaller."""
    inbox = opened(summary_messages=1)
    asked = [call("c1"), call("c2"), call("c3")]
    inbox.send(message("a", "assistant", asked))
    for at in (1, 2, 3):
        inbox.send(message(f"r{at}", "tool", [result(f"c{at}")]))
    assert len(inbox.session.recent) == 4
    assert summary_want(inbox.session) is None
    inbox.send(message("b", "assistant", "done"))
    assert summary_want(inbox.session) is not None


@pytest.mark.parametrize("end", ["SessionClosed", "SessionDeleted", "SessionQuarantined"])
def test_who_is_not_open_wants_none(end: str) -> None:
    inbox = opened(summary_messages=2)
    say(inbox, 4)
    before = work_items(inbox.session)
    assert SUMMARY_WORK in before
    fields = {"code": "x", "reason": "y", "partition": 0, "offset": 0} if end == "SessionQuarantined" else {}
    inbox.send(event(end, **fields))
    assert work_changes(before, inbox.session) == [(SUMMARY_WORK, None)]


def test_every_event_that_changes_what_is_wanted_is_looked_at() -> None:
    """``may_change_work`` never says no where something changes: for each event of a long history."""
    inbox = Inbox()
    history = [
        event("SessionOpened", policy={"summary_messages": 3}),
        *[message(f"m{at}", "user" if at % 2 == 0 else "assistant") for at in range(6)],
        event("BranchSwitched", head_message_id="m1"),
        event("BranchSwitched", head_message_id="m5"),
        event("SessionConfigured", policy={"summary_messages": 0}, window_messages=3),
        event("SessionConfigured", hold_for_summary=True),
        message("m6"),
        event("SessionConfigured", hold_for_summary=False),
        event("SessionConfigured", policy={"summary_bytes": 1_024}),
        message("m7", content="x" * 2_000),
        event("SessionClosed"),
        event("SessionReopened"),
        event("ContextSummarized", text="x", through_message_id="m7"),
        event("SessionDeleted"),
    ]
    changed = 0
    for type_name, fields in history:
        before = work_items(inbox.session)
        told = may_change_work(inbox.session, decode_event(inbox.envelope(type_name, fields)))
        assert isinstance(inbox.send((type_name, fields)), Accepted), type_name
        changes = work_changes(before, inbox.session)
        changed += bool(changes)
        assert told or not changes, type_name
    assert changed >= 8


def test_a_session_without_a_policy_is_what_it_was() -> None:
    """No summary is wanted of it, however long it is, and its record ends in the same bytes."""
    inbox = Inbox()
    say(inbox, 60)
    session: Session = inbox.session
    assert summary_want(session) is None
    env = decode_envelope(inbox.records[0][0])
    assert not may_change_work(session, decode_event(env))
