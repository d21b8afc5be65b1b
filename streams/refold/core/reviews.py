"""What waits for a person, calls and runs: what the review topic holds, as a function of the state.

R1  The transaction that accepts an event after which a call waits writes its ReviewItem; the one after which
    it waits no more (settled, approved, back to intended, or gone with its session) writes the tombstone. The
    same for a run whose step failed for good (N5).

The set of what waits is compared before and after the event, so no way out of a waiting state can be
forgotten: a result from a transcript, a row that gets another operation id, a deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.core.events import (
    Event,
    GenerationFinished,
    MessageAppended,
    SessionDeleted,
    ToolCallApprovalRequested,
    ToolCallCompleted,
    ToolCallIntended,
    ToolCallOutcomeUnknown,
    ToolCallReconciled,
)
from refold.core.limits import ERROR_BYTES_MAX
from refold.core.run_events import RunResolved, RunStopped, StepFailed, TimerFired
from refold.core.runstate import Run
from refold.core.session import Call, Session
from refold.core.texts import clip

ReviewKind: TypeAlias = Literal["unknown", "approval", "run"]

#: Before a run's id where calls are named by their operation ids; no producer's begins with an @.
RUN_REVIEW: Final = "@run/"


class ReviewItem(NamedTuple):
    """A call or a run that waits. ``arguments`` is None when they are too long for the ledger: the journal
    has them at ``intended_seq``. ``since_ms``: session time; ``seq``: of the event that made it wait.

    Of a run (kind ``run``): ``operation_id`` is the run's id, ``tool`` its agent, ``attempt`` the epoch of
    its last lease, ``reason`` code and words of the error, ``intended_seq`` where it was started.
    """

    kind: ReviewKind
    tenant: str
    session: str
    operation_id: str
    call_id: str | None
    tool: str
    arguments: str | None
    attempt: int
    holder: str | None
    reason: str | None
    since_ms: int
    seq: int
    intended_seq: int = 0


def review_kind(call: Call) -> ReviewKind | None:
    """Why the call waits for a person, None when it does not."""
    if call.state == "unknown":
        return "unknown"
    return "approval" if call.state == "awaiting_approval" else None


def waiting(session: Session) -> dict[str, ReviewKind]:
    """Name → why, of every call that waits, in the ledger's order, and every run. A call's name is its
    operation id, a run's is RUN_REVIEW and its id."""
    found: dict[str, ReviewKind] = {}
    for operation_id, call in session.calls.items():
        kind = review_kind(call)
        if kind is not None:
            found[operation_id] = kind
    for run_id, run in session.runs.items():
        if run.state == "review":
            found[RUN_REVIEW + run_id] = "run"
    return found


def may_change_reviews(event: Event) -> bool:
    """False for what cannot make anything wait or stop waiting, so that nothing need be compared."""
    if type(event) is MessageAppended:
        return bool(event.results or event.calls)
    if isinstance(event, GenerationFinished):
        return bool(event.message.results or event.message.calls)
    return isinstance(
        event,
        (
            # Approved and Denied are kinds of ApprovalRequested, Failed is one of Completed.
            ToolCallApprovalRequested,
            ToolCallOutcomeUnknown,
            ToolCallReconciled,
            ToolCallCompleted,
            ToolCallIntended,
            SessionDeleted,
            StepFailed,
            RunResolved,
            RunStopped,
            TimerFired,
        ),
    )


def review_changes(before: Mapping[str, ReviewKind], session: Session) -> list[tuple[str, ReviewKind | None]]:
    """(name, why it waits now) of everything that began to wait, waits for something else, or waits
    no more (None: its tombstone is due). ``before``: :func:`waiting` before the event; ``session``: after."""
    after = waiting(session)
    gone: list[tuple[str, ReviewKind | None]] = [(key, None) for key in before if key not in after]
    return gone + [(key, kind) for key, kind in after.items() if before.get(key) != kind]


def item_of(session: Session, name: str, event: Event, time_ms: int, seq: int) -> ReviewItem:
    """The item of what waits under ``name`` (of :func:`waiting`) since ``event``, which has ``seq``."""
    if name.startswith(RUN_REVIEW):
        return _run_item(session, session.runs[name.removeprefix(RUN_REVIEW)], time_ms, seq)
    call = session.calls[name]
    return review_item(session, call, review_kind(call) or "unknown", review_reason(event), time_ms, seq)


def _run_item(session: Session, run: Run, time_ms: int, seq: int) -> ReviewItem:
    reason = f"{run.error_code}: {run.error}" if run.error else run.error_code
    return ReviewItem(
        "run",
        session.tenant,
        session.session,
        run.run_id,
        None,
        run.agent,
        None,
        run.epoch,
        None,
        clip(reason, ERROR_BYTES_MAX),
        time_ms,
        seq,
        run.started_seq,
    )


def review_item(
    session: Session, call: Call, kind: ReviewKind, reason: str | None, time_ms: int, seq: int
) -> ReviewItem:
    """The item of a call that waits since event ``seq``; ``reason`` as the event gave it."""
    return ReviewItem(
        kind,
        session.tenant,
        session.session,
        call.operation_id,
        call.call_id,
        call.tool,
        call.arguments,
        call.attempt,
        call.holder,
        clip(reason, ERROR_BYTES_MAX),
        time_ms,
        seq,
        call.intended_seq,
    )


def review_reason(event: Event) -> str | None:
    """The reason in an event that makes a call wait."""
    if isinstance(event, (ToolCallApprovalRequested, ToolCallOutcomeUnknown)):
        return event.reason
    return None
