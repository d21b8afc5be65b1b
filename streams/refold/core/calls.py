"""Tool events: which step is allowed from which state, and what it does to the row.

::

    (none) -> intended <--> awaiting_approval      denied from both
                  |               |
                  v               v  (a result proves that it ran: L4)
               started ------> done | failed
                  |               ^
                  `-> unknown ----'  (evidence or an authoritative answer: L3)

    started and unknown --> intended  (known to have had no effect: L10; the next attempt has the next number)
"""

from __future__ import annotations

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
    ToolCallReconciled,
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
    same_arguments,
    touch,
)
from refold.core.limits import EFFECT_BYTES_MAX, LEASE_MS_MAX, OPEN_CALLS_MAX
from refold.core.messages import bad_id, bad_reference
from refold.core.results import apply_outcome, join_orphans
from refold.core.rulings import Duplicate, Rejected
from refold.core.runlife import bad_ref
from refold.core.session import Call, Session


def rule_intended(session: Session, event: ToolCallIntended) -> Duplicate | Rejected | None:
    wrong = bad_id(event.operation_id, "operation_id") or bad_id(event.tool, "the tool's name")
    if wrong is None and event.call_id is not None:
        wrong = bad_id(event.call_id, "call_id")
    if wrong is None and event.message_id is not None:
        wrong = bad_id(event.message_id, "the asking message's id")
    if wrong is not None:
        return wrong
    wrong = bad_ref(event.arguments_ref, "arguments_ref")
    if wrong is not None:
        return wrong
    if len(event.effect.encode()) > EFFECT_BYTES_MAX:
        return Rejected("bad_value", f"effect is longer than {EFFECT_BYTES_MAX} bytes")
    call = session.calls.get(event.operation_id)
    if call is not None and call.declared:
        if call.tool == event.tool and same_arguments(call, event):
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


def rule_step(session: Session, event: Event, now_ms: int) -> Duplicate | Rejected | None:
    """Approval, denial, start, unknown outcome, reconciling. ``now_ms``: session time."""
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
    if isinstance(event, ToolCallReconciled):
        return _rule_reconciled(call, event, now_ms)
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
        if state == "started" and _repeats_start(call, event):  # type: ignore[arg-type]
            return Duplicate(call.updated_seq)
    elif state == "started":
        # ToolCallOutcomeUnknown.
        return _stale(call, event.attempt)  # type: ignore[union-attr]
    detail = f" (approval: {call.approval})" if call.approval else ""
    return Rejected("illegal_transition", f"{kind.__name__} is not allowed from {state}{detail}")


def _stale(call: Call, attempt: int | None) -> Rejected | None:
    """Who speaks of an attempt that is not the row's speaks of one whose outcome is known (L10)."""
    if attempt is None or attempt == call.attempt:
        return None
    return Rejected("stale_holder", f"the call is at attempt {call.attempt}, not {attempt}")


def _repeats_start(call: Call, event: ToolCallStarted) -> bool:
    # Nobody's name: two runners cannot be told apart, so the second one gets no grant.
    return bool(event.holder) and (event.holder, event.attempt) == (call.holder, call.attempt)


def _rule_lease(holder: str, lease_ms: int) -> Rejected | None:
    wrong = bad_id(holder, "holder")
    if wrong is not None:
        return wrong
    if not 0 <= lease_ms <= LEASE_MS_MAX:
        return Rejected("bad_value", f"lease_ms must be 0 to {LEASE_MS_MAX}")
    return None


def _rule_reconciled(call: Call, event: ToolCallReconciled, now_ms: int) -> Duplicate | Rejected | None:
    """L9 and L10, for a row that is not final."""
    wrong = _rule_lease(event.holder, event.lease_ms) or _stale(call, event.attempt)
    if wrong is not None:
        return wrong
    if event.outcome == "not_done":
        if call.state == "intended" and call.attempt:
            return Duplicate(call.updated_seq)
        if call.state == "unknown":
            return None
        if call.state == "started":
            if call.holder in (None, event.holder):
                return None
            return Rejected("stale_holder", "the call's lease is another holder's: claim it first")
    elif event.outcome == "claimed":
        if call.state == "started":
            until = call.lease_until_ms
            if call.holder in (None, event.holder) or until is None or until <= now_ms:
                return None
            return Rejected("lease_held", f"the call's lease is held until session time {until}")
    else:
        return Rejected("bad_value", "outcome must be claimed or not_done")
    return Rejected(
        "illegal_transition", f"ToolCallReconciled ({event.outcome}) is not allowed from {call.state}"
    )


def bad_start(event: ToolCallStarted) -> Rejected | None:
    """Holder and lease; the row is not asked."""
    if event.holder:
        wrong = bad_id(event.holder, "holder")
        if wrong is not None:
            return wrong
    if not 0 <= event.lease_ms <= LEASE_MS_MAX:
        return Rejected("bad_value", f"lease_ms must be 0 to {LEASE_MS_MAX}")
    return None


def _rule_start(call: Call, event: ToolCallStarted) -> Rejected | None:
    if call.approval in ("required", "requested"):
        return Rejected("illegal_transition", f"the call may not start: approval is {call.approval}")
    wrong = bad_start(event)
    if wrong is not None:
        return wrong
    if event.attempt != call.attempt + 1:
        return Rejected("illegal_transition", f"the next attempt is {call.attempt + 1}, not {event.attempt}")
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
    elif isinstance(event, ToolCallReconciled):
        _apply_reconciled(call, time_ms, event)
    elif isinstance(event, ToolCallOutcomeUnknown):
        call.state = "unknown"
        if event.attempt is not None:
            call.attempt = event.attempt
        finish(session, call, seq, "unknown", error=event.reason)
    touch(session, call, seq)
    bound_calls(session)


def _apply_reconciled(call: Call, time_ms: int, event: ToolCallReconciled) -> None:
    if event.outcome == "claimed":
        call.holder = event.holder
        call.lease_until_ms = time_ms + event.lease_ms
        return
    call.state = "intended"
    call.holder = call.lease_until_ms = None
    # What an unknown outcome had left.
    call.error = call.error_code = call.result_summary = None


def rule_outcome(session: Session, event: ToolCallCompleted) -> Duplicate | Rejected | None:
    if not event.operation_id and not event.call_id:
        return Rejected("bad_id", "operation_id and call_id are both missing")
    for value, name in ((event.operation_id, "operation_id"), (event.call_id, "call_id")):
        # The fold's own operation ids may be named: a reader of the state finishes transcript calls by them.
        if value is not None:
            wrong = bad_reference(value, name)
            if wrong is not None:
                return wrong
    wrong = bad_reference(event.message_id, "the result message's id")
    if wrong is not None:
        return wrong
    if event.message_id[:1] != "@" and event.message_id in session.held:
        return Rejected("conflict", "the result message's id is in use")
    call = find_outcome_call(session, event.operation_id, event.call_id)
    if call is None:
        if event.operation_id is not None and event.operation_id[0] == "@":
            return Rejected("unknown_call", "no call with this operation id is held")
        return _rule_held_twice(session, event) or _rule_shown(session, event)
    failed = isinstance(event, ToolCallFailed)
    if is_final(call):
        same = call.state == ("failed" if failed else "done") and call.is_error == event.is_error
        return Duplicate(call.result_seq or call.updated_seq) if same else _final(call)
    if failed and call.attempt and call.declared:
        stale = _stale(call, event.attempt)
        if stale is not None:
            return stale
    if call.state == "unknown" and failed and not event.reconciled:
        return Rejected(
            "illegal_transition", "an unknown outcome becomes failed only by reconciling (reconciled = true)"
        )
    return _rule_shown(session, event)


def _rule_shown(session: Session, event: ToolCallCompleted) -> Duplicate | None:
    """The same event, beyond the window of event ids, while the message made from it is still held: its row
    may have left the ledger, or the call id be another call's by now."""
    shown = session.held.get(event.message_id)
    return None if shown is None else Duplicate(shown.seq)


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
