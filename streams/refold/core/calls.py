"""Tool events: which step is allowed from which state, and what it does to the row.

::

    (none) -> intended <--> awaiting_approval      denied from both
                  |               |
                  v               v  (a result proves that it ran: L4)
               started ------> done | failed
                  |               ^
                  `-> unknown ----'  (evidence or an authoritative answer: L3)
"""

from __future__ import annotations

from typing import Final

from refold.core.context import make_message, trim
from refold.core.envelope import Envelope
from refold.core.events import (
    Event,
    MessageAppended,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallCompleted,
    ToolCallDenied,
    ToolCallFailed,
    ToolCallIntended,
    ToolCallOutcomeUnknown,
    ToolCallStarted,
)
from refold.core.ledger import (
    bound_calls,
    find_outcome_call,
    finish,
    has_room,
    is_final,
    joinable_intent,
    make_room,
    open_intent,
    touch,
)
from refold.core.limits import EFFECT_BYTES_MAX, OPEN_CALLS_MAX
from refold.core.messages import bad_id
from refold.core.results import apply_outcome, join_orphans
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Call, Session

#: A lease longer than a year is a mistake, and keeps the sum with a session time of 2100 far inside 64 bits.
LEASE_MS_MAX: Final = 366 * 24 * 3600 * 1000


def rule_intended(session: Session, event: ToolCallIntended) -> Duplicate | Rejected | None:
    wrong = bad_id(event.operation_id, "operation_id") or bad_id(event.tool, "the tool's name")
    if wrong is None and event.call_id is not None:
        wrong = bad_id(event.call_id, "call_id")
    if wrong is None and event.message_id is not None:
        wrong = bad_id(event.message_id, "message_id")
    if wrong is not None:
        return wrong
    if len(event.effect.encode()) > EFFECT_BYTES_MAX:
        return Rejected("bad_value", f"effect is longer than {EFFECT_BYTES_MAX} bytes")
    call = session.calls.get(event.operation_id)
    if call is not None and call.declared:
        same = call.tool == event.tool and call.arguments_length == len(event.arguments.encode())
        if same and (call.arguments is None or call.arguments == event.arguments):
            return Duplicate(call.intended_seq)
        return Rejected("conflict", f"the operation id was used for another call at seq {call.intended_seq}")
    if joinable_intent(session, event) is None and not has_room(session, 1):
        return Rejected(
            "too_many_open_calls", f"{session.open_calls} calls are open, the limit is {OPEN_CALLS_MAX}"
        )
    return None


def apply_intended(session: Session, seq: int, event: ToolCallIntended) -> None:
    if joinable_intent(session, event) is None:
        make_room(session, 1)
    call = open_intent(session, seq, event)
    if session.orphans:
        join_orphans(session, [call], seq)
    bound_calls(session)
    trim(session)


def _final(call: Call) -> Rejected:
    return Rejected("already_final", f"the call is {call.state} since seq {call.updated_seq}")


def rule_step(session: Session, event: Event) -> Duplicate | Rejected | None:
    """Approval, denial, start, unknown outcome: steps of a declared call."""
    assert_step = event
    operation_id: str = assert_step.operation_id  # type: ignore[union-attr, assignment]
    call = session.calls.get(operation_id)
    if call is None:
        return Rejected("unknown_call", "no call with this operation id is held")
    kind = type(event)
    state = call.state
    if kind is ToolCallDenied and state == "denied":
        return Duplicate(call.updated_seq)
    if kind is ToolCallOutcomeUnknown and state == "unknown":
        return Duplicate(call.updated_seq)
    if is_final(call):
        return _final(call)
    if kind is ToolCallApprovalRequested:
        if state == "awaiting_approval":
            return Duplicate(call.updated_seq)
        if state == "intended" and call.approval in ("", "required"):
            return None
    elif kind is ToolCallApproved:
        if call.approval == "approved":
            return Duplicate(call.updated_seq)
        if state in ("intended", "awaiting_approval"):
            return None
    elif kind is ToolCallDenied:
        if state in ("intended", "awaiting_approval"):
            return None
    elif kind is ToolCallStarted:
        if state == "intended":
            return _rule_start(call, event)  # type: ignore[arg-type]
    elif state == "started":
        return None
    detail = f" (approval: {call.approval})" if call.approval else ""
    return Rejected("illegal_transition", f"{kind.__name__} is not allowed from {state}{detail}")


def _rule_start(call: Call, event: ToolCallStarted) -> Rejected | None:
    if call.approval in ("required", "requested"):
        return Rejected("illegal_transition", f"the call may not start: approval is {call.approval}")
    if event.holder:
        wrong = bad_id(event.holder, "holder")
        if wrong is not None:
            return wrong
    if not 0 <= event.lease_ms <= LEASE_MS_MAX:
        return Rejected("bad_value", f"lease_ms must be 0 to {LEASE_MS_MAX}")
    return None


def apply_step(session: Session, seq: int, time_ms: int, event: Event) -> None:
    call = session.calls[event.operation_id]  # type: ignore[union-attr, index]
    if isinstance(event, ToolCallDenied):
        call.approval = "denied"
        finish(session, call, seq, "denied", is_error=True, error=event.reason)
        bound_calls(session)
        return
    if isinstance(event, ToolCallApproved):
        call.approval = "approved"
        call.state = "intended"
    elif isinstance(event, ToolCallApprovalRequested):
        call.approval = "requested"
        call.state = "awaiting_approval"
    elif isinstance(event, ToolCallStarted):
        call.state = "started"
        call.attempt = event.attempt
        call.holder = event.holder or None
        call.lease_until_ms = time_ms + event.lease_ms
        call.fencing = event.fencing
    elif isinstance(event, ToolCallOutcomeUnknown):
        call.state = "unknown"
        if event.attempt is not None:
            call.attempt = event.attempt
        finish(session, call, seq, "unknown", error=event.reason)
    touch(session, call, seq)
    bound_calls(session)


def rule_outcome(session: Session, event: ToolCallCompleted) -> Duplicate | Rejected | None:
    if not event.operation_id and not event.call_id:
        return Rejected("bad_id", "operation_id and call_id are both missing")
    for value, name in ((event.operation_id, "operation_id"), (event.call_id, "call_id")):
        # The fold's own operation ids may be named: a reader of the state finishes transcript calls by them.
        if value is not None and value[:1] != "@":
            wrong = bad_id(value, name)
            if wrong is not None:
                return wrong
    if event.message_id[:1] != "@":
        wrong = bad_id(event.message_id, "message_id")
        if wrong is not None:
            return wrong
        if event.message_id in session.held:
            return Rejected("conflict", "the message id is in use")
    call = find_outcome_call(session, event.operation_id, event.call_id)
    if call is None:
        if event.operation_id is not None and event.operation_id[0] == "@":
            return Rejected("unknown_call", "no call with this operation id is held")
        return _rule_held_twice(session, event)
    failed = isinstance(event, ToolCallFailed)
    if is_final(call):
        same = call.state == ("failed" if failed else "done") and call.is_error == event.is_error
        return Duplicate(call.result_seq or call.updated_seq) if same else _final(call)
    if call.state == "unknown" and failed and not event.reconciled:
        return Rejected(
            "illegal_transition", "an unknown outcome becomes failed only by reconciling (reconciled = true)"
        )
    return None


def _rule_held_twice(session: Session, event: ToolCallCompleted) -> Duplicate | None:
    """The same result while the first still waits for its call."""
    for orphan in session.orphans:
        for result in orphan.results:
            if not result.matched and (result.operation_id, result.call_id) == (
                event.operation_id,
                event.call_id,
            ):
                return Duplicate(orphan.message.seq)
    return None


def apply_outcome_event(
    session: Session, seq: int, time_ms: int, env: Envelope, event: ToolCallCompleted
) -> None:
    shown = MessageAppended(event.message_id, None, "tool", event.body, only_results=True)
    actor = env.actor
    message = make_message(seq, time_ms, session.head, shown, None if actor is None else actor.id)
    message.from_tool_event = True
    call = find_outcome_call(session, event.operation_id, event.call_id)
    apply_outcome(session, seq, message, call, event)
    bound_calls(session)
    trim(session)
