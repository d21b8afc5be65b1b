"""L8 to L10: attempts, leases and reconciling of calls; R1: what waits for a person. D04, D05, D18."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core import Accepted, Rejected, decide, evolve
from refold.core.reviews import may_change_reviews, review_changes, review_item, review_reason, waiting
from refold.core.session import Call
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.reviews import decode_review, encode_review, review_key
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import (
    Inbox,
    call,
    duplicate,
    event,
    finished,
    fold_bytes,
    intended,
    message,
    outcome,
    rejected,
    result,
    started,
    step,
)
from .histories import busy_histories, histories

Item = tuple[str, dict[str, Any]]


def start(attempt: int = 1, holder: str = "w1", lease_ms: int = 60_000) -> Item:
    return step("ToolCallStarted", "op", attempt=attempt, holder=holder, lease_ms=lease_ms)


def reconciled(outcome: str, attempt: int = 1, holder: str = "w1", lease_ms: int = 60_000) -> Item:
    return event(
        "ToolCallReconciled",
        operation_id="op",
        attempt=attempt,
        holder=holder,
        lease_ms=lease_ms,
        outcome=outcome,
    )


def unknown(**fields: Any) -> Item:
    return step("ToolCallOutcomeUnknown", "op", **fields)


def row(inbox: Inbox) -> Call:
    return inbox.session.calls["op"]


# --- L8 ------------------------------------------------------------------------------------------------


def test_l8_a_start_names_the_next_attempt() -> None:
    inbox = Inbox().ok(intended("op"))
    assert rejected(inbox.send(start(2)), "illegal_transition")
    assert rejected(inbox.send(start(0)), "illegal_transition")
    inbox.ok(start(1))
    assert (row(inbox).state, row(inbox).attempt, row(inbox).holder) == ("started", 1, "w1")


def test_l8_a_start_again_by_the_same_holder_is_a_duplicate_and_by_another_is_not() -> None:
    inbox = Inbox().ok(intended("op"), start())
    assert duplicate(inbox.send(start()), 2)
    assert rejected(inbox.send(start(holder="w2")), "illegal_transition")
    assert rejected(inbox.send(start(2)), "illegal_transition"), "the number rises only after not_done"


def test_l8_nameless_runners_cannot_be_told_apart_so_the_second_gets_no_grant() -> None:
    inbox = Inbox().ok(intended("op"), start(holder=""))
    assert rejected(inbox.send(start(holder="")), "illegal_transition")


# --- L9 ------------------------------------------------------------------------------------------------


def test_l9_a_claim_waits_for_the_lease_in_session_time() -> None:
    inbox = Inbox().ok(intended("op"), start(lease_ms=5_000))
    until = inbox.session.time_ms + 5_000
    ruling = inbox.send(reconciled("claimed", holder="w2"))
    assert rejected(ruling, "lease_held")
    assert isinstance(ruling, Rejected)
    assert str(until) in ruling.reason
    inbox.clock = until - 1
    assert rejected(inbox.send(reconciled("claimed", holder="w2")), "lease_held")
    inbox.clock = until
    inbox.ok(reconciled("claimed", holder="w2", lease_ms=7_000))
    found = row(inbox)
    assert (found.state, found.attempt, found.holder, found.lease_until_ms) == (
        "started",
        1,
        "w2",
        until + 7_000,
    )
    assert rejected(inbox.send(reconciled("claimed", holder="w3")), "lease_held"), "two claim: one won"
    assert rejected(inbox.send(start(holder="w1")), "illegal_transition"), "the first one may not go on"


def test_l9_the_holder_itself_may_renew() -> None:
    inbox = Inbox().ok(intended("op"), start(), reconciled("claimed", lease_ms=99_000))
    assert row(inbox).lease_until_ms == inbox.session.time_ms + 99_000


# --- L10 -----------------------------------------------------------------------------------------------


def test_l10_not_done_by_the_holder_lets_the_next_attempt_start() -> None:
    inbox = Inbox().ok(intended("op"), start(lease_ms=0), reconciled("claimed", holder="w2"))
    assert rejected(inbox.send(reconciled("not_done", holder="w1")), "stale_holder")
    inbox.ok(reconciled("not_done", holder="w2"))
    found = row(inbox)
    assert (found.state, found.attempt, found.holder, found.lease_until_ms) == ("intended", 1, None, None)
    assert duplicate(inbox.send(reconciled("not_done", holder="w2")))
    assert rejected(inbox.send(start(1, holder="w1")), "illegal_transition"), "the old attempt is over"
    inbox.ok(start(2, holder="w1"))
    assert (row(inbox).state, row(inbox).attempt) == ("started", 2)
    assert rejected(inbox.send(reconciled("not_done", attempt=1, holder="w1")), "stale_holder")


def test_l10_a_person_may_rule_that_an_unknown_call_was_not_done() -> None:
    inbox = Inbox().ok(intended("op"), start(), unknown(reason="timeout"))
    assert row(inbox).error == "timeout"
    inbox.ok(reconciled("not_done", holder="review/anna"))
    assert (row(inbox).state, row(inbox).attempt, row(inbox).error) == ("intended", 1, None)
    assert inbox.session.open_calls == 1
    inbox.ok(start(2), outcome("op"))
    assert row(inbox).state == "done"


def test_l10_an_unknown_call_cannot_be_claimed_or_started() -> None:
    inbox = Inbox().ok(intended("op"), start(lease_ms=0), unknown())
    assert rejected(inbox.send(reconciled("claimed", holder="w2")), "illegal_transition")
    assert rejected(inbox.send(start(2)), "illegal_transition")


@pytest.mark.parametrize(
    ("before", "item", "code"),
    [
        ([], reconciled("claimed", attempt=0), "illegal_transition"),
        ([], reconciled("not_done", attempt=0), "illegal_transition"),
        ([], reconciled("not_done"), "stale_holder"),
        ([start()], reconciled("perhaps"), "bad_value"),
        ([start()], reconciled("claimed", holder=""), "bad_id"),
        ([start()], reconciled("claimed", lease_ms=-1), "bad_value"),
        ([start()], reconciled("claimed", attempt=2), "stale_holder"),
        ([start(), outcome("op")], reconciled("claimed"), "already_final"),
        ([start(), outcome("op")], reconciled("not_done"), "already_final"),
    ],
)
def test_what_reconciling_may_not_do(before: list[Item], item: Item, code: str) -> None:
    assert rejected(Inbox().ok(intended("op"), *before).send(item), code)


def test_l10_who_speaks_of_an_attempt_that_is_over_decides_nothing_about_the_next() -> None:
    """The first runner wakes after its attempt was found not done and the second one runs."""
    inbox = Inbox().ok(intended("op"), start(lease_ms=0), reconciled("claimed", holder="w2"))
    inbox.ok(reconciled("not_done", holder="w2"), start(2, holder="w2"))
    assert rejected(inbox.send(outcome("op", failed=True, attempt=1)), "stale_holder")
    assert rejected(inbox.send(unknown(attempt=1)), "stale_holder")
    # Evidence that it ran after all is taken (L4): refusing it would hide what happened.
    inbox.ok(outcome("op", attempt=1))
    assert row(inbox).state == "done"


def test_d18_a_closed_session_lets_started_calls_be_looked_after() -> None:
    inbox = Inbox().ok(intended("op"), start(lease_ms=0), event("SessionClosed"))
    inbox.ok(reconciled("claimed", holder="w2"), reconciled("not_done", holder="w2"))
    assert rejected(inbox.send(start(2)), "session_closed")


def test_d04_a_call_between_intent_and_result_stays_open_across_a_restart() -> None:
    """D04: killed between started and result: open, never run again by itself, closed by a result."""
    inbox = Inbox().ok(message("u"), intended("op", "c1", "refund"), start(lease_ms=0))
    inbox.session = decode_session(encode_snapshot(inbox.session))
    inbox.ok(message("u2"))
    assert row(inbox).state == "started"
    assert rejected(inbox.send(start(2)), "illegal_transition")
    inbox.ok(reconciled("claimed", holder="w2"), outcome("op", "c1"))
    assert row(inbox).state == "done"
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


def test_d05_two_parallel_calls_one_rejected() -> None:
    """D05: answered out of order, one denied: both closed, each with its own state, order as asked."""
    inbox = Inbox().ok(
        message("u"),
        message("a", "assistant", [call("c1", operation_id="op"), call("c2", operation_id="op2")]),
        intended("op", "c1", approval_required=True),
        intended("op2", "c2"),
        step("ToolCallApprovalRequested", "op"),
        step("ToolCallStarted", "op2"),
        outcome("op2", "c2"),
        step("ToolCallDenied", "op"),
    )
    assert inbox.states() == {"op": "denied", "op2": "done"}


# --- R1: the review list ---------------------------------------------------------------------------------


class Reviewed(Inbox):
    """Keeps the review topic as the worker does: compares what waits before and after each event."""

    def __init__(self) -> None:
        super().__init__()
        self.reviews: dict[bytes, bytes] = {}

    def accept(self, ruling: Accepted, env: Any, decoded: Any) -> None:
        before = waiting(self.session)
        super().accept(ruling, env, decoded)
        changes = review_changes(before, self.session)
        assert may_change_reviews(decoded) or not changes, type(decoded)
        for operation_id, kind in changes:
            key = review_key(b"acme/s1", operation_id)
            if kind is None:
                del self.reviews[key]
                continue
            found = self.session.calls[operation_id]
            reason = review_reason(decoded)
            item = review_item(self.session, found, kind, reason, ruling.time_ms, ruling.seq)
            assert decode_review(encode_review(item)) == item
            self.reviews[key] = encode_review(item)

    def kinds(self) -> dict[bytes, str]:
        return {key: decode_review(value).kind for key, value in self.reviews.items()}


WAITS: dict[str, tuple[list[Item], str]] = {
    "unknown": ([intended("op", "c"), start(lease_ms=0), unknown(reason="504")], "unknown"),
    "approval": (
        [
            intended("op", "c", approval_required=True),
            step("ToolCallApprovalRequested", "op", reason="above 100"),
        ],
        "approval",
    ),
}
SETTLES: dict[str, dict[str, Callable[[], Item]]] = {
    "unknown": {
        "done": lambda: outcome("op"),
        "failed": lambda: outcome("op", failed=True, reconciled=True),
        "not done": lambda: reconciled("not_done", holder="review/anna"),
        "deleted": lambda: event("SessionDeleted"),
    },
    "approval": {
        "approved": lambda: step("ToolCallApproved", "op"),
        "denied": lambda: step("ToolCallDenied", "op"),
        "done all the same": lambda: outcome("op"),
        "a result in the transcript": lambda: message("t", "tool", [result("c")]),
        "deleted": lambda: event("SessionDeleted"),
    },
}


@pytest.mark.parametrize(("kind", "way"), [(k, w) for k, ways in SETTLES.items() for w in ways])
def test_r1_an_item_comes_with_the_event_and_goes_with_what_settles_it(kind: str, way: str) -> None:
    inbox = Reviewed()
    steps, expected = WAITS[kind]
    inbox.ok(*steps)
    assert inbox.kinds() == {b"acme/s1#op": expected}
    inbox.ok(event("FactSet", name="n", value="1"), message("u"))
    assert len(inbox.reviews) == 1
    assert (row(inbox).approval == "requested") == (kind == "approval")
    inbox.ok(SETTLES[kind][way]())
    assert inbox.reviews == {}


def test_r1_what_an_item_says() -> None:
    inbox = Reviewed().ok(  # type: ignore[assignment]
        intended("op", "c1", "refund", arguments='{"order": 17}'), start(holder="w9"), unknown(reason="504")
    )
    assert isinstance(inbox, Reviewed)
    item = decode_review(inbox.reviews[b"acme/s1#op"])
    assert item._asdict() == {
        "kind": "unknown",
        "tenant": "acme",
        "session": "s1",
        "operation_id": "op",
        "call_id": "c1",
        "tool": "refund",
        "arguments": '{"order": 17}',
        "attempt": 1,
        "holder": "w9",
        "reason": "504",
        "since_ms": inbox.session.time_ms,
        "seq": 3,
        "intended_seq": 1,
    }


def test_r1_a_row_that_gets_its_real_operation_id_moves_its_item() -> None:
    inbox = Reviewed()
    inbox.ok(message("a", "assistant", [call("c1")]), step("ToolCallApprovalRequested", "@1.0"))
    assert inbox.kinds() == {b"acme/s1#@1.0": "approval"}
    inbox.ok(intended("op", "c1"))
    assert inbox.kinds() == {b"acme/s1#op": "approval"}


@pytest.mark.parametrize("finish", [False, True])
def test_r1_a_message_that_joins_a_call_with_a_waiting_result_settles_it(finish: bool) -> None:
    """The result came first, by a call id that only the model's message ties to the operation."""
    inbox = Reviewed()
    inbox.ok(started("g"), intended("op"), step("ToolCallApprovalRequested", "op"), outcome(None, "c"))
    assert len(inbox.reviews) == 1
    content = [call("c", operation_id="op")]
    inbox.ok(finished("g", "", 0, content=content) if finish else message("a", "assistant", content))
    assert inbox.states() == {"op": "done"}
    assert inbox.reviews == {}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories() | busy_histories())
def test_r1_the_review_list_is_what_waits_after_any_history(inbox: Inbox) -> None:
    """Exactly the waiting calls, at every point, and types said to change nothing change nothing."""
    reviewed = Reviewed()
    reviewed.check = False
    for value, at_ms in inbox.records:
        reviewed.put(value, at_ms)
        expected = {review_key(b"acme/s1", op): kind for op, kind in waiting(reviewed.session).items()}
        assert reviewed.kinds() == expected


# --- any order -------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[int], Item]] = {
    "start": lambda n: start(n),
    "start other": lambda n: start(n, holder="w2", lease_ms=0),
    "claim": lambda n: reconciled("claimed", n, "w2", 0),
    "not done": lambda n: reconciled("not_done", n, "w2"),
    "unknown": lambda n: unknown(attempt=n),
    "done": lambda n: outcome("op", attempt=n),
    "failed": lambda n: outcome("op", failed=True, attempt=n),
}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3)), max_size=14))
def test_l10_an_attempt_never_begins_while_another_may_still_take_effect(
    steps: list[tuple[str, int]],
) -> None:
    """In any order of steps by two holders: the number rises by one, and only after not_done."""
    inbox = Inbox().ok(intended("op"))
    not_done = 0
    granted: list[int] = []
    for name, attempt in steps:
        item = STEPS[name](attempt)
        env = decode_envelope(encode_envelope(inbox.envelope(*item)))
        decoded = decode_event(env)
        ruling = decide(inbox.session, env, decoded, inbox.clock)
        inbox.offset += 1
        if not isinstance(ruling, Accepted):
            continue
        evolve(inbox.session, ruling.seq, ruling.time_ms, 3, inbox.offset, env, decoded)
        if name == "not done":
            not_done += 1
        if name.startswith("start"):
            granted.append(attempt)
            assert not_done == attempt - 1
    assert granted == list(range(1, len(granted) + 1)), "each attempt was granted once"
