"""N: who may run an agent's code in a session, and until when (docs/concepts/runs.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.core import Accepted, limits
from refold.core.reviews import RUN_REVIEW, item_of, waiting
from refold.core.runstate import RUN_REASONS, RUN_STATES
from refold.core.work import may_change_work, work_changes, work_items
from refold.wire.events import decode_event
from refold.wire.snapshot import decode_snapshot, encode_snapshot

from .build import Inbox, duplicate, event, intended, message, outcome, rejected, result, step
from .runkit import (
    MINUTE_MS,
    Item,
    begun,
    digest,
    done,
    fired,
    held,
    invalidated,
    later,
    leased,
    run_of,
    run_started,
    running,
    step_failed,
    step_of,
)


def waiting_run() -> Inbox:
    """Suspended on one call that waits for approval and one whose outcome is unknown."""
    inbox = Inbox().ok(run_started(), leased(), intended("op1"), intended("op2"))
    inbox.ok(step("ToolCallApprovalRequested", "op1"))
    inbox.ok(step("ToolCallStarted", "op2"), step("ToolCallOutcomeUnknown", "op2"))
    return inbox.ok(held("RunSuspended", waiting_for=["op1", "op2"]))


def reviewed() -> Inbox:
    return running().ok(step_failed(retryable=False))


#: A session with run r in each state.
STATES: dict[str, Callable[[], Inbox]] = {
    "none": lambda: Inbox().ok(message("u")),
    "ready": lambda: Inbox().ok(run_started()),
    "leased": lambda: Inbox().ok(run_started(), leased()),
    "waiting": waiting_run,
    "review": reviewed,
    "completed": lambda: Inbox().ok(run_started(), leased(), held("RunCompleted", output=b"1")),
    "failed": lambda: Inbox().ok(run_started(), leased(), held("RunFailed", code="x")),
    "stopped": lambda: Inbox().ok(run_started(), event("RunStopped", run_id="r")),
}

EVENTS: dict[str, Item] = {
    "start": run_started(),
    "take": leased(1),
    "take next": leased(2),
    "renew": leased(1),
    "release": held("RunReleased", reason="x"),
    "complete": held("RunCompleted", output=b"2"),
    "fail": held("RunFailed", code="y"),
    "stop": event("RunStopped", run_id="r"),
    "retry": event("RunResolved", run_id="r", action="retry"),
    "give up": event("RunResolved", run_id="r", action="fail"),
    "pin": event("RunPinMoved", run_id="r", pin="v9"),
    "plan": held("PlanSet", steps=[{"step_id": "p", "name": "p"}]),
    "step": begun("b"),
    "invalidate": invalidated("a"),
}

OK, DUP = "accepted", "duplicate"
FINAL = "already_final"

#: Ruling by state, in the order of EVENTS.
TABLE: dict[str, dict[str, str]] = {
    "none": {"start": OK, "stop": "unknown_run", "*": "unknown_run"},
    "ready": {
        "start": DUP, "take": OK, "renew": OK, "take next": "stale_holder", "stop": OK, "pin": OK,
        "retry": "illegal_transition", "give up": "illegal_transition", "invalidate": "unknown_step",
        "*": "stale_holder",
    },
    "leased": {
        "start": DUP, "take": OK, "renew": OK, "take next": "lease_held", "release": OK, "complete": OK,
        "fail": OK, "stop": OK, "retry": "illegal_transition", "give up": "illegal_transition",
        "pin": "lease_held", "plan": OK, "step": OK, "invalidate": "unknown_step",
    },
    "waiting": {
        "start": DUP, "take": "stale_holder", "renew": "stale_holder", "take next": "illegal_transition",
        "stop": OK, "retry": "illegal_transition", "give up": "illegal_transition", "pin": OK,
        "invalidate": "unknown_step", "*": "stale_holder",
    },
    "review": {
        "start": DUP, "take": "stale_holder", "renew": "stale_holder", "take next": "illegal_transition",
        "stop": OK, "retry": OK, "give up": OK, "pin": OK, "invalidate": DUP, "*": "stale_holder",
    },
    "completed": {"start": DUP, "*": FINAL},
    "failed": {"start": DUP, "give up": DUP, "*": FINAL},
    "stopped": {"start": DUP, "stop": DUP, "*": FINAL},
}  # fmt: skip


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_every_event_from_every_state(state: str, name: str) -> None:
    """The state machine, complete: each event is accepted, a repeat or refused with its code, and nothing
    that is refused changes the state (the inbox checks that)."""
    inbox = STATES[state]()
    ruling = inbox.send(EVENTS[name])
    expected = TABLE[state].get(name, TABLE[state].get("*"))
    found = OK if isinstance(ruling, Accepted) else DUP if duplicate(ruling) else ruling.code  # type: ignore[union-attr]
    assert found == expected


def test_the_states_are_those_of_the_table_and_the_page() -> None:
    assert set(STATES) - {"none"} == set(RUN_STATES)
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "runs.md").read_text(encoding="utf-8")
    assert [s for s in (*RUN_STATES, *RUN_REASONS) if not re.search(rf"`{s}`", page)] == []


# --- beginning -----------------------------------------------------------------------------------------


def test_a_run_is_ready_when_it_begins_and_known_by_its_content() -> None:
    inbox = Inbox().ok(run_started(input=b'{"n":1}', pin="v2", retries_max=1, title="T"))
    run = run_of(inbox)
    assert (run.state, run.reason, run.pin, run.retries_max, run.epoch) == ("ready", "new", "v2", 1, 0)
    assert (run.input, run.input_digest) == (b'{"n":1}', digest(b'{"n":1}'))
    assert duplicate(inbox.send(run_started(input=b'{"n":1}', retries_max=1)), 1)
    for other in ({"input": b"2"}, {"agent": "other"}, {"retries_max": 2}):
        fields: dict[str, Any] = {"input": b'{"n":1}', "retries_max": 1} | other
        assert rejected(inbox.send(run_started(**fields)), "conflict")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"run_id": ""}, "bad_id"),
        ({"run_id": "a#b"}, "bad_id"),
        ({"run_id": "@r"}, "bad_id"),
        ({"run_id": "x" * 129}, "bad_id"),
        ({"agent": ""}, "bad_id"),
        ({"pin": ""}, "bad_id"),
        ({"retries_max": 3}, "bad_value"),
        ({"retries_max": -1}, "bad_value"),
        ({"input": b"1", "input_ref": {"sha256": "a" * 64}}, "bad_value"),
        ({"input_ref": {"sha256": "A" * 64}}, "bad_value"),
        ({"input_ref": {"sha256": "a" * 64, "length": -1}}, "bad_value"),
    ],
)
def test_a_run_that_cannot_begin(fields: dict[str, Any], code: str) -> None:
    if "input_ref" in fields:
        ref = {"uri": "file:///x", "length": 1, "media_type": "text/plain", "field": "data"}
        fields = {**fields, "input_ref": {**ref, **fields["input_ref"]}}
    assert rejected(Inbox().send(run_started(**fields)), code)


def test_four_runs_are_open_and_four_that_ended_are_kept() -> None:
    inbox = Inbox()
    for number in range(limits.OPEN_RUNS_MAX):
        inbox.ok(run_started(f"o{number}"))
    assert rejected(inbox.send(run_started("one more")), "runs_full")
    for number in range(6):
        inbox.ok(event("RunStopped", run_id=f"o{number}"), run_started(f"o{number + 4}"))
    states = {run_id: run.state for run_id, run in inbox.session.runs.items()}
    assert [r for r, state in states.items() if state == "stopped"] == ["o2", "o3", "o4", "o5"]
    assert len(states) == limits.OPEN_RUNS_MAX + limits.ENDED_RUNS_MAX
    # Its row is gone, and with it the knowledge that it ever was.
    inbox.ok(event("RunStopped", run_id="o6"), run_started("o0"))


def test_an_input_too_long_for_the_row_is_in_the_journal() -> None:
    long = b"x" * (limits.RUN_INLINE_BYTES_MAX + 1)
    run = run_of(Inbox().ok(message("u"), run_started(input=long)))
    assert (run.input, run.input_digest, run.started_seq) == (None, digest(long), 2)


# --- N2, N3: leases ------------------------------------------------------------------------------------


def test_n2_a_take_raises_the_epoch_and_pins_the_version() -> None:
    inbox = Inbox().ok(run_started(), leased())
    run = run_of(inbox)
    assert (run.state, run.epoch, run.holder, run.version, run.pin) == ("leased", 1, "h1", "v1", "v1")
    assert run.lease_until_ms == inbox.session.time_ms + MINUTE_MS
    assert rejected(inbox.send(leased(2)), "lease_held")
    assert rejected(inbox.send(leased(1, holder="other")), "stale_holder")
    assert rejected(inbox.send(leased(3)), "stale_holder")


def test_n2_a_second_taker_of_the_same_epoch_is_too_late() -> None:
    inbox = Inbox().ok(run_started())
    first, second = inbox.send(leased(1, holder="a")), inbox.send(leased(1, holder="b"))
    assert isinstance(first, Accepted)
    assert rejected(second, "stale_holder")


@pytest.mark.parametrize(
    ("pin", "version", "accepts", "code"),
    [
        ("v1", "v1", [], None),
        ("v1", "v2", [], "pin_mismatch"),
        ("v1", "v2", ["v0", "v1"], None),
        ("v1", "v2", ["v0"], "pin_mismatch"),
        (None, "v2", [], None),
        (None, "", [], "bad_id"),
        (None, "v2", ["v"] * 17, "too_large"),
    ],
)
def test_a_pinned_run_is_taken_by_who_accepts_its_version(
    pin: str | None, version: str, accepts: list[str], code: str | None
) -> None:
    ruling = Inbox().ok(run_started(pin=pin)).send(leased(version=version, accepts=accepts))
    assert isinstance(ruling, Accepted) if code is None else rejected(ruling, code)


def test_a_pin_stays_with_who_accepts_it_and_moves_by_an_event() -> None:
    inbox = Inbox().ok(run_started(pin="v1"), leased(version="v2", accepts=["v1"]))
    assert (run_of(inbox).pin, run_of(inbox).version) == ("v1", "v2")
    inbox.ok(held("RunReleased"), event("RunPinMoved", run_id="r", pin="v3"))
    assert duplicate(inbox.send(event("RunPinMoved", run_id="r", pin="v3")))
    assert rejected(inbox.send(leased(2, version="v2")), "pin_mismatch")
    inbox.ok(event("RunPinMoved", run_id="r", pin=None), leased(2, version="v4"))
    assert run_of(inbox).pin == "v4"


def test_n3_the_end_of_a_lease_changes_nothing_by_itself() -> None:
    """Its holder renews, and goes on, while nobody has taken the run."""
    inbox = later(running(), 2 * MINUTE_MS)
    inbox.ok(done(), leased(1), begun("b"), done("b"))
    later(inbox, 2 * MINUTE_MS).ok(leased(2))
    assert run_of(inbox).holder == "h2"
    assert rejected(inbox.send(leased(1)), "stale_holder")
    assert rejected(inbox.send(held("RunCompleted")), "stale_holder")


def test_n3_the_timer_makes_the_run_ready_and_its_holder_stale() -> None:
    inbox = later(running(), 2 * MINUTE_MS).ok(fired())
    run = run_of(inbox)
    assert (run.state, run.reason, run.holder, run.epoch) == ("ready", "timed_out", None, 1)
    for item in (leased(1), done(), held("RunReleased"), held("RunCompleted"), begun("b")):
        assert rejected(inbox.send(item), "stale_holder")
    inbox.ok(leased(2))


def test_a_lease_of_no_length_is_over_at_once() -> None:
    inbox = Inbox().ok(run_started(), leased(lease_ms=0), leased(2, lease_ms=0), leased(3))
    assert run_of(inbox).epoch == 3


@pytest.mark.parametrize("lease_ms", [-1, limits.LEASE_MS_MAX + 1])
def test_a_lease_has_a_sensible_length(lease_ms: int) -> None:
    assert rejected(Inbox().ok(run_started()).send(leased(lease_ms=lease_ms)), "bad_value")


# --- suspending, ending ----------------------------------------------------------------------------------


def test_a_suspended_run_is_ready_when_none_of_its_calls_waits() -> None:
    inbox = waiting_run()
    assert (run_of(inbox).state, run_of(inbox).waiting_for) == ("waiting", ("op1", "op2"))
    inbox.ok(step("ToolCallApproved", "op1"))
    assert run_of(inbox).state == "waiting"
    inbox.ok(outcome("op2", failed=True, reconciled=True))
    run = run_of(inbox)
    assert (run.state, run.reason, run.waiting_for) == ("ready", "review", ())


@pytest.mark.parametrize("ruling", ["ToolCallApproved", "ToolCallDenied"])
def test_a_ruling_on_the_last_call_is_the_reason(ruling: str) -> None:
    inbox = waiting_run().ok(outcome("op2", failed=True, reconciled=True), step(ruling, "op1"))
    assert (run_of(inbox).state, run_of(inbox).reason) == ("ready", "approval")


def test_a_result_in_the_transcript_wakes_the_run_too() -> None:
    """Whatever ends the waiting: also a message that shows the call to have run (L4)."""
    inbox = Inbox().ok(run_started(), leased(), intended("op", "c1"), step("ToolCallApprovalRequested", "op"))
    inbox.ok(held("RunSuspended", waiting_for=["op"]), message("t", "tool", [result("c1")]))
    assert run_of(inbox).state == "ready"


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ([], "bad_value"),
        (["op1", "op1"], "bad_value"),
        ([f"op{n}" for n in range(9)], "bad_value"),
        (["nowhere"], "unknown_call"),
        (["op3"], "illegal_transition"),
    ],
)
def test_only_calls_that_wait_can_be_waited_for(names: list[str], code: str) -> None:
    inbox = Inbox().ok(run_started(), leased(), intended("op1"), step("ToolCallApprovalRequested", "op1"))
    inbox.ok(intended("op3"))
    assert rejected(inbox.send(held("RunSuspended", waiting_for=names)), code)


def test_giving_up_a_lease_twice_is_a_repeat_while_nobody_took_the_run() -> None:
    inbox = Inbox().ok(run_started(), leased(), held("RunReleased"))
    assert duplicate(inbox.send(held("RunReleased")), 3)
    inbox.ok(leased(2))
    assert rejected(inbox.send(held("RunReleased")), "stale_holder")
    assert duplicate(waiting_run().send(held("RunSuspended", waiting_for=["op1", "op2"])))
    assert duplicate(STATES["completed"]().send(held("RunCompleted", output=b"1")), 3)
    assert duplicate(STATES["failed"]().send(held("RunFailed", code="x")), 3)


def test_an_ended_run_has_its_result_and_no_steps() -> None:
    inbox = running().ok(done(), held("RunCompleted", output=b"42", summary="answer"))
    run = run_of(inbox)
    assert (run.state, run.output, run.output_digest, run.summary) == (
        "completed",
        b"42",
        digest(b"42"),
        "answer",
    )
    assert run.steps == {}
    assert rejected(inbox.send(done(attempt=2)), "already_final")


def test_a_stopped_run_says_why() -> None:
    inbox = reviewed().ok(event("RunStopped", run_id="r", reason="not needed"))
    assert (run_of(inbox).state, run_of(inbox).error_code, run_of(inbox).error) == (
        "stopped",
        None,
        "not needed",
    )


def test_a_run_with_a_running_step_does_not_complete() -> None:
    """Nor does it when the step ran under a former lease: nobody knows what came of it. It starts again, or
    is invalidated."""
    inbox = running()
    assert rejected(inbox.send(held("RunCompleted")), "illegal_transition")
    inbox.ok(held("RunReleased"), leased(2))
    assert rejected(inbox.send(held("RunCompleted", 2)), "illegal_transition")
    inbox.ok(invalidated("a"), held("RunCompleted", 2))


# --- N5: the review ------------------------------------------------------------------------------------


def test_n5_a_run_in_the_review_is_tried_again_with_its_failures_forgotten() -> None:
    inbox = Inbox().ok(run_started(), leased())
    for attempt in (1, 2, 3):
        assert run_of(inbox).state == "leased"
        inbox.ok(begun(attempt=attempt), step_failed(attempt=attempt, error="no answer"))
    run = run_of(inbox)
    assert (run.state, run.error_code, run.error, run.holder) == ("review", "boom", "no answer", None)
    inbox.ok(event("RunResolved", run_id="r", action="retry"))
    assert (run.state, run.reason, run.error_code) == ("ready", "review", None)
    assert duplicate(inbox.send(event("RunResolved", run_id="r", action="retry")))
    inbox.ok(leased(2), begun(attempt=4, epoch=2), step_failed(attempt=4, epoch=2))
    assert run_of(inbox).state == "leased"


def test_n5_or_it_fails_for_good() -> None:
    inbox = reviewed().ok(event("RunResolved", run_id="r", action="fail"))
    assert (run_of(inbox).state, run_of(inbox).error_code) == ("failed", "boom")
    assert rejected(reviewed().send(event("RunResolved", run_id="r", action="maybe")), "bad_value")


def test_n5_the_review_list_is_exactly_what_waits() -> None:
    inbox = Inbox().ok(run_started(), leased(), begun())
    assert waiting(inbox.session) == {}
    inbox.ok(step_failed(retryable=False, error="no answer"))
    name = f"{RUN_REVIEW}r"
    assert waiting(inbox.session) == {name: "run"}
    _, decoded = inbox.entries()[-1]
    item = item_of(inbox.session, name, decoded, inbox.session.time_ms, inbox.session.seq)
    assert (item.kind, item.operation_id, item.tool, item.reason) == ("run", "r", "report", "boom: no answer")
    assert (item.attempt, item.intended_seq, item.arguments) == (1, 1, None)
    inbox.ok(event("RunStopped", run_id="r"))
    assert waiting(inbox.session) == {}


# --- N9: a closed session --------------------------------------------------------------------------------


def test_n9_a_closed_session_takes_what_ends_runs_and_nothing_that_begins_one() -> None:
    inbox = running().ok(event("SessionClosed"))
    for item in (run_started("r2"), begun("b"), held("PlanSet", steps=[]), invalidated("a")):
        assert rejected(inbox.send(item), "session_closed")
    assert rejected(inbox.send(event("RunPinMoved", run_id="r", pin="v9")), "session_closed")
    inbox.ok(leased(1), held("StepHeartbeat", step_id="a", attempt=1), done())
    inbox.ok(held("RunReleased"))
    assert rejected(inbox.send(leased(2)), "session_closed")
    inbox.ok(event("SessionReopened"), leased(2), event("SessionClosed"), held("RunCompleted", 2))
    review = reviewed().ok(event("SessionClosed"))
    assert rejected(review.send(event("RunResolved", run_id="r", action="retry")), "session_closed")
    review.ok(event("RunResolved", run_id="r", action="fail"))


def test_a_deleted_session_has_no_runs() -> None:
    inbox = running().ok(event("SessionDeleted"), run_started())
    assert (run_of(inbox).epoch, run_of(inbox).started_seq) == (0, 1)


# --- N1: work ------------------------------------------------------------------------------------------


def announced(inbox: Inbox, item: Item) -> list[tuple[str, str | None, str]]:
    """(name, state, reason) of what the work topic is told with the event."""
    before = work_items(inbox.session)
    could = may_change_work(inbox.session, decode_event(inbox.envelope(*item)))
    inbox.ok(item)
    changes = work_changes(before, inbox.session)
    assert could or not changes, "what cannot change the work has"
    return [(name, None if w is None else w.state, "" if w is None else w.reason) for name, w in changes]


def test_n1_the_work_topic_says_what_there_is_to_do() -> None:
    inbox = Inbox().ok(message("u"))
    assert announced(inbox, run_started()) == [("r", "ready", "new")]
    assert announced(inbox, leased()) == [("r", "leased", "new")]
    assert announced(inbox, leased()) == [], "a renewal is no news"
    assert announced(inbox, begun()) == []
    assert announced(inbox, held("RunReleased")) == [("r", "ready", "released")]
    assert announced(inbox, leased(2)) == [("r", "leased", "released")]
    assert announced(inbox, begun(epoch=2)) == []
    assert announced(inbox, step_failed(epoch=2, retryable=False)) == [("r", "review", "released")]
    assert announced(inbox, event("RunResolved", run_id="r", action="retry")) == [("r", "ready", "review")]
    assert announced(inbox, leased(3)) == [("r", "leased", "review")]
    later(inbox, 2 * MINUTE_MS)
    assert announced(inbox, fired()) == [("r", "ready", "timed_out")]
    assert announced(inbox, message("u2")) == []
    assert announced(inbox, event("SessionClosed")) == [("r", None, "")]
    assert announced(inbox, event("SessionReopened")) == [("r", "ready", "timed_out")]
    assert announced(inbox, event("RunPinMoved", run_id="r", pin="v9")) == [("r", "ready", "timed_out")]
    assert announced(inbox, event("SessionQuarantined", code="x", reason="y", partition=0, offset=0)) == [
        ("r", None, "")
    ]
    assert announced(inbox, event("SessionReleased")) == []
    assert announced(inbox, event("SessionReleaseFinished")) == [("r", "ready", "timed_out")]
    assert announced(inbox, leased(4, version="v9")) == [("r", "leased", "timed_out")]
    assert announced(inbox, held("RunCompleted", 4)) == [("r", None, "")]


def test_n1_a_suspended_run_is_announced_as_waiting_and_a_deleted_one_goes() -> None:
    inbox = Inbox().ok(run_started(), leased(), intended("op"), step("ToolCallApprovalRequested", "op"))
    assert announced(inbox, held("RunSuspended", waiting_for=["op"])) == [("r", "waiting", "new")]
    assert announced(inbox, step("ToolCallApproved", "op")) == [("r", "ready", "approval")]
    assert announced(inbox, event("SessionDeleted")) == [("r", None, "")]


def test_rows_stand_in_the_public_snapshot() -> None:
    ref = {"uri": "file:///o", "sha256": "a" * 64, "length": 9, "media_type": "text/plain", "field": "data"}
    inbox = running(inputs=[{"name": "topic", "digest": "d" * 64}], effect="external", rerunnable=True)
    inbox.ok(done(output=None, output_ref=ref, summary="s", reads={"b": b"x"}))
    row = decode_snapshot(encode_snapshot(inbox.session))["runs"][0]
    assert (row["run_id"], row["state"], row["epoch"]) == ("r", "leased", 1)
    made = row["steps"][0]
    assert made["output_ref"] == ref
    assert made["output_digest"] == "a" * 64
    assert made["reads"] == [{"step_id": "b", "digest": digest(b"x")}]
    assert made["inputs"] == [{"name": "topic", "digest": "d" * 64}]
    assert (made["effect"], made["rerunnable"], made["output_seq"]) == ("external", True, 4)
    assert step_of(inbox).output_seq == 4
