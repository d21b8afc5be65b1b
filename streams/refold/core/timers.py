"""Deadlines of a session, and what happens when the worker proposes to look at them.

K1  ``next_deadline``: the earliest of the lease ends of leased runs, the next notices of ready runs, the
    heartbeats of running steps, and the end of the session's idle time. After every event that may move one
    ``timer_ms`` is 0 where there is none; the deadline where nothing is armed or it is earlier than what is;
    else it stays: it fires early and arms anew. So a session that is written to all the time does not move
    its row all the time. After ``TimerFired`` it is the next deadline.
K3  ``TimerFired`` is accepted from anybody when session time has reached ``timer_ms``: then everything that
    is due happens, in the order of the deadlines. Else it is a duplicate. It is in no memory of ids: the
    same deadline may be armed, and proposed, twice.

N3  The end of a lease makes its run ready (timed_out).
N7  A step that was silent for too long fails; its run is ready (heartbeat), better for another holder.
N8  A ready run that nobody took is announced again after 15 s, then 30, 60 … at most 300 s.

A session that is quarantined or being released has no deadline: its state may be wrong. What is due then
happens when it is released.
"""

from __future__ import annotations

from typing import Final

from refold.core.limits import NOTICE_FIRST_MS, NOTICE_LAST_MS
from refold.core.rulings import Duplicate
from refold.core.run_sizes import resize
from refold.core.runlife import make_ready, running
from refold.core.runstate import Run
from refold.core.session import Session
from refold.core.steps import fail_step

HEARTBEAT: Final = "heartbeat"
"""Error code of a step whose holder fell silent."""

#: How often the wait for the next notice doubles until it is NOTICE_LAST_MS: 15, 30, 60, 120, 240 s.
_DOUBLED: Final = 5
_DOUBLED_MS: Final = NOTICE_FIRST_MS * ((1 << _DOUBLED) - 1)


def notice_ms(run: Run) -> int:
    """Session time of the next notice of a ready run."""
    done = run.notices + 1
    if done <= _DOUBLED:
        return run.ready_ms + NOTICE_FIRST_MS * ((1 << done) - 1)
    return run.ready_ms + _DOUBLED_MS + NOTICE_LAST_MS * (done - _DOUBLED)


def _notices_until(run: Run, time_ms: int) -> int:
    """How many notices a ready run has had at ``time_ms``, those counted as one that were missed."""
    waited = time_ms - run.ready_ms
    if waited >= _DOUBLED_MS:
        return _DOUBLED + (waited - _DOUBLED_MS) // NOTICE_LAST_MS
    # 15 * (2^n - 1) <= waited
    return (waited // NOTICE_FIRST_MS + 1).bit_length() - 1


def idle_since(session: Session) -> int:
    """Session time of the last event that was not the timer's own."""
    return session.idle_since_ms if session.timer_seq == session.seq else session.time_ms


def _deadlines(session: Session) -> list[tuple[int, str, str]]:
    """(when, what, run id) of everything that is going to happen by itself. Ties go by the name of what."""
    found: list[tuple[int, str, str]] = []
    if session.status in ("quarantined", "releasing"):
        return found
    for run_id, run in session.runs.items():
        if run.state == "leased":
            if run.lease_until_ms is not None:
                found.append((run.lease_until_ms, "lease", run_id))
            ends = [s.heartbeat_until_ms for s in running(run) if s.heartbeat_until_ms is not None]
            if ends:
                found.append((min(ends), "heartbeat", run_id))
        elif run.state == "ready" and session.status == "open":
            found.append((notice_ms(run), "notice", run_id))
    policy = session.policy
    if policy is not None and policy.ttl_ms and (session.status == "open" or policy.ttl_action == "delete"):
        found.append((idle_since(session) + policy.ttl_ms, "ttl", ""))
    return found


def next_deadline(session: Session) -> int | None:
    """K1: session time at which something is due, None where nothing ever is."""
    found = _deadlines(session)
    return min(found)[0] if found else None


def rule_timer(session: Session, now_ms: int) -> Duplicate | None:
    """K3. ``now_ms``: session time if the event is accepted."""
    armed = session.timer_ms
    if armed and now_ms >= armed and session.status in ("open", "closed"):
        return None
    return Duplicate(0)


def before_timer(session: Session, seq: int) -> None:
    """Before session time moves to that of event ``seq``, which is TimerFired: since when it is idle."""
    if session.timer_seq != session.seq:
        session.idle_since_ms = session.time_ms
    session.timer_seq = seq
    session.enc_tail = None


def apply_timer(session: Session, seq: int, time_ms: int) -> None:
    """Everything that is due happens. What it makes happen later is never due at once."""
    while True:
        due = [item for item in _deadlines(session) if item[0] <= time_ms]
        if not due:
            return
        _, what, run_id = min(due)
        if what == "ttl":
            _end_idle(session, seq)
        else:
            _happen(session, session.runs[run_id], what, seq, time_ms)


def _happen(session: Session, run: Run, what: str, seq: int, time_ms: int) -> None:
    if what == "lease":
        make_ready(session, run, "timed_out", seq, time_ms)
    elif what == "notice":
        run.notices = _notices_until(run, time_ms)
        run.updated_seq = seq
        resize(session, run)
    else:
        holder = run.holder
        silent = [s for s in running(run) if (s.heartbeat_until_ms or time_ms + 1) <= time_ms]
        # All that are silent; the first one that has failed for good sends the run to the review (N5).
        reviewed = [fail_step(session, run, step, seq, HEARTBEAT, None, True) for step in silent]
        if not any(reviewed):
            make_ready(session, run, "heartbeat", seq, time_ms, avoid=holder)


def _end_idle(session: Session, seq: int) -> None:
    policy = session.policy
    if policy is not None and policy.ttl_action == "delete":
        session.clear()
        return
    session.status = "closed"
    session.status_seq = seq
    session.enc_memory = None


def rearm(session: Session, fired: bool) -> None:
    """K1, after an event. ``fired``: it was TimerFired, or what ends a quarantine."""
    deadline = next_deadline(session)
    armed = session.timer_ms
    if deadline is None:
        armed = 0
    elif not armed or fired or deadline < armed:
        armed = deadline
    if armed != session.timer_ms:
        session.timer_ms = armed
        session.enc_tail = None
