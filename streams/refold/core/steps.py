"""Steps of a run: the plan, starts, outcomes, heartbeats. The caller has asked whether the holder may speak.

::

    (none) | pending --> running --> completed --> invalid --> running      (N6; attempt + 1)
                          |   ^           `------> stale  --> running      only where it may run again
                          v   |
                         failed   attempt + 1, while failures <= retries_max, else the run's review (N5)

N4  A step starts with attempt 1. ``running`` under an older epoch starts again with the same attempt: its
    outcome is not known. After ``failed``, ``invalid`` and ``stale`` it is known: attempt + 1. A repeat under
    the same epoch and attempt is a duplicate.
N5  A failure that is not retryable, or one more than ``retries_max`` since the step was last completed or a
    person said retry: the run goes to the review.
N7  A running step that is silent for ``heartbeat_ms`` fails by the timer (:mod:`refold.core.timers`).
"""

from __future__ import annotations

from hashlib import sha256

from refold.core.invalidation import completed_anew
from refold.core.limits import (
    ERROR_CODE_BYTES_MAX,
    LEASE_MS_MAX,
    RUN_ERROR_BYTES_MAX,
    RUN_STEPS_MAX,
    RUN_SUMMARY_BYTES_MAX,
    STEP_INPUTS_MAX,
    STEP_READS_MAX,
)
from refold.core.rulings import Duplicate, Rejected
from refold.core.run_events import PlanSet, StepCompleted, StepEvent, StepFailed, StepHeartbeat, StepStarted
from refold.core.run_sizes import (
    STEP_OUTCOME_BYTES,
    clip_to,
    pair_bytes,
    resize,
    size_step,
    text_bytes,
)
from refold.core.runlife import (
    bad_digest,
    bad_name,
    bad_ref,
    bad_step,
    free_bytes,
    keep_result,
    make_room,
    rule_room,
    to_review,
)
from refold.core.runstate import STEP_EFFECTS, Run, Step
from refold.core.session import Session
from refold.core.texts import clip

# --- decide --------------------------------------------------------------------------------------------


def rule_step_event(session: Session, run: Run, event: StepEvent) -> Duplicate | Rejected | None:
    if isinstance(event, StepStarted):
        return _rule_started(session, run, event)
    step = run.steps.get(event.step_id)
    if step is None:
        return Rejected("unknown_step", "the run has no step with this id")
    if isinstance(event, StepCompleted):
        return _rule_completed(session, run, step, event)
    if isinstance(event, StepFailed) and not event.code:
        return Rejected("bad_value", "code is empty: say why the step failed")
    if isinstance(event, StepFailed) and step.state == "failed" and _is_of(step, event):
        return Duplicate(step.updated_seq)
    return _rule_running(step, event)


def _is_of(step: Step, event: StepEvent) -> bool:
    return (step.attempt, step.epoch) == (event.attempt, event.epoch)


def _rule_running(step: Step, event: StepEvent) -> Rejected | None:
    if step.state != "running":
        return Rejected("illegal_transition", f"the step is {step.state} since seq {step.updated_seq}")
    if _is_of(step, event):
        return None
    return Rejected(
        "stale_holder", f"the step is at attempt {step.attempt}, started under epoch {step.epoch}"
    )


def _rule_started(session: Session, run: Run, event: StepStarted) -> Duplicate | Rejected | None:
    wrong = bad_step(event.step_id, "step_id") or bad_step(event.name, "the step's name")
    if wrong is not None:
        return wrong
    if event.effect not in STEP_EFFECTS:
        return Rejected("bad_value", "effect must be none, idempotent or external")
    if not 0 <= event.heartbeat_ms <= LEASE_MS_MAX:
        return Rejected("bad_value", f"heartbeat_ms must be 0 to {LEASE_MS_MAX}")
    if len(event.inputs) > STEP_INPUTS_MAX:
        return Rejected("too_large", f"a step has at most {STEP_INPUTS_MAX} inputs")
    for name, digest in event.inputs:
        wrong = bad_name(name, "an input's name") or bad_digest(digest, "an input's digest")
        if wrong is not None:
            return wrong
    step = run.steps.get(event.step_id)
    found = _rule_attempt(run, step, event)
    if found is not None:
        return found
    if step is None and len(run.steps) >= RUN_STEPS_MAX:
        return Rejected("runs_full", f"the run has {RUN_STEPS_MAX} steps, the limit")
    return rule_room(session, _start_needs(step, event))


def _rule_attempt(run: Run, step: Step | None, event: StepStarted) -> Duplicate | Rejected | None:
    """N4."""
    if step is None or step.state == "pending":
        due = 1
    elif step.state == "running":
        if step.epoch == event.epoch:
            if step.attempt == event.attempt:
                return Duplicate(step.updated_seq)
            return Rejected("illegal_transition", f"attempt {step.attempt} is running")
        due = step.attempt
    elif step.state == "completed":
        return Rejected("already_final", f"the step is completed since seq {step.updated_seq}")
    elif step.state == "stale" and not (step.rerunnable or event.rerunnable):
        return Rejected("illegal_transition", "the step is stale: its effect has happened, approve it first")
    elif step.state == "failed" and step.failures > run.retries_max:
        return Rejected("illegal_transition", f"the step failed {step.failures} times, the run's limit")
    else:
        due = step.attempt + 1
    if event.attempt == due:
        return None
    return Rejected("illegal_transition", f"the step's next attempt is {due}, not {event.attempt}")


def _start_needs(step: Step | None, event: StepStarted) -> int:
    """Bytes that the start adds, with what is held free for the step's end."""
    new = _started(step, event, 0, 0).size
    if step is None:
        return new + STEP_OUTCOME_BYTES
    return new - step.size + (0 if step.state == "running" else STEP_OUTCOME_BYTES)


def _digest_of(event: StepCompleted) -> str | None:
    if event.output_digest is not None:
        return event.output_digest
    if event.output is not None:
        return sha256(event.output).hexdigest()
    return None if event.output_ref is None else event.output_ref.sha256


def _rule_completed(
    session: Session, run: Run, step: Step, event: StepCompleted
) -> Duplicate | Rejected | None:
    if step.state in ("completed", "invalid", "stale") and _is_of(step, event) and step.output_seq:
        if step.output_digest == _digest_of(event):
            return Duplicate(step.output_seq)
        return Rejected("already_final", f"the attempt is completed since seq {step.output_seq}")
    wrong = (
        _rule_running(step, event)
        or bad_ref(event.output_ref, "output_ref")
        or bad_digest(event.output_digest, "output_digest")
    )
    if wrong is not None:
        return wrong
    if event.output is not None and _digest_of(event) != sha256(event.output).hexdigest():
        return Rejected("digest_mismatch", "output_digest is not the SHA-256 of the output's bytes")
    if len(event.reads) > STEP_READS_MAX:
        return Rejected("too_large", f"a step reads at most {STEP_READS_MAX} others")
    for step_id, digest in event.reads:
        wrong = bad_step(step_id, "a step that was read") or bad_digest(digest, "the digest of a read")
        if wrong is not None:
            return wrong
        if step_id == step.step_id:
            return Rejected("bad_value", "a step cannot read its own output")
    needed = text_bytes(_digest_of(event)) + pair_bytes(event.reads) - STEP_OUTCOME_BYTES
    return rule_room(session, needed)


def rule_plan(session: Session, run: Run, event: PlanSet) -> Duplicate | Rejected | None:
    seen: set[str] = set()
    for planned in event.steps:
        wrong = bad_step(planned.step_id, "step_id") or bad_step(planned.name, "the step's name")
        if wrong is not None:
            return wrong
        if planned.step_id in seen:
            return Rejected("bad_value", "the plan names a step twice")
        seen.add(planned.step_id)
    steps = _planned(run, event, 0)
    if len(steps) > RUN_STEPS_MAX:
        return Rejected("runs_full", f"the run would have {len(steps)} steps, the limit is {RUN_STEPS_MAX}")
    same = [(s.step_id, s.name, s.summary) for s in steps.values()]
    if same == [(s.step_id, s.name, s.summary) for s in run.steps.values()]:
        return Duplicate(0)
    size = sum([step.size for step in run.steps.values()])
    return rule_room(session, sum([step.size for step in steps.values()]) - size)


# --- evolve --------------------------------------------------------------------------------------------


def apply_step_event(session: Session, run: Run, seq: int, time_ms: int, event: StepEvent) -> None:
    if isinstance(event, StepStarted):
        old = run.steps.get(event.step_id)
        make_room(session, _start_needs(old, event))
        new = _started(old, event, seq, time_ms)
        if old is None or old.state == "pending":
            # Started ones stand first, in the order they were started; then what is planned.
            others = [step for step in run.steps.values() if step is not old]
            begun = [step for step in others if step.state != "pending"]
            planned = [step for step in others if step.state == "pending"]
            run.steps = {step.step_id: step for step in (*begun, new, *planned)}
        else:
            run.steps[event.step_id] = new
        resize(session, run, new)
        return
    step = run.steps[event.step_id]
    step.updated_seq = seq
    if isinstance(event, StepHeartbeat):
        step.heartbeat_until_ms = time_ms + step.heartbeat_ms if step.heartbeat_ms else None
        resize(session, run, step)
    elif isinstance(event, StepCompleted):
        _apply_completed(session, run, step, seq, event)
    elif isinstance(event, StepFailed):
        fail_step(session, run, step, seq, event.code, event.error, event.retryable)


def _started(old: Step | None, event: StepStarted, seq: int, time_ms: int) -> Step:
    """The row of a step that starts, counted."""
    step = Step(event.step_id, event.name, seq)
    step.state = "running"
    step.attempt = event.attempt
    step.epoch = event.epoch
    step.effect = STEP_EFFECTS[STEP_EFFECTS.index(event.effect)]
    step.rerunnable = event.rerunnable
    step.inputs = event.inputs
    step.heartbeat_ms = event.heartbeat_ms
    step.heartbeat_until_ms = time_ms + event.heartbeat_ms if event.heartbeat_ms else None
    step.started_seq = seq
    if old is not None:
        step.failures = old.failures
        step.started_seq = old.started_seq or seq
    size_step(step)
    return step


def _apply_completed(session: Session, run: Run, step: Step, seq: int, event: StepCompleted) -> None:
    make_room(session, text_bytes(_digest_of(event)) + pair_bytes(event.reads) - STEP_OUTCOME_BYTES)
    step.state = "completed"
    step.failures = 0
    step.heartbeat_until_ms = None
    step.output_digest = _digest_of(event)
    step.output_seq = seq
    step.reads = event.reads
    step.error_code = step.error = None
    changed = completed_anew(run, step, seq)
    resize(session, run, step, *changed)
    keep_result(session, run, step, event.output, event.output_ref, event.summary)


def fail_step(
    session: Session, run: Run, step: Step, seq: int, code: str, error: str | None, retryable: bool
) -> bool:
    """The attempt failed. Returns whether the run went to the review (N5)."""
    step.state = "failed"
    step.failures += 1
    step.heartbeat_until_ms = None
    step.updated_seq = seq
    step.error_code = clip(code, ERROR_CODE_BYTES_MAX)
    step.error = None
    resize(session, run, step)
    step.error = clip_to(error, RUN_ERROR_BYTES_MAX, free_bytes(session))
    resize(session, run, step)
    if retryable and step.failures <= run.retries_max:
        return False
    to_review(session, run, code, error, seq)
    return True


def _planned(run: Run, event: PlanSet, seq: int) -> dict[str, Step]:
    """The run's steps under the plan: what was started, then what is planned and was not."""
    steps = {step_id: step for step_id, step in run.steps.items() if step.state != "pending"}
    for planned in event.steps:
        if planned.step_id in steps:
            continue
        step = Step(planned.step_id, planned.name, seq)
        step.summary = clip(planned.summary, RUN_SUMMARY_BYTES_MAX)
        size_step(step)
        steps[planned.step_id] = step
    return steps


def apply_plan(session: Session, run: Run, seq: int, event: PlanSet) -> None:
    steps = _planned(run, event, seq)
    size = sum([step.size for step in run.steps.values()])
    make_room(session, sum([step.size for step in steps.values()]) - size)
    run.steps = steps
    resize(session, run)
