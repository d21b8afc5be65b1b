"""decide: is this event accepted, a repeat, or refused? Reads the session, changes nothing.

Order of the questions, and why: the envelope's ids (a broken record must not look like a repeat); the
session's status (while quarantined nothing is compared with a state that may be wrong); repeats (a retry of
an accepted event is a duplicate even where the event would be refused now); ``expected_seq``; then
the event itself.
"""

from __future__ import annotations

from refold.core.busy import rule_busy
from refold.core.calls import rule_intended, rule_outcome, rule_step
from refold.core.children import rule_child
from refold.core.dedup import rule_repeat
from refold.core.envelope import Envelope
from refold.core.events import (
    BranchSwitched,
    ChildLinked,
    ContextSummarized,
    Event,
    FactRemoved,
    FactSet,
    GenerationEvent,
    MessageAppended,
    Opaque,
    SessionConfigured,
    SessionEventParked,
    SessionOpened,
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
from refold.core.facts import rule_fact_removed, rule_fact_set
from refold.core.generations import rule_generation
from refold.core.life import rule_configured, rule_life, rule_opened, rule_status
from refold.core.limits import ID_CHARS_SHORT
from refold.core.messages import bad_id, place_of, rule_message
from refold.core.operationevents import OperationEvent
from refold.core.operations import rule_operation
from refold.core.reduced import rule_reducer
from refold.core.reducerevents import ReducerEvent
from refold.core.rulings import Accepted, Duplicate, Rejected, Ruling
from refold.core.run_events import RunEvent, TimerFired
from refold.core.runs import rule_run
from refold.core.session import Session
from refold.core.summary import rule_summary
from refold.core.timers import rule_timer
from refold.core.tree import tree_message
from refold.core.usage import UsageEvent, rule_usage


def decide(session: Session, env: Envelope, event: Event, time_ms: int) -> Ruling:
    """The ruling on one event. ``time_ms``: the record's append time (the origin's for a forward)."""
    wrong = rule_envelope(env)
    if wrong is not None:
        return wrong
    if type(event) is SessionEventParked:
        return Rejected("reserved_type", "only the worker writes SessionEventParked")
    if type(event) is TimerFired:
        # In no memory of ids, and asked for what is due whatever the session's status (K3).
        now_ms = max(session.time_ms, time_ms)
        return rule_timer(session, now_ms) or Accepted(session.seq + 1, now_ms)
    if session.status != "open":
        ruling = rule_status(session, env, event)
        if ruling is not None and ruling.code != "session_closed":
            return ruling
        repeat = rule_repeat(session, env)
        if repeat is not None:
            return repeat
        if ruling is not None:
            return ruling
    else:
        repeat = rule_repeat(session, env)
        if repeat is not None:
            return repeat
    if env.expected_seq is not None and env.expected_seq != session.seq:
        return Rejected("expected_seq", f"the session is at seq {session.seq}, expected {env.expected_seq}")
    found = rule_any(session, event, max(session.time_ms, time_ms))
    if found is not None:
        return found
    return Accepted(session.seq + 1, max(session.time_ms, time_ms))


def rule_any(session: Session, event: Event, now_ms: int) -> Duplicate | Rejected | None:
    """The rules of its type. ``now_ms``: session time if the event is accepted."""
    if type(event) is not MessageAppended:
        return _rule(session, event, now_ms)
    found = rule_message(session, event)
    if found is None and session.policy is not None:
        return rule_busy(session, event, now_ms)
    return found


def rule_envelope(env: Envelope) -> Rejected | None:
    """Ids in the envelope; the session is not asked."""
    event_id = env.event_id
    if not event_id or len(event_id) > ID_CHARS_SHORT or event_id[0] == "@":
        wrong = bad_id(event_id, "event_id")
        if wrong is not None:
            return wrong
    producer_id = env.producer_id
    if producer_id is not None and (not producer_id or len(producer_id) > ID_CHARS_SHORT):
        wrong = bad_id(producer_id, "the producer's id")
        if wrong is not None:
            return wrong
    actor = env.actor
    if actor is not None and actor.id is not None and len(actor.id) > ID_CHARS_SHORT:
        wrong = bad_id(actor.id, "the actor's id")
        if wrong is not None:
            return wrong
    link = env.link
    if link is not None:
        wrong = bad_id(link.session, "the linked session")
        if wrong is None and link.call is not None:
            wrong = bad_id(link.call, "the linked call")
        return wrong
    return None


def _rule(session: Session, event: Event, now_ms: int) -> Duplicate | Rejected | None:
    """``now_ms``: session time if the event is accepted."""
    if isinstance(event, UsageEvent):
        return rule_usage(event)
    if isinstance(event, ReducerEvent):
        return rule_reducer(session, event)
    if isinstance(event, (ToolCallCompleted, ToolCallFailed)):
        return rule_outcome(session, event)
    if isinstance(event, ToolCallIntended):
        return rule_intended(session, event)
    if isinstance(
        event,
        (
            ToolCallApprovalRequested,
            ToolCallApproved,
            ToolCallDenied,
            ToolCallStarted,
            ToolCallOutcomeUnknown,
            ToolCallReconciled,
        ),
    ):
        return rule_step(session, event, now_ms)
    if isinstance(event, GenerationEvent):
        return rule_generation(session, event, now_ms)
    if isinstance(event, RunEvent):
        return rule_run(session, event, now_ms)
    if isinstance(event, FactSet):
        return rule_fact_set(session, event)
    if isinstance(event, FactRemoved):
        return rule_fact_removed(session, event)
    if isinstance(event, ContextSummarized):
        return rule_summary(session, event)
    if isinstance(event, BranchSwitched):
        return _rule_switch(session, event)
    if isinstance(event, ChildLinked):
        return rule_child(session, event)
    if isinstance(event, OperationEvent):
        return rule_operation(session, event)
    if isinstance(event, SessionConfigured):
        return rule_configured(session, event)
    if isinstance(event, SessionOpened):
        return rule_opened(session, event)
    if isinstance(event, Opaque):
        return None
    return rule_life(session, event)


def _rule_switch(session: Session, event: BranchSwitched) -> Duplicate | Rejected | None:
    place = place_of(session, event.head_message_id)
    if place and place == session.head:
        return Duplicate(0)
    if tree_message(session, place) is None:
        return Rejected(
            "unknown_message", "the state does not hold the message: rebuild its path from the journal"
        )
    return None
