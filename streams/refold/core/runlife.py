"""What the events of runs and steps do to a run's row in common: who may speak, room, and the ways out of a
lease.

N2  A run is leased to one holder at a time; ``epoch`` is the fencing number and rises with every take. What a
    holder says carries both; whoever is not the holder any more is ``stale_holder`` and changes nothing.
N5  A step that failed for good sends its run to the review.
"""

from __future__ import annotations

from refold.core.limits import (
    DIGEST_BYTES_MAX,
    ENDED_RUNS_MAX,
    ERROR_CODE_BYTES_MAX,
    RUN_ERROR_BYTES_MAX,
    RUN_NAME_BYTES_MAX,
    RUN_SUMMARY_BYTES_MAX,
    RUNS_BYTES_MAX,
)
from refold.core.messages import bad_id
from refold.core.rulings import Rejected
from refold.core.run_events import HolderEvent
from refold.core.run_sizes import (
    STEP_OUTCOME_BYTES,
    clip_to,
    kept_inline,
    kept_ref,
    ref_bytes,
    resize,
    text_bytes,
)
from refold.core.runstate import BlobRef, Run, RunReason, RunState, Step
from refold.core.session import Session
from refold.core.texts import clip

_HEX = frozenset("0123456789abcdef")


# --- decide --------------------------------------------------------------------------------------------


def bad_name(value: str, name: str) -> Rejected | None:
    """A name in a run's row: an id of at most RUN_NAME_BYTES_MAX bytes."""
    wrong = bad_id(value, name)
    if wrong is None and len(value.encode()) > RUN_NAME_BYTES_MAX:
        return Rejected("bad_id", f"{name} is longer than {RUN_NAME_BYTES_MAX} bytes")
    return wrong


def bad_step(value: str, name: str) -> Rejected | None:
    """As :func:`bad_name`, for ids and names of steps: they may begin with an @, the fold makes none."""
    return bad_name(value[1:] if value[:1] == "@" else value, name)


def bad_digest(digest: str | None, name: str) -> Rejected | None:
    if digest is None or 0 < len(digest.encode()) <= DIGEST_BYTES_MAX:
        return None
    return Rejected("bad_value", f"{name} must have 1 to {DIGEST_BYTES_MAX} bytes")


def bad_ref(ref: BlobRef | None, name: str) -> Rejected | None:
    if ref is None:
        return None
    if len(ref.sha256) != 64 or not _HEX.issuperset(ref.sha256) or ref.length < 0:
        return Rejected("bad_value", f"{name} must have a length and a SHA-256, 64 hex digits in lower case")
    return None


def ended(run: Run) -> Rejected:
    return Rejected("already_final", f"the run is {run.state} since seq {run.updated_seq}")


def rule_holder(run: Run, event: HolderEvent) -> Rejected | None:
    """N2. A lease that is over still counts while nobody has taken the run (N3)."""
    if not run.is_open:
        return ended(run)
    if run.state == "leased" and (event.holder, event.epoch) == (run.holder, run.epoch):
        return None
    return Rejected("stale_holder", f"the run is {run.state} at epoch {run.epoch}, the lease is another's")


# --- room ----------------------------------------------------------------------------------------------


def running(run: Run) -> list[Step]:
    return [step for step in run.steps.values() if step.state == "running"]


def free_bytes(session: Session) -> int:
    """What is left of RUNS_BYTES_MAX when every running step has what its end may need."""
    held = sum([len(running(run)) for run in session.runs.values()])
    return RUNS_BYTES_MAX - session.runs_bytes - held * STEP_OUTCOME_BYTES


def _ended_runs(session: Session) -> list[Run]:
    """The one that ended first comes first."""
    return sorted((r for r in session.runs.values() if not r.is_open), key=lambda run: run.updated_seq)


def rule_room(session: Session, needed: int) -> Rejected | None:
    """Rows of ended runs may go for it."""
    spare = sum([run.size for run in session.runs.values() if not run.is_open])
    if needed <= free_bytes(session) + spare:
        return None
    return Rejected("runs_full", f"the session's runs would have more than {RUNS_BYTES_MAX} bytes")


def make_room(session: Session, needed: int) -> None:
    for run in _ended_runs(session):
        if needed <= free_bytes(session):
            return
        drop(session, run)


def drop(session: Session, run: Run) -> None:
    del session.runs[run.run_id]
    session.runs_bytes -= run.size
    session.enc_runs = session.enc_tail = None


def keep_result(
    session: Session,
    run: Run,
    row: Run | Step,
    output: bytes | None,
    ref: BlobRef | None,
    summary: str | None,
) -> None:
    """Put into a row what there is room for, the summary first: briefs are made of it, and the journal has
    the output. The row is counted without them."""
    free = free_bytes(session)
    row.summary = clip_to(summary, RUN_SUMMARY_BYTES_MAX, free)
    free -= text_bytes(row.summary)
    row.output_ref = kept_ref(ref)
    if ref_bytes(row.output_ref) > free:
        row.output_ref = None
    free -= ref_bytes(row.output_ref)
    row.output = kept_inline(output)
    if row.output is not None and len(row.output) > free:
        row.output = None
    if isinstance(row, Step):
        resize(session, run, row)
    else:
        resize(session, run)


def keep_input(session: Session, run: Run, given: bytes | None, ref: BlobRef | None) -> None:
    """As :func:`keep_result`, for what the run was started with."""
    free = free_bytes(session)
    run.input_ref = kept_ref(ref)
    if ref_bytes(run.input_ref) > free:
        run.input_ref = None
    run.input = kept_inline(given)
    if run.input is not None and len(run.input) > free:
        run.input = None
    resize(session, run)


# --- evolve --------------------------------------------------------------------------------------------


def _leave_lease(run: Run) -> list[Step]:
    """Nobody holds the run: no step of it is listened for. Returns the steps that changed."""
    run.holder = run.lease_until_ms = None
    changed = [step for step in run.steps.values() if step.heartbeat_until_ms is not None]
    for step in changed:
        step.heartbeat_until_ms = None
    return changed


def make_ready(
    session: Session, run: Run, reason: RunReason, seq: int, time_ms: int, avoid: str | None = None
) -> None:
    """Whoever satisfies the pin may take it."""
    changed = _leave_lease(run)
    run.state = "ready"
    run.reason = reason
    run.avoid = avoid
    run.notices = 0
    run.ready_ms = time_ms
    run.waiting_for = ()
    run.updated_seq = seq
    resize(session, run, *changed)


def suspend(session: Session, run: Run, waiting_for: tuple[str, ...], seq: int) -> None:
    changed = _leave_lease(run)
    run.state = "waiting"
    run.waiting_for = waiting_for
    run.updated_seq = seq
    resize(session, run, *changed)


def to_review(session: Session, run: Run, code: str, error: str | None, seq: int) -> None:
    """N5: a person decides how it goes on."""
    changed = _leave_lease(run)
    run.state = "review"
    run.error_code = clip(code, ERROR_CODE_BYTES_MAX)
    run.error = clip(error, RUN_ERROR_BYTES_MAX)
    run.updated_seq = seq
    resize(session, run, *changed)


def end(session: Session, run: Run, state: RunState, seq: int) -> None:
    """The run is over: its steps go, the journal has them. The one that ended first leaves where there are
    more than ENDED_RUNS_MAX."""
    run.holder = run.lease_until_ms = run.avoid = None
    run.state = state
    run.waiting_for = ()
    run.steps = {}
    run.updated_seq = seq
    resize(session, run)
    over = _ended_runs(session)
    for old in over[: max(0, len(over) - ENDED_RUNS_MAX)]:
        drop(session, old)
