"""The tool ledger: D04 to D08, D19 and the rules L1 to L7; L8 to L10 are in test_reconciling."""

from __future__ import annotations

import itertools
from hashlib import sha256

import pytest

from refold.core.limits import (
    ARGUMENTS_INLINE_BYTES_MAX,
    CLOSED_CALLS_MAX,
    DEDUP_EVENT_IDS_MAX,
    OPEN_CALLS_MAX,
    ORPHANS_MAX,
    TOOLS_BYTES_MAX,
)
from refold.wire.envelope import encode_envelope
from refold.wire.snapshot import decode_session, decode_snapshot, encode_snapshot

from .build import (
    Inbox,
    call,
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


def rows(inbox: Inbox) -> list[dict[str, object]]:
    tools: list[dict[str, object]] = decode_snapshot(encode_snapshot(inbox.session))["tools"]
    return tools


def asked(*calls: object) -> Inbox:
    return Inbox().ok(message("u"), message("a", "assistant", list(calls)))


def test_d04_a_crash_between_intent_and_result_leaves_the_call_open() -> None:
    """D04: not failed, not done, not issued again; a later result closes it, as without a crash."""
    script = [message("u1"), message("a1", "assistant", [call("c1", "refund")]), message("u2")]
    late = message("t1", "tool", [result("c1")])
    calm = Inbox().ok(*script)
    assert calm.states() == {"@2.0": "intended"}

    crashed = Inbox().ok(*script[:2])
    crashed.session = decode_session(encode_snapshot(crashed.session))
    crashed.ok(script[2])
    assert crashed.states() == {"@2.0": "intended"}
    for inbox in (calm, crashed):
        inbox.ok(late)
        assert inbox.states() == {"@2.0": "done"}
        assert inbox.recent == ["u1", "a1", "u2", "t1"]
    assert encode_snapshot(calm.session) == encode_snapshot(crashed.session)


def test_d05_parallel_calls_keep_the_order_they_were_asked_in() -> None:
    """D05: c2 answers first, c1 is rejected: both closed, order as asked."""
    inbox = Inbox().ok(intended("op1", "c1", index=0), intended("op2", "c2", index=1))
    inbox.ok(outcome("op2", "c2"), step("ToolCallDenied", "op1", reason="no"))
    assert [(r["operation_id"], r["state"], r["order"]) for r in rows(inbox)] == [
        ("op1", "denied", 0),
        ("op2", "done", 1),
    ]
    inbox = asked(call("c1"), call("c2"))
    inbox.ok(
        message("t2", "tool", [result("c2")]),
        message("t1", "tool", [result("c1", "rejected", is_error=True)]),
    )
    assert [(r["call_id"], r["state"], r["is_error"], r["order"]) for r in rows(inbox)] == [
        ("c1", "done", True, 0),
        ("c2", "done", False, 1),
    ]


@pytest.mark.parametrize("as_message", [True, False])
def test_d06_a_result_before_its_intent_waits_outside_the_context(as_message: bool) -> None:
    """D06: held and counted, not shown, joined when the call comes three records later."""
    early = message("t9", "tool", [result("c9", "early")]) if as_message else outcome(None, "c9", "early")
    inbox = Inbox().ok(message("u"), early)
    context = decode_snapshot(encode_snapshot(inbox.session))["context"]
    assert context["waiting_results"] == 1
    assert [m["message_id"] for m in context["recent_messages"]] == ["u"]
    assert inbox.states() == {}
    inbox.ok(event("FactSet", name="f", value="1"), event("FactSet", name="f", value="2"))
    inbox.ok(message("a", "assistant", [call("c9")]), message("a2", "assistant", "so"))
    assert inbox.states() == {"@5.0": "done"}
    assert inbox.recent[:2] == ["u", "a"]
    assert inbox.recent[3] == "a2"
    assert inbox.session.recent[2].answers == (5,)
    assert inbox.session.orphans == []


def test_d06_a_result_whose_call_never_comes_changes_nothing_else() -> None:
    inbox = Inbox().ok(message("u"), outcome("op9", None), message("u2"), message("a2", "assistant"))
    assert inbox.recent == ["u", "u2", "a2"]
    assert inbox.states() == {}
    assert duplicate(inbox.send(outcome("op9", None)), 2)


def test_d06_by_bare_call_id_a_result_waits_no_longer_than_its_turn() -> None:
    """Else a lost call's result would be given to a later call with the same id (D07)."""
    inbox = Inbox().ok(message("u"), message("t", "tool", [result("call_0", "stale")]), message("u2"))
    assert inbox.session.orphans == []
    inbox.ok(message("a2", "assistant", [call("call_0")]))
    assert inbox.states() == {"@4.0": "intended"}


def test_d06_one_message_with_many_waiting_results() -> None:
    """All of them are remembered and joined; a message with more than fit is given up whole."""
    ids = [f"c{i}" for i in range(30)]
    early = message("t", "tool", [result(i) for i in ids])
    inbox = Inbox().ok(message("u"), early, message("a", "assistant", [call(i) for i in ids]))
    assert inbox.recent == ["u", "a", "t"]
    assert set(inbox.states().values()) == {"done"}
    long_ids = [f"c{i}" + "x" * 200 for i in range(200)]
    inbox = Inbox().ok(message("u"), message("t", "tool", [result(i) for i in long_ids]))
    assert inbox.session.orphans == []
    assert "t" not in inbox.session.held


def test_d06_waiting_results_are_bounded() -> None:
    inbox = Inbox().ok(message("u"))
    for i in range(ORPHANS_MAX * 3):
        inbox.ok(outcome(f"op{i}", None, "x" * 5000))
    assert 1 <= len(inbox.session.orphans) <= ORPHANS_MAX
    assert inbox.session.orphans[-1].results[0].operation_id == f"op{ORPHANS_MAX * 3 - 1}"


def test_a_result_that_an_intent_joins_is_placed_within_the_window() -> None:
    """The intent tells which transcript call a waiting result belongs to: placed, then trimmed at once."""
    inbox = Inbox().ok(
        event("SessionOpened", window_messages=3),
        message("u1"),
        message("a1", "assistant", [call("c1")]),
        outcome("op2", None, "early"),
        message("u2"),
    )
    assert inbox.recent == ["u1", "a1", "u2"]
    inbox.ok(intended("op2", "c1"))
    assert inbox.states() == {"op2": "done"}
    assert inbox.recent == ["u2"]
    assert inbox.session.uncovered == 3


def test_a_waiting_result_goes_with_its_row() -> None:
    """Its call never came into the conversation and the row was dropped: the operation id is free again."""
    inbox = Inbox().ok(intended("op", "c"), outcome("op", "c", "first"))
    assert len(inbox.session.orphans) == 1
    for i in range(CLOSED_CALLS_MAX):
        inbox.ok(intended(f"op{i}"), step("ToolCallDenied", f"op{i}"))
    assert "op" not in inbox.states()
    assert "@e1" not in inbox.session.held
    inbox.ok(message("u"), message("a", "assistant", [call("c", operation_id="op")]))
    assert inbox.recent == ["u", "a"]
    assert inbox.states()["op"] == "intended"


def test_d07_a_call_id_used_again_makes_a_second_row() -> None:
    """D07: two turns use call_0: two rows, each result its own call; redelivery adds nothing."""
    inbox = Inbox().ok(
        message("u1"),
        message("a1", "assistant", [call("call_0", "A")]),
        message("r1", "tool", [result("call_0", "first")]),
        message("u2"),
        message("a2", "assistant", [call("call_0", "B")]),
        message("r2", "tool", [result("call_0", "second")]),
    )
    assert [(r["tool"], r["state"], r["result_summary"], r["result_seq"]) for r in rows(inbox)] == [
        ("A", "done", "first", 3),
        ("B", "done", "second", 6),
    ]
    before = encode_snapshot(inbox.session)
    for value, at_ms in list(inbox.records)[:3]:
        assert duplicate(inbox.put(value, at_ms))
    assert encode_snapshot(inbox.session) == before


def test_d07_two_open_calls_of_one_message_with_the_same_id() -> None:
    """The first result is the first call's."""
    inbox = asked(call("x", "A"), call("x", "B"))
    inbox.ok(message("t", "tool", [result("x", "1"), result("x", "2")]))
    assert [(r["tool"], r["result_summary"]) for r in rows(inbox)] == [("A", "1"), ("B", "2")]


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ('{"command": "ls -', False),
        ("", False),
        ("{}", True),
        ('{"a": NaN}', False),
        ('{"a": "\\ud83d"}', False),
        ('{"a": "\\ud83d\\ude00"}', True),
        ("[" * 101 + "]" * 101, False),
        ("[" * 100 + "]" * 100, True),
        ('"' + "[" * 500 + '"', True),
        ("1" * 5000, True),
    ],
)
def test_d08_arguments_are_kept_raw_and_flagged(arguments: str, valid: bool) -> None:
    """D08: never repaired, never replaced; the session goes on."""
    for inbox in (
        asked(call("c1", "bash", arguments)),
        Inbox().ok(intended("op1", arguments=arguments, tool="bash")),
    ):
        row = rows(inbox)[0]
        if len(arguments) <= ARGUMENTS_INLINE_BYTES_MAX:
            assert row["arguments"] == arguments
        assert row["arguments_valid"] is valid
        inbox.ok(message("u9"))


def test_d23_long_arguments_are_elided_with_length_and_digest() -> None:
    arguments = '"' + "a" * ARGUMENTS_INLINE_BYTES_MAX + '"'
    row = rows(Inbox().ok(intended("op1", arguments=arguments)))[0]
    assert row["arguments"] is None
    assert row["arguments_length"] == len(arguments)
    assert len(str(row["arguments_sha256"])) == 64
    assert row["arguments_valid"] is True


# --- L1: the two ways to open a row --------------------------------------------------------------------


def outside(text: str) -> dict[str, object]:
    """Arguments that the producer has put into the blob store."""
    data = text.encode()
    ref = {"uri": "file:///blobs/x", "sha256": sha256(data).hexdigest(), "length": len(data)}
    return {
        "arguments": "",
        "arguments_valid": True,
        "arguments_ref": {**ref, "media_type": "application/json", "field": "text"},
    }


def test_d23_arguments_kept_outside_are_left_out_like_long_ones() -> None:
    """An empty text in the row would be taken for the arguments, for an empty object when it runs again."""
    long = '{"a":"' + "x" * 100_000 + '"}'
    inbox = Inbox().ok(intended("op1", **outside(long)))
    row = inbox.session.calls["op1"]
    assert (row.arguments, row.arguments_length, row.arguments_valid) == (None, len(long), True)
    assert row.arguments_sha256 == sha256(long.encode()).hexdigest()
    assert duplicate(inbox.send(intended("op1", **outside(long))))
    # The producer's own limit may have been changed meanwhile.
    assert duplicate(inbox.send(intended("op1", arguments=long)))
    assert rejected(inbox.send(intended("op1", arguments="")), "conflict")
    wrong = outside(long)
    wrong["arguments_ref"]["sha256"] = "x"  # type: ignore[index]
    assert rejected(inbox.send(intended("op2", **wrong)), "bad_value")


@pytest.mark.parametrize("kept_outside", [False, True])
def test_d09_long_arguments_of_one_length_are_told_apart(kept_outside: bool) -> None:
    """Their text is not in the row, their digest is."""
    first, other = ('{"a":"' + letter * 100_000 + '"}' for letter in "xy")
    inbox = Inbox().ok(intended("op1", arguments=first))
    fields = outside(other) if kept_outside else {"arguments": other}
    assert rejected(inbox.send(intended("op1", **fields)), "conflict")
    assert duplicate(inbox.send(intended("op1", arguments=first)))


@pytest.mark.parametrize("intent_first", [True, False])
@pytest.mark.parametrize("part_operation", ["op1", None])
def test_l1_message_and_intent_open_one_row(intent_first: bool, part_operation: str | None) -> None:
    said = message("a", "assistant", [call("c1", operation_id=part_operation)])
    meant = intended("op1", "c1", effect="write")
    inbox = Inbox().ok(message("u"), *([meant, said] if intent_first else [said, meant]))
    row = rows(inbox)[0]
    assert len(rows(inbox)) == 1
    assert (row["operation_id"], row["call_id"], row["message_id"]) == ("op1", "c1", "a")
    assert (row["declared"], row["effect"]) == (True, "write")
    assert row["message_seq"] == (3 if intent_first else 2)
    inbox.ok(step("ToolCallStarted", "op1"), outcome("op1"))
    assert inbox.session.recent[-1].answers == (row["message_seq"],)


def test_l1_an_intent_does_not_join_a_call_that_is_done() -> None:
    """The id was used in an earlier turn: the intent is for a call of its own (D07)."""
    inbox = asked(call("c1", "A"))
    inbox.ok(message("t1", "tool", [result("c1")]), message("u2"), intended("op", "c1", tool="B"))
    assert [(r["tool"], r["state"], r["declared"]) for r in rows(inbox)] == [
        ("A", "done", False),
        ("B", "intended", True),
    ]


def test_an_intent_again_is_a_duplicate_and_another_one_a_conflict() -> None:
    inbox = Inbox().ok(intended("op1", arguments='{"a":1}'))
    assert duplicate(inbox.send(intended("op1", arguments='{"a":1}')), 1)
    assert rejected(inbox.send(intended("op1", arguments='{"a":2}')), "conflict")
    assert rejected(inbox.send(intended("op1", tool="other", arguments='{"a":1}')), "conflict")


# --- L3, L4, L5: the states ------------------------------------------------------------------------------

STEPS = {
    "request": lambda: step("ToolCallApprovalRequested", "op"),
    "approve": lambda: step("ToolCallApproved", "op"),
    "deny": lambda: step("ToolCallDenied", "op"),
    "start": lambda: step("ToolCallStarted", "op"),
    "done": lambda: outcome("op"),
    "done_error": lambda: outcome("op", is_error=True),
    "failed": lambda: outcome("op", failed=True),
    "reconciled_failed": lambda: outcome("op", failed=True, reconciled=True),
    "unknown": lambda: step("ToolCallOutcomeUnknown", "op"),
}
#: How to bring a call into each state.
WAYS: dict[str, list[str]] = {
    "intended": [],
    "awaiting_approval": ["request"],
    "approved": ["request", "approve"],
    "started": ["start"],
    "done": ["start", "done"],
    "failed": ["start", "failed"],
    "denied": ["deny"],
    "unknown": ["start", "unknown"],
}
#: State -> step -> what must come: a new state, "dup", or a reject code. Everything not listed: see below.
TABLE: dict[str, dict[str, str]] = {
    "intended": {
        "request": "awaiting_approval",
        "approve": "intended",
        "deny": "denied",
        "start": "started",
        "done": "done",
        "done_error": "done",
        "failed": "failed",
        "reconciled_failed": "failed",
        "unknown": "illegal_transition",
    },
    "awaiting_approval": {
        "request": "dup",
        "approve": "intended",
        "deny": "denied",
        "start": "illegal_transition",
        "done": "done",
        "done_error": "done",
        "failed": "failed",
        "reconciled_failed": "failed",
        "unknown": "illegal_transition",
    },
    "approved": {
        "request": "illegal_transition",
        "approve": "dup",
        "deny": "denied",
        "start": "started",
        "done": "done",
        "done_error": "done",
        "failed": "failed",
        "reconciled_failed": "failed",
        "unknown": "illegal_transition",
    },
    "started": {
        "request": "illegal_transition",
        "approve": "illegal_transition",
        "deny": "illegal_transition",
        "start": "dup",
        "done": "done",
        "done_error": "done",
        "failed": "failed",
        "reconciled_failed": "failed",
        "unknown": "unknown",
    },
    "done": {"done": "dup"},
    "failed": {"failed": "dup", "reconciled_failed": "dup"},
    "denied": {"deny": "dup"},
    "unknown": {
        "request": "illegal_transition",
        "approve": "illegal_transition",
        "deny": "illegal_transition",
        "start": "illegal_transition",
        "done": "done",
        "done_error": "done",
        "failed": "illegal_transition",
        "reconciled_failed": "failed",
        "unknown": "dup",
    },
}


@pytest.mark.parametrize(("state", "what"), list(itertools.product(WAYS, STEPS)))
def test_d19_every_step_from_every_state(state: str, what: str) -> None:
    """D19, L3 to L5: the first final status stays; again is a duplicate; another is already_final."""
    inbox = Inbox().ok(intended("op"), *[STEPS[name]() for name in WAYS[state]])
    before = inbox.states()["op"]
    ruling = inbox.send(STEPS[what]())
    final = state in ("done", "failed", "denied")
    expected = TABLE[state].get(what, "already_final" if final else "?")
    if expected == "dup":
        assert duplicate(ruling), ruling
        assert inbox.states()["op"] == before
    elif expected in ("illegal_transition", "already_final"):
        assert rejected(ruling, expected), ruling
        assert inbox.states()["op"] == before
    else:
        assert inbox.states()["op"] == expected


def test_a_call_that_needs_approval_does_not_start_without_it() -> None:
    inbox = Inbox().ok(intended("op", approval_required=True))
    assert rejected(inbox.send(step("ToolCallStarted", "op")), "illegal_transition")
    inbox.ok(
        step("ToolCallApproved", "op"), step("ToolCallStarted", "op", holder="w7", lease_ms=500, fencing=9)
    )
    row = rows(inbox)[0]
    assert (row["state"], row["holder"], row["fencing"], row["attempt"]) == ("started", "w7", 9, 1)
    assert row["lease_until_ms"] == inbox.session.time_ms + 500


def test_steps_of_a_call_nobody_asked_for_are_refused() -> None:
    inbox = Inbox().ok(message("u"))
    for name in ("request", "approve", "deny", "start", "unknown"):
        assert rejected(inbox.send(STEPS[name]()), "unknown_call")


def test_d19_a_result_message_against_a_final_row() -> None:
    """A message that says another status is refused; one that shows a denial is taken once."""
    inbox = asked(call("c1"))
    inbox.ok(message("t1", "tool", [result("c1")]))
    assert rejected(inbox.send(message("t2", "tool", [result("c1", is_error=True)])), "already_final")
    assert duplicate(inbox.send(message("t3", "tool", [result("c1", "again")])), 3)

    inbox = asked(call("c1", operation_id="op"))
    inbox.ok(intended("op", "c1"), step("ToolCallDenied", "op", reason="not today"))
    assert rejected(inbox.send(message("t0", "tool", [result("c1")])), "already_final")
    inbox.ok(message("t1", "tool", [result("c1", "denied", is_error=True)]))
    assert inbox.states() == {"op": "denied"}
    assert inbox.recent == ["u", "a", "t1"]
    assert duplicate(inbox.send(message("t2", "tool", [result("c1", "denied", is_error=True)])))


def test_a_message_does_not_resolve_an_unknown_outcome() -> None:
    """L3: the transcript may say so, the row waits for evidence; then nothing is shown twice."""
    inbox = asked(call("c1", operation_id="op"))
    inbox.ok(intended("op", "c1"), step("ToolCallStarted", "op"), step("ToolCallOutcomeUnknown", "op"))
    inbox.ok(message("t1", "tool", [result("c1", "outcome unknown", is_error=True)]))
    assert inbox.states() == {"op": "unknown"}
    assert inbox.session.open_calls == 1
    inbox.ok(outcome("op", "c1", "it had run", reconciled=True))
    assert inbox.states() == {"op": "done"}
    assert inbox.recent == ["u", "a", "t1"]


def test_one_message_may_hold_several_results() -> None:
    inbox = asked(call("c1"), call("c2"))
    inbox.ok(message("t", "tool", [result("c1"), result("c2", "bad", is_error=True)]))
    assert [(r["state"], r["is_error"]) for r in rows(inbox)] == [("done", False), ("done", True)]
    assert inbox.session.recent[-1].answers == (2,)


def test_a_tool_outside_the_conversation_is_a_row_and_nothing_in_the_context() -> None:
    """An agent's own call: no message asked for it, so its result has no place in the conversation."""
    inbox = Inbox().ok(message("u"), intended("op"), step("ToolCallStarted", "op"), outcome("op", body="7"))
    assert inbox.recent == ["u"]
    row = rows(inbox)[0]
    assert (row["state"], row["result_summary"], row["result_seq"]) == ("done", "7", 4)


def test_results_in_a_user_message_belong_to_the_group_before_it() -> None:
    """The Anthropic shape: results in a user message do not begin a turn."""
    inbox = Inbox().ok(
        event("SessionOpened", window_messages=3),
        message("u1"),
        message("a1", "assistant", [call("c1")]),
        message("r1", "user", [result("c1")]),
        message("a2", "assistant"),
        message("u2"),
    )
    assert inbox.recent == ["u2"]
    assert inbox.states() == {"@3.0": "done"}


# --- L7: bounds --------------------------------------------------------------------------------------------


def test_l7_open_calls_are_bounded_and_never_dropped() -> None:
    inbox = Inbox()
    for i in range(OPEN_CALLS_MAX):
        inbox.ok(intended(f"op{i}"))
    assert rejected(inbox.send(intended("one too many")), "too_many_open_calls")
    inbox.ok(outcome("op0"))
    inbox.ok(intended("now"))
    assert inbox.session.open_calls == OPEN_CALLS_MAX


def test_l7_final_rows_go_oldest_first() -> None:
    inbox = Inbox()
    for i in range(CLOSED_CALLS_MAX + 10):
        inbox.ok(intended(f"op{i}"), outcome(f"op{i}"))
    assert list(inbox.states()) == [f"op{i}" for i in range(10, CLOSED_CALLS_MAX + 10)]


def test_l7_transcript_calls_whose_message_is_gone_make_room() -> None:
    """A long import with calls that were never answered is not refused."""
    inbox = Inbox()
    inbox.check = False
    for i in range(OPEN_CALLS_MAX * 2):
        inbox.ok(message(f"u{i}"), message(f"a{i}", "assistant", [call(f"c{i}")]))
    assert inbox.session.open_calls <= OPEN_CALLS_MAX


def test_l7_the_ledgers_bytes_are_bounded_with_the_longest_ids() -> None:
    def longest(prefix: str) -> str:
        return (prefix + "é" * 200)[:0] + prefix + "x" * (256 - len(prefix))

    inbox = Inbox()
    inbox.check = False
    for i in range(OPEN_CALLS_MAX):
        inbox.ok(
            intended(
                longest(f"o{i}."),
                longest(f"c{i}."),
                longest("tool"),
                message_id=longest("m"),
                arguments='"' + "a" * 4000 + '"',
                effect="e" * 32,
            )
        )
        inbox.ok(step("ToolCallStarted", longest(f"o{i}."), holder=longest("h")))
        inbox.ok(step("ToolCallOutcomeUnknown", longest(f"o{i}."), reason="r" * 2000))
    session = inbox.session
    assert session.open_calls == OPEN_CALLS_MAX
    assert session.calls_bytes <= TOOLS_BYTES_MAX
    encode_snapshot(session)


def test_the_ledger_survives_the_round_trip() -> None:
    """Every field of a row, in every state, is read back as it was: the rest folds the same."""
    inbox = asked(call("c1", operation_id="o1"), call("c2"))
    inbox.ok(
        intended("o1", "c1", approval_required=True),
        step("ToolCallApproved", "o1"),
        step("ToolCallStarted", "o1"),
        step("ToolCallOutcomeUnknown", "o1", reason="timeout"),
        intended("o3"),
        step("ToolCallApprovalRequested", "o3"),
        message("t", "tool", [result("c2")]),
        outcome("o9", None),
    )
    entries = inbox.entries()
    whole = fold_bytes(entries)
    for cut in range(1, len(entries)):
        prefix = decode_session(fold_bytes(entries[:cut]))
        assert fold_bytes(entries[cut:], prefix) == whole


def test_an_outcome_repeated_beyond_every_memory_but_its_message_is_a_duplicate() -> None:
    """Goal: the message made from a tool event is held once, although its row has left the ledger and the
    event's id the window of ids (found by hypothesis under tight limits)."""
    inbox = asked(call("c1"))
    answer = encode_envelope(inbox.envelope(*outcome(None, "c1"), event_id="r1"))
    inbox.put(answer)
    for number in range(CLOSED_CALLS_MAX + 1):
        inbox.ok(intended(f"op{number}"), outcome(f"op{number}", None))
    for number in range(DEDUP_EVENT_IDS_MAX):
        inbox.ok(event("FactSet", name="n", value=str(number)))
    assert "@r1" in inbox.session.held
    assert "@2.0" not in inbox.session.calls
    assert duplicate(inbox.put(answer), 3)
