"""N4 to N7: steps of a run, their attempts, and what makes their outputs hold no more."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core import Accepted, limits
from refold.core.runstate import STEP_STATES

from .build import Inbox, duplicate, event, rejected
from .runkit import (
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


def taken(*steps: Item) -> Inbox:
    return Inbox().ok(run_started(), leased(), *steps)


#: Step a in each state, attempt 1; epoch 1 is over in "running before".
STEPS = {
    "none": lambda: taken(),
    "pending": lambda: taken(held("PlanSet", steps=[{"step_id": "a", "name": "a"}])),
    "running": lambda: taken(begun()),
    "running before": lambda: taken(begun(), held("RunReleased"), leased(2)),
    "completed": lambda: taken(begun(), done()),
    "failed": lambda: taken(begun(), step_failed()),
    "invalid": lambda: taken(begun(), done(), invalidated("a")),
    "stale": lambda: taken(begun(effect="external"), done(), invalidated("a")),
}
#: N4: which start is accepted from there; every other attempt is refused.
NEXT = {
    "none": 1,
    "pending": 1,
    "running": None,
    "running before": 1,
    "completed": None,
    "failed": 2,
    "invalid": 2,
    "stale": None,
}


def test_every_state_is_in_the_table() -> None:
    assert set(STEP_STATES) <= set(STEPS)


@pytest.mark.parametrize("attempt", [0, 1, 2, 3])
@pytest.mark.parametrize("state", STEPS)
def test_n4_the_attempt_a_step_starts_with(state: str, attempt: int) -> None:
    inbox = STEPS[state]()
    epoch = run_of(inbox).epoch
    ruling = inbox.send(begun(attempt=attempt, epoch=epoch))
    if attempt == NEXT[state]:
        assert isinstance(ruling, Accepted)
        step = step_of(inbox)
        assert (step.state, step.attempt, step.epoch) == ("running", attempt, epoch)
        assert (step.output, step.output_digest, step.error_code) == (None, None, None)
    elif state == "running" and attempt == 1:
        assert duplicate(ruling)
    else:
        assert rejected(ruling, "already_final" if state == "completed" else "illegal_transition")


def test_n4_a_step_that_may_run_again_starts_from_stale() -> None:
    inbox = STEPS["stale"]().ok(begun(attempt=2, effect="external", rerunnable=True))
    assert step_of(inbox).rerunnable
    approved = STEPS["stale"]().ok(invalidated("a", approved=True))
    assert step_of(approved).state == "invalid"
    approved.ok(begun(attempt=2, effect="external"))


#: The same outcome of the same attempt.
AGAIN = (("completed", "complete"), ("invalid", "complete"), ("stale", "complete"), ("failed", "fail"))


@pytest.mark.parametrize("state", STEPS)
@pytest.mark.parametrize("name", ["complete", "fail", "heartbeat"])
def test_an_outcome_is_of_a_step_that_runs_under_the_lease(state: str, name: str) -> None:
    inbox = STEPS[state]()
    epoch = run_of(inbox).epoch
    item = {
        "complete": done(epoch=epoch),
        "fail": step_failed(epoch=epoch),
        "heartbeat": held("StepHeartbeat", epoch, step_id="a", attempt=1),
    }[name]
    ruling = inbox.send(item)
    if state == "running":
        assert isinstance(ruling, Accepted)
    elif state == "none":
        assert rejected(ruling, "unknown_step")
    elif state == "running before":
        assert rejected(ruling, "stale_holder"), "its outcome is not known to this holder"
    elif (state, name) in AGAIN:
        assert duplicate(ruling, 4)
    else:
        assert rejected(ruling, "illegal_transition")


def test_another_outcome_of_the_same_attempt_is_refused() -> None:
    inbox = STEPS["completed"]()
    assert rejected(inbox.send(done(output=b"2")), "already_final")
    assert rejected(STEPS["running"]().send(done(attempt=2)), "stale_holder")


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_n5_a_step_is_tried_again_as_often_as_the_run_says(retries: int) -> None:
    inbox = Inbox().ok(run_started(retries_max=retries), leased())
    for attempt in range(1, retries + 2):
        inbox.ok(begun(attempt=attempt), step_failed(attempt=attempt))
    assert run_of(inbox).state == "review"
    assert step_of(inbox).failures == retries + 1


def test_n5_what_is_not_retryable_goes_to_the_review_at_once() -> None:
    inbox = running().ok(step_failed(retryable=False))
    assert run_of(inbox).state == "review"
    assert rejected(inbox.send(begun(attempt=2)), "stale_holder")


def test_a_completed_step_has_its_failures_forgiven() -> None:
    inbox = running().ok(step_failed(), begun(attempt=2), done(attempt=2))
    assert step_of(inbox).failures == 0
    inbox.ok(invalidated("a"))
    for attempt in (3, 4):
        inbox.ok(begun(attempt=attempt), step_failed(attempt=attempt))
    assert run_of(inbox).state == "leased"


def test_the_output_of_a_step_is_checked_and_kept() -> None:
    inbox = running()
    assert rejected(inbox.send(done(output_digest="0" * 64)), "digest_mismatch")
    assert rejected(inbox.send(done(output_digest="")), "bad_value")
    assert rejected(inbox.send(done(reads={"a": b"1"})), "bad_value")
    assert rejected(inbox.send(done(reads={f"s{n}": b"" for n in range(33)})), "too_large")
    inbox.ok(done(output_digest=digest(b"1"), summary="s" * 600))
    step = step_of(inbox)
    assert (step.output, step.output_digest, step.output_seq) == (b"1", digest(b"1"), 4)
    assert step.summary == "s" * limits.RUN_SUMMARY_BYTES_MAX


def test_an_output_too_long_for_the_row_is_in_the_journal() -> None:
    long = b"x" * (limits.RUN_INLINE_BYTES_MAX + 1)
    step = step_of(running().ok(done(output=long)))
    assert (step.output, step.output_digest, step.output_seq) == (None, digest(long), 4)
    nothing = step_of(running().ok(done(output=None)))
    assert (nothing.output, nothing.output_digest, nothing.state) == (None, None, "completed")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"step_id": ""}, "bad_id"),
        ({"step_id": "x" * 129}, "bad_id"),
        ({"name": ""}, "bad_id"),
        ({"effect": "huge"}, "bad_value"),
        ({"heartbeat_ms": -1}, "bad_value"),
        ({"inputs": [{"name": "n", "digest": ""}]}, "bad_value"),
        ({"inputs": [{"name": "", "digest": "d"}]}, "bad_id"),
        ({"inputs": [{"name": "n", "digest": "d"}] * 17}, "too_large"),
    ],
)
def test_a_step_that_cannot_start(fields: dict[str, Any], code: str) -> None:
    assert rejected(taken().send(begun(**{"step_id": "a", **fields})), code)


# --- the plan --------------------------------------------------------------------------------------------


def planned(*names: str) -> Item:
    return held("PlanSet", steps=[{"step_id": n, "name": n.upper(), "summary": f"do {n}"} for n in names])


def test_a_plan_puts_pending_rows_behind_what_was_started() -> None:
    inbox = taken(planned("a", "b", "c"), begun("b"), done("b"))
    assert list(run_of(inbox).steps) == ["b", "a", "c"]
    assert [s.state for s in run_of(inbox).steps.values()] == ["completed", "pending", "pending"]
    assert step_of(inbox, "a").summary == "do a"
    assert step_of(inbox, "b").summary is None
    inbox.ok(planned("d", "b", "c"))
    assert list(run_of(inbox).steps) == ["b", "d", "c"], "not started and not planned any more: gone"
    assert duplicate(inbox.send(planned("d", "b", "c")))
    assert rejected(inbox.send(planned("d", "d")), "bad_value")
    assert rejected(inbox.send(planned(*[f"s{n}" for n in range(64)])), "runs_full")
    inbox.ok(begun("new"))
    assert list(run_of(inbox).steps) == ["b", "new", "d", "c"]


def test_the_sixty_fifth_step_is_refused() -> None:
    inbox = taken()
    inbox.check = False
    for number in range(limits.RUN_STEPS_MAX):
        inbox.ok(begun(f"s{number}"), done(f"s{number}", output=None))
    assert rejected(inbox.send(begun("one more")), "runs_full")


# --- N6: invalidation --------------------------------------------------------------------------------------


def chain(**effects: str) -> Inbox:
    """a is read by b, b by c; d has read nothing."""
    reads = {"b": {"a": b"1"}, "c": {"b": b"1"}}
    inbox = taken()
    for step_id in "abcd":
        extra: dict[str, Any] = {"effect": effects[step_id]} if step_id in effects else {}
        inbox.ok(begun(step_id, **extra), done(step_id, reads=reads.get(step_id, {})))
    return inbox


def states(inbox: Inbox) -> str:
    return " ".join(f"{s.step_id}:{s.state}" for s in run_of(inbox).steps.values())


def test_n6_all_makes_everything_that_read_it_invalid_at_once() -> None:
    inbox = chain().ok(invalidated("a", mode="all"))
    assert states(inbox) == "a:invalid b:invalid c:invalid d:completed"


def test_n6_by_digest_follows_the_outputs() -> None:
    inbox = chain().ok(invalidated("a"))
    assert states(inbox) == "a:invalid b:completed c:completed d:completed"
    same = inbox.ok(begun("a", attempt=2), done("a", b"1", attempt=2))
    assert states(same) == "a:completed b:completed c:completed d:completed", (
        "the same output: nothing follows"
    )


def test_n6_by_digest_another_output_reaches_direct_readers_then_theirs() -> None:
    inbox = chain().ok(invalidated("a"), begun("a", attempt=2), done("a", b"2", attempt=2))
    assert states(inbox) == "a:completed b:invalid c:completed d:completed"
    again: dict[str, Any] = {"attempt": 2, "reads": {"a": b"2"}}
    same = chain().ok(invalidated("a"), begun("a", attempt=2), done("a", b"2", attempt=2))
    same.ok(begun("b", attempt=2), done("b", b"1", **again))
    assert states(same) == "a:completed b:completed c:completed d:completed"
    inbox.ok(begun("b", attempt=2), done("b", b"9", **again))
    assert states(inbox) == "a:completed b:completed c:invalid d:completed"


def test_n6_an_effect_outside_is_not_made_twice_by_itself() -> None:
    inbox = chain(b="external", c="idempotent").ok(invalidated("a", mode="all"))
    assert states(inbox) == "a:invalid b:stale c:invalid d:completed"
    assert rejected(inbox.send(begun("b", attempt=2)), "illegal_transition")
    assert duplicate(inbox.send(invalidated("b"))), "stale already"
    inbox.ok(invalidated("b", approved=True), begun("b", attempt=2, effect="external"))


def test_n6_named_steps_need_approval_their_readers_are_stale_all_the_same() -> None:
    inbox = chain(a="external", b="external").ok(invalidated("a", mode="all", approved=True))
    assert states(inbox) == "a:invalid b:stale c:invalid d:completed"
    plain = chain(a="external").ok(invalidated("a"))
    assert states(plain) == "a:stale b:completed c:completed d:completed"


def test_n6_a_rerunnable_step_with_an_effect_is_invalid() -> None:
    inbox = taken(begun(effect="external", rerunnable=True), done(), invalidated("a"))
    assert step_of(inbox).state == "invalid"


def test_n6_a_step_that_completes_with_reads_of_the_past_is_invalid_at_once() -> None:
    """It ran while what it had read changed."""
    inbox = taken(begun("a"), done("a"), begun("b"), invalidated("a"), begun("a", attempt=2))
    inbox.ok(done("a", b"2", attempt=2), done("b", reads={"a": b"1"}))
    assert states(inbox) == "a:completed b:invalid"
    late = taken(
        begun("a"), done("a"), begun("b", effect="external"), invalidated("a"), begun("a", attempt=2)
    )
    late.ok(done("a", b"2", attempt=2), done("b", reads={"a": b"1"}))
    assert states(late) == "a:completed b:stale"


def test_n6_what_runs_under_the_lease_is_left_alone() -> None:
    assert duplicate(running().send(invalidated("a")))
    gone = running(effect="external").ok(held("RunReleased"), invalidated("a"))
    assert step_of(gone).state == "stale", "nobody knows whether it had its effect"


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (invalidated("nowhere"), "unknown_step"),
        (invalidated("a", "nowhere"), "unknown_step"),
        (invalidated(), "bad_value"),
        (invalidated("a", mode="some"), "bad_value"),
        (invalidated("a", run_id="r9"), "unknown_run"),
    ],
)
def test_n6_an_invalidation_that_names_nothing(item: Item, code: str) -> None:
    assert rejected(chain().send(item), code)


# --- N7: heartbeats ------------------------------------------------------------------------------------


def beating() -> Inbox:
    inbox = Inbox().ok(run_started(), leased(lease_ms=10**9))
    return inbox.ok(begun(heartbeat_ms=5_000))


def test_n7_a_silent_step_fails_and_frees_its_run() -> None:
    inbox = later(beating(), 10_000).ok(fired())
    run, step = run_of(inbox), step_of(inbox)
    assert (step.state, step.error_code, step.failures) == ("failed", "heartbeat", 1)
    assert (run.state, run.reason, run.avoid, run.holder) == ("ready", "heartbeat", "h1", None)
    assert rejected(inbox.send(done()), "stale_holder")
    inbox.ok(leased(2))
    assert run.avoid is None
    inbox.ok(begun(attempt=2, epoch=2))


def test_n7_a_heartbeat_is_a_sign_of_life() -> None:
    inbox = beating()
    for _ in range(5):
        later(inbox, 3_000).ok(held("StepHeartbeat", step_id="a", attempt=1))
        assert duplicate(inbox.send(fired())) or step_of(inbox).state == "running"
    assert step_of(inbox).state == "running"


def test_n7_a_step_silent_too_often_goes_to_the_review() -> None:
    inbox = Inbox().ok(run_started(retries_max=1), leased(lease_ms=10**9), begun(heartbeat_ms=1_000))
    later(inbox, 5_000).ok(fired(), leased(2, lease_ms=10**9), begun(attempt=2, epoch=2, heartbeat_ms=1_000))
    later(inbox, 5_000).ok(fired())
    assert (run_of(inbox).state, run_of(inbox).error_code) == ("review", "heartbeat")


def test_n7_nobody_is_listened_for_without_a_lease() -> None:
    """A step under a lease that is over is the next holder's to begin again, at the same attempt."""
    inbox = beating().ok(held("RunReleased"))
    assert step_of(inbox).heartbeat_until_ms is None
    later(inbox, 10_000).ok(leased(2))
    assert step_of(inbox).heartbeat_until_ms is None
    assert (step_of(inbox).state, step_of(inbox).failures) == ("running", 0)
    inbox.ok(begun(epoch=2, heartbeat_ms=5_000))
    assert step_of(inbox).heartbeat_until_ms == inbox.session.time_ms + 5_000


def test_two_steps_of_a_run_at_once() -> None:
    """One fails for good: the other's outcome is not taken any more, and it starts again as it was."""
    inbox = taken(begun("a"), begun("b"), step_failed("a", retryable=False))
    assert rejected(inbox.send(done("b")), "stale_holder")
    inbox.ok(event("RunResolved", run_id="r", action="retry"), leased(2), begun("b", epoch=2))
    assert step_of(inbox, "b").attempt == 1
