"""K1, K3, N8: what is armed, and what happens when the worker proposes to look."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core import Accepted
from refold.core.policystate import SessionPolicy
from refold.core.runstate import Run
from refold.core.session import Session
from refold.core.timers import _notices_until, next_deadline, notice_ms
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import Inbox, check_state, duplicate, event, message
from .runkit import MINUTE_MS, begun, done, fired, held, later, leased, run_of, run_started

DAY_MS = 24 * 3600 * 1000


def armed(inbox: Inbox) -> int | None:
    """How far ahead of session time the armed deadline is."""
    session = inbox.session
    return session.timer_ms - session.time_ms if session.timer_ms else None


def with_policy(policy: SessionPolicy) -> Inbox:
    """A session whose policy was set; the event that sets it is not a subject of these tests."""
    inbox = Inbox().ok(message("u"))
    inbox.session.policy = policy
    inbox.session.enc_tail = None
    return inbox.ok(event("FactSet", name="f", value="1"))


def test_k1_what_is_earliest_is_armed_and_fires_early_rather_than_moves() -> None:
    inbox = Inbox().ok(message("u"))
    assert armed(inbox) is None
    inbox.ok(run_started())
    assert armed(inbox) == 15_000
    first = inbox.session.timer_ms
    inbox.ok(leased(lease_ms=MINUTE_MS))
    assert inbox.session.timer_ms == first, "later than what is armed: it stays"
    inbox.ok(begun(heartbeat_ms=2_000))
    assert armed(inbox) == 2_000
    inbox.ok(done())
    assert armed(inbox) == 1_000, "nothing is due then any more, but it stays"
    assert isinstance(later(inbox, 1_000).send(fired()), Accepted)
    assert inbox.session.timer_ms == run_of(inbox).lease_until_ms, "and arms anew"
    inbox.ok(held("RunCompleted"))
    assert armed(inbox) is None


def test_k1_a_plain_message_moves_nothing() -> None:
    inbox = Inbox().ok(run_started())
    before = inbox.session.timer_ms
    inbox.ok(message("u"), message("a", "assistant"))
    assert inbox.session.timer_ms == before


def test_k3_the_timer_is_a_repeat_until_something_is_due_whoever_sends_it() -> None:
    assert duplicate(Inbox().send(fired()))
    assert duplicate(Inbox().ok(message("u")).send(fired()))
    inbox = Inbox().ok(run_started())
    assert duplicate(inbox.send(fired()))
    later(inbox, 20_000)
    same = {"event_id": "timer/1/x", "producer_id": "p", "producer_epoch": 1, "producer_counter": 1}
    assert isinstance(inbox.send(fired(), **same), Accepted)
    assert duplicate(inbox.send(fired(), **same))
    assert inbox.session.producers == {}
    later(inbox, 40_000)
    assert isinstance(inbox.send(fired(), **same), Accepted), "in no memory of ids"
    assert run_of(inbox).notices == 2


def test_k3_everything_due_happens_in_the_order_of_the_deadlines() -> None:
    inbox = Inbox().ok(run_started("x"), leased(run_id="x", lease_ms=5_000))
    inbox.ok(begun(run_id="x", heartbeat_ms=1_000))
    inbox.ok(run_started("y"), leased(run_id="y", lease_ms=5_000), begun(run_id="y", heartbeat_ms=9_000))
    inbox.ok(run_started("z"))
    later(inbox, MINUTE_MS).ok(fired())
    reasons = {run_id: (run.state, run.reason) for run_id, run in inbox.session.runs.items()}
    assert reasons == {"x": ("ready", "heartbeat"), "y": ("ready", "timed_out"), "z": ("ready", "new")}
    assert run_of(inbox, "y").steps["a"].state == "running", "its lease was over before its heartbeat was"
    assert run_of(inbox, "z").notices == 2
    assert next_deadline(inbox.session) == inbox.session.timer_ms > inbox.session.time_ms


def test_n8_a_run_nobody_takes_is_announced_ever_less_often() -> None:
    run = Run("r", "a", 1, 0)
    times = []
    for count in range(9):
        run.notices = count
        times.append(notice_ms(run) // 1000)
    gaps = [b - a for a, b in zip([0, *times], times, strict=False)]
    assert gaps == [15, 30, 60, 120, 240, 300, 300, 300, 300]


@given(st.integers(0, 40), st.integers(0, 10**8))
@settings(max_examples=200, deadline=None)
def test_n8_notices_that_were_missed_count_as_one(count: int, more_ms: int) -> None:
    """After the timer the next notice is in the future, and the last one was not."""
    run = Run("r", "a", 1, 1_000)
    run.notices = count
    now = notice_ms(run) + more_ms
    run.notices = _notices_until(run, now)
    assert notice_ms(run) > now
    run.notices -= 1
    assert notice_ms(run) <= now
    assert run.notices >= count


def test_n8_in_the_fold() -> None:
    inbox = Inbox().ok(run_started())
    later(inbox, 5 * MINUTE_MS).ok(fired())
    assert run_of(inbox).notices == 4
    inbox.ok(leased(), held("RunReleased"))
    assert run_of(inbox).notices == 0


def test_a_quarantined_session_has_no_deadline_and_what_was_due_happens_afterwards() -> None:
    inbox = Inbox().ok(run_started(), leased(lease_ms=MINUTE_MS))
    inbox.ok(event("SessionQuarantined", code="x", reason="y", partition=0, offset=0))
    assert armed(inbox) is None
    later(inbox, 5 * MINUTE_MS)
    assert duplicate(inbox.send(fired())), "not parked: it would be again every five seconds"
    inbox.ok(event("SessionReleased"))
    assert duplicate(inbox.send(fired()))
    inbox.ok(event("SessionReleaseFinished"))
    assert inbox.session.timer_ms < inbox.session.time_ms
    inbox.ok(fired())
    assert run_of(inbox).reason == "timed_out"


def test_a_closed_sessions_leases_still_end() -> None:
    inbox = Inbox().ok(run_started("x"), run_started("y"), leased(run_id="y"), event("SessionClosed"))
    later(inbox, 2 * MINUTE_MS).ok(fired())
    assert run_of(inbox, "y").state == "ready"
    assert (armed(inbox), run_of(inbox, "x").notices) == (None, 0), "nobody may take them: no notices"
    inbox.ok(event("SessionReopened"))
    assert armed(inbox) is not None


@pytest.mark.parametrize("action", ["close", "delete"])
def test_o5_an_idle_session_ends(action: str) -> None:
    inbox = with_policy(SessionPolicy(ttl_ms=DAY_MS, ttl_action=action))  # type: ignore[arg-type]
    assert armed(inbox) == DAY_MS
    later(inbox, DAY_MS).ok(fired())
    if action == "close":
        assert (inbox.session.status, inbox.session.status_seq) == ("closed", 3)
        assert armed(inbox) is None
        assert encode_snapshot(decode_session(encode_snapshot(inbox.session)))
    else:
        assert not inbox.session.exists
        assert (inbox.session.timer_ms, inbox.session.timer_seq, inbox.session.policy) == (0, 0, None)
        inbox.ok(message("again"))
        assert inbox.session.seq == 1


def test_o5_messages_keep_a_session_alive_without_moving_its_timer() -> None:
    inbox = with_policy(SessionPolicy(ttl_ms=DAY_MS))
    first = inbox.session.timer_ms
    later(inbox, DAY_MS // 2).ok(message("m"))
    spoken = inbox.session.time_ms
    assert inbox.session.timer_ms == first
    later(inbox, DAY_MS // 2).ok(fired())
    assert inbox.session.status == "open"
    assert inbox.session.timer_ms == spoken + DAY_MS


def test_o5_the_timers_own_events_are_no_sign_of_life() -> None:
    """Notices of a run that nobody takes, every five minutes: the session is idle all the same."""
    inbox = with_policy(SessionPolicy(ttl_ms=DAY_MS)).ok(run_started())
    spoken = inbox.session.time_ms
    for _ in range(400):
        inbox.clock = max(inbox.clock, inbox.session.timer_ms)
        assert isinstance(inbox.send(fired()), Accepted)
        if inbox.session.status == "closed":
            break
        check_state(inbox.session)
    assert inbox.session.status == "closed"
    assert 0 <= inbox.session.time_ms - spoken - DAY_MS <= 2_000


def test_k1_is_the_earliest_of_all() -> None:
    """``next_deadline`` against a sum written out by hand."""
    inbox = Inbox().ok(run_started("x"), leased(run_id="x", lease_ms=70_000))
    inbox.ok(begun(run_id="x", heartbeat_ms=65_000))
    session: Session = inbox.session
    run = session.runs["x"]
    assert run.lease_until_ms is not None
    assert next_deadline(session) == run.steps["a"].heartbeat_until_ms
    inbox.ok(done(run_id="x"))
    assert next_deadline(session) == run.lease_until_ms
    inbox.ok(held("RunReleased", run_id="x"))
    assert next_deadline(session) == run.ready_ms + 15_000
    session.policy = SessionPolicy(ttl_ms=1)
    assert next_deadline(session) == session.time_ms + 1
