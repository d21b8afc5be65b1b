"""Runs: who may run an agent's code in this session, and until when. docs/concepts/runs.md has the rules.

::

    ready <----> leased ----> completed | failed          RunCompleted, RunFailed
      ^            |   \\
      |            v    v
      |        waiting  review ---> failed                RunSuspended; a step that failed for good (N5)
      |            |      |
      `------------+------'                               as soon as nothing waits any more; RunResolved

    any open state --> stopped                            RunStopped, from anybody

N2  One holder at a time; ``epoch`` is the fencing number (:mod:`refold.core.runlife`).
N3  A lease is session time. Its end alone changes nothing: it makes the run takeable, and the timer makes it
    ready. Its holder may go on until somebody has taken the run.
N9  A closed session takes what ends or releases runs, and nothing that begins one or a step.
"""

from __future__ import annotations

from hashlib import sha256

from refold.core.events import Event, ToolCallApproved, ToolCallDenied
from refold.core.invalidation import invalidate, named
from refold.core.life import is_closed
from refold.core.limits import (
    ERROR_CODE_BYTES_MAX,
    LEASE_MS_MAX,
    OPEN_RUNS_MAX,
    RUN_ACCEPTS_MAX,
    RUN_ERROR_BYTES_MAX,
    RUN_RETRIES_MAX,
    RUN_STEPS_MAX,
    RUN_WAITING_MAX,
)
from refold.core.reviews import review_kind
from refold.core.rulings import Duplicate, Rejected
from refold.core.run_events import (
    HolderEvent,
    PlanSet,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunLeased,
    RunPinMoved,
    RunReleased,
    RunResolved,
    RunStarted,
    RunStopped,
    RunSuspended,
    StepEvent,
    StepInvalidated,
    TimerFired,
)
from refold.core.run_sizes import RUN_ROW_BYTES, resize, text_bytes
from refold.core.runlife import (
    bad_name,
    bad_ref,
    end,
    ended,
    keep_input,
    keep_result,
    make_ready,
    make_room,
    rule_holder,
    rule_room,
    running,
    suspend,
)
from refold.core.runstate import BlobRef, Run
from refold.core.session import Session
from refold.core.steps import apply_plan, apply_step_event, rule_plan, rule_step_event
from refold.core.texts import clip
from refold.core.timers import rearm


def digest_of(value: bytes | None, ref: BlobRef | None) -> str | None:
    if value is not None:
        return sha256(value).hexdigest()
    return None if ref is None else ref.sha256


# --- decide --------------------------------------------------------------------------------------------


def rule_run(session: Session, event: RunEvent, now_ms: int) -> Duplicate | Rejected | None:
    """``now_ms``: session time if the event is accepted."""
    if isinstance(event, RunStarted):
        return _rule_started(session, event)
    run = session.runs.get(event.run_id)
    if run is None:
        return Rejected("unknown_run", "no run with this id is held")
    if isinstance(event, RunLeased):
        return _rule_leased(session, run, event, now_ms)
    if isinstance(event, HolderEvent):
        return _rule_held(session, run, event)
    if isinstance(event, RunStopped):
        if run.state == "stopped":
            return Duplicate(run.updated_seq)
        return None if run.is_open else ended(run)
    if isinstance(event, RunResolved):
        return _rule_resolved(session, run, event)
    if isinstance(event, RunPinMoved):
        return _rule_pin(run, event)
    return _rule_invalidated(run, event)  # type: ignore[arg-type]


def _rule_started(session: Session, event: RunStarted) -> Duplicate | Rejected | None:
    wrong = bad_name(event.run_id, "run_id") or bad_name(event.agent, "agent")
    if wrong is None and event.pin is not None:
        wrong = bad_name(event.pin, "pin")
    wrong = wrong or bad_ref(event.input_ref, "input_ref")
    if wrong is not None:
        return wrong
    if "#" in event.run_id:
        return Rejected("bad_id", "run_id has a #, which separates it from the session in a key")
    if not 0 <= event.retries_max <= RUN_RETRIES_MAX:
        return Rejected("bad_value", f"retries_max must be 0 to {RUN_RETRIES_MAX}")
    if event.input is not None and event.input_ref is not None:
        return Rejected("bad_value", "input and input_ref are both given")
    run = session.runs.get(event.run_id)
    if run is not None:
        asked = (event.agent, digest_of(event.input, event.input_ref), event.retries_max)
        if asked == (run.agent, run.input_digest, run.retries_max):
            return Duplicate(run.started_seq)
        return Rejected("conflict", f"the run id was used for another run at seq {run.started_seq}")
    if sum([run.is_open for run in session.runs.values()]) >= OPEN_RUNS_MAX:
        return Rejected("runs_full", f"{OPEN_RUNS_MAX} runs are open, the limit")
    return rule_room(session, RUN_ROW_BYTES)


def _rule_leased(session: Session, run: Run, event: RunLeased, now_ms: int) -> Rejected | None:
    wrong = bad_name(event.holder, "holder") or bad_name(event.version, "version")
    if wrong is not None:
        return wrong
    if not 0 <= event.lease_ms <= LEASE_MS_MAX:
        return Rejected("bad_value", f"lease_ms must be 0 to {LEASE_MS_MAX}")
    if len(event.accepts) > RUN_ACCEPTS_MAX:
        return Rejected("too_large", f"accepts names more than {RUN_ACCEPTS_MAX} versions")
    if not run.is_open:
        return ended(run)
    if run.state == "leased" and (event.holder, event.epoch) == (run.holder, run.epoch):
        return None
    if event.epoch != run.epoch + 1:
        return Rejected("stale_holder", f"the run is {run.state} at epoch {run.epoch}")
    if run.state == "leased":
        until = run.lease_until_ms
        if until is not None and until > now_ms:
            return Rejected("lease_held", f"epoch {run.epoch} is another's until session time {until}")
    elif run.state != "ready":
        return Rejected("illegal_transition", f"the run is {run.state} since seq {run.updated_seq}")
    if is_closed(session):
        return Rejected("session_closed", "a closed session's runs are not taken any more")
    if run.pin is not None and run.pin != event.version and run.pin not in event.accepts:
        return Rejected("pin_mismatch", "the run is pinned to a version that the taker does not accept")
    return None


def _rule_held(session: Session, run: Run, event: HolderEvent) -> Duplicate | Rejected | None:
    if _repeats(run, event):
        return Duplicate(run.updated_seq)
    wrong = rule_holder(run, event)
    if wrong is not None:
        return wrong
    if isinstance(event, StepEvent):
        return rule_step_event(session, run, event)
    if isinstance(event, PlanSet):
        return rule_plan(session, run, event)
    if isinstance(event, RunSuspended):
        return _rule_suspended(session, event)
    if isinstance(event, RunCompleted):
        if running(run):
            return Rejected("illegal_transition", f"step {running(run)[0].started_seq} is running")
        return bad_ref(event.output_ref, "output_ref")
    if isinstance(event, RunFailed) and not event.code:
        return Rejected("bad_value", "code is empty: say why the run failed")
    return None


def _repeats(run: Run, event: HolderEvent) -> bool:
    """The event that gave up the lease, again: nobody has held the run since."""
    if event.epoch != run.epoch:
        return False
    if isinstance(event, RunCompleted):
        return run.state == "completed" and run.output_digest == digest_of(event.output, event.output_ref)
    if isinstance(event, RunFailed):
        return run.state == "failed" and run.error_code == clip(event.code, ERROR_CODE_BYTES_MAX)
    if isinstance(event, RunReleased):
        return run.state == "ready" and run.reason == "released"
    return isinstance(event, RunSuspended) and run.state == "waiting" and run.waiting_for == event.waiting_for


def _rule_suspended(session: Session, event: RunSuspended) -> Rejected | None:
    names = event.waiting_for
    if not names or len(names) > RUN_WAITING_MAX or len(set(names)) < len(names):
        return Rejected("bad_value", f"waiting_for must name 1 to {RUN_WAITING_MAX} calls, each once")
    for operation_id in names:
        call = session.calls.get(operation_id)
        if call is None:
            return Rejected("unknown_call", "no call with this operation id is held")
        if review_kind(call) is None:
            return Rejected("illegal_transition", f"the call does not wait for anybody, it is {call.state}")
    return rule_room(session, sum([text_bytes(name) for name in names]))


def _rule_resolved(session: Session, run: Run, event: RunResolved) -> Duplicate | Rejected | None:
    if event.action not in ("retry", "fail"):
        return Rejected("bad_value", "action must be retry or fail")
    if run.state != "review":
        repeated = run.reason == "review" and run.state == "ready" if event.action == "retry" else False
        if repeated or (event.action == "fail" and run.state == "failed"):
            return Duplicate(run.updated_seq)
        if not run.is_open:
            return ended(run)
        return Rejected("illegal_transition", f"the run does not wait for a review, it is {run.state}")
    if event.action == "retry" and is_closed(session):
        return Rejected("session_closed", "a closed session's runs are not tried again")
    return None


def _rule_pin(run: Run, event: RunPinMoved) -> Duplicate | Rejected | None:
    wrong = None if event.pin is None else bad_name(event.pin, "pin")
    if wrong is not None:
        return wrong
    if not run.is_open:
        return ended(run)
    if run.pin == event.pin:
        return Duplicate(0)
    if run.state == "leased":
        return Rejected("lease_held", "the run is leased: its holder releases it first, or somebody stops it")
    return None


def _rule_invalidated(run: Run, event: StepInvalidated) -> Duplicate | Rejected | None:
    if event.mode not in ("by_digest", "all"):
        return Rejected("bad_value", "mode must be by_digest or all")
    if not run.is_open:
        return ended(run)
    if not event.steps or len(event.steps) > RUN_STEPS_MAX:
        return Rejected("bad_value", f"steps must name 1 to {RUN_STEPS_MAX} steps")
    if any(step_id not in run.steps for step_id in event.steps):
        return Rejected("unknown_step", "the run has no step with this id")
    return None if named(run, event) else Duplicate(0)


# --- evolve --------------------------------------------------------------------------------------------


def apply_run(session: Session, seq: int, time_ms: int, event: RunEvent) -> None:
    if isinstance(event, RunStarted):
        _apply_started(session, seq, time_ms, event)
        return
    run = session.runs[event.run_id]
    if isinstance(event, StepEvent):
        apply_step_event(session, run, seq, time_ms, event)
    elif isinstance(event, RunLeased):
        _apply_leased(session, run, seq, time_ms, event)
    elif isinstance(event, PlanSet):
        apply_plan(session, run, seq, event)
    elif isinstance(event, RunReleased):
        make_ready(session, run, "released", seq, time_ms)
    elif isinstance(event, RunSuspended):
        make_room(session, sum([text_bytes(name) for name in event.waiting_for]))
        suspend(session, run, event.waiting_for, seq)
    elif isinstance(event, RunCompleted):
        run.output_digest = digest_of(event.output, event.output_ref)
        end(session, run, "completed", seq)
        keep_result(session, run, run, event.output, event.output_ref, event.summary)
    elif isinstance(event, RunFailed):
        run.error_code = clip(event.code, ERROR_CODE_BYTES_MAX)
        run.error = clip(event.error, RUN_ERROR_BYTES_MAX)
        end(session, run, "failed", seq)
    elif isinstance(event, RunStopped):
        run.error_code = None
        run.error = clip(event.reason, RUN_ERROR_BYTES_MAX)
        end(session, run, "stopped", seq)
    elif isinstance(event, RunResolved):
        _apply_resolved(session, run, seq, time_ms, event)
    elif isinstance(event, RunPinMoved):
        run.pin = event.pin
        run.updated_seq = seq
        resize(session, run)
    elif isinstance(event, StepInvalidated):
        resize(session, run, *invalidate(run, event, seq))


def _apply_started(session: Session, seq: int, time_ms: int, event: RunStarted) -> None:
    make_room(session, RUN_ROW_BYTES)
    run = Run(event.run_id, event.agent, seq, time_ms)
    run.pin = event.pin
    run.retries_max = event.retries_max
    run.input_digest = digest_of(event.input, event.input_ref)
    session.runs[event.run_id] = run
    resize(session, run)
    keep_input(session, run, event.input, event.input_ref)


def _apply_leased(session: Session, run: Run, seq: int, time_ms: int, event: RunLeased) -> None:
    run.lease_until_ms = time_ms + event.lease_ms
    if event.epoch == run.epoch:
        # A renewal is no change of the run: what is announced of it stays as it is.
        resize(session, run)
        return
    changed = [step for step in run.steps.values() if step.heartbeat_until_ms is not None]
    for step in changed:
        step.heartbeat_until_ms = None
    run.state = "leased"
    run.epoch = event.epoch
    run.holder = event.holder
    run.version = event.version
    run.avoid = None
    if run.pin is None:
        run.pin = event.version
    run.updated_seq = seq
    resize(session, run, *changed)


def _apply_resolved(session: Session, run: Run, seq: int, time_ms: int, event: RunResolved) -> None:
    if event.action == "fail":
        end(session, run, "failed", seq)
        return
    failed = [step for step in run.steps.values() if step.state == "failed"]
    for step in failed:
        step.failures = 0
    run.error_code = run.error = None
    resize(session, run, *failed)
    make_ready(session, run, "review", seq, time_ms)


def settle(session: Session, seq: int, time_ms: int, event: Event) -> None:
    """After any event that is no plain message: what follows for runs that wait, and for the timer."""
    if session.runs:
        _wake(session, seq, time_ms, event)
    rearm(session, type(event) is TimerFired)


def _wake(session: Session, seq: int, time_ms: int, event: Event) -> None:
    """Runs that waited for calls, and whose calls wait no more, are ready."""
    for run in session.runs.values():
        if run.state != "waiting":
            continue
        calls = [session.calls.get(operation_id) for operation_id in run.waiting_for]
        if all(call is None or review_kind(call) is None for call in calls):
            ruled = isinstance(event, (ToolCallApproved, ToolCallDenied))
            make_ready(session, run, "approval" if ruled else "review", seq, time_ms)
