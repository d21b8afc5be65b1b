"""evolve: apply one accepted event. Total on whatever decide accepted; an exception here is refold's own bug.

Uses only what the journal record holds, so stored state = fold(journal), byte for byte, on any machine, in
any batch size, across any crash. The worker answers an exception with SessionQuarantined: it restores the
session from its last snapshot and journals that instead.
"""

from __future__ import annotations

from refold.core import reducers
from refold.core.busy import apply_busy
from refold.core.calls import apply_intended, apply_outcome_event, apply_step
from refold.core.children import apply_child
from refold.core.context import trim
from refold.core.dedup import remember
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
from refold.core.facts import apply_fact_removed, apply_fact_set
from refold.core.generations import apply_generation
from refold.core.life import apply_configured, apply_life
from refold.core.messages import apply_message, place_of
from refold.core.operationevents import OperationEvent
from refold.core.operations import apply_operation
from refold.core.reduced import apply_reducer
from refold.core.reducerevents import ReducerEvent
from refold.core.run_events import RunEvent, TimerFired
from refold.core.runs import apply_run, settle
from refold.core.session import Session
from refold.core.summary import apply_summary
from refold.core.timers import apply_timer, before_timer
from refold.core.tree import activate
from refold.core.usage import UsageEvent
from refold.errors import InvariantViolation


def evolve(
    session: Session, seq: int, time_ms: int, partition: int, offset: int, env: Envelope, event: Event
) -> None:
    """Apply event number ``seq``, read from inbox ``(partition, offset)``.

    Raises InvariantViolation when ``seq`` is not the next one: the journal has a gap or a repeat.
    """
    if seq != session.seq + 1:
        raise InvariantViolation(
            f"{session.key}: event {seq} after {session.seq}; the journal must be gapless"
        )
    if seq == 1:
        session.created_ms = time_ms
        session.link = env.link
    if type(event) is TimerFired:
        before_timer(session, seq)
    elif type(event) is not SessionEventParked:
        remember(session, seq, env)
    session.seq = seq
    session.time_ms = time_ms
    session.partition = partition
    session.next_offset = offset + 1
    if type(event) is MessageAppended:
        stopped = False
        if session.policy is not None:
            event, stopped = apply_busy(session, seq, time_ms, event)
        apply_message(session, seq, time_ms, env, event)
        if stopped or (session.runs and (event.results or event.calls)):
            settle(session, seq, time_ms, event)
    elif not isinstance(event, UsageEvent):  # those count in rows of their own (`refold.core.usage`)
        _apply(session, seq, time_ms, env, event)
        if session.runs or session.policy is not None or session.timer_ms:
            settle(session, seq, time_ms, event)
    if reducers.active is not None:
        reducers.reduce(reducers.active, session, seq, time_ms, env)


def _apply(session: Session, seq: int, time_ms: int, env: Envelope, event: Event) -> None:
    if isinstance(event, (ToolCallCompleted, ToolCallFailed)):
        apply_outcome_event(session, seq, time_ms, env, event)
    elif isinstance(event, ToolCallIntended):
        apply_intended(session, seq, event)
    elif isinstance(
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
        apply_step(session, seq, time_ms, event)
    elif isinstance(event, GenerationEvent):
        apply_generation(session, seq, time_ms, env, event)
    elif isinstance(event, RunEvent):
        apply_run(session, seq, time_ms, event)
    elif isinstance(event, TimerFired):
        apply_timer(session, seq, time_ms)
    elif isinstance(event, FactSet):
        apply_fact_set(session, seq, event)
    elif isinstance(event, FactRemoved):
        apply_fact_removed(session, event)
    elif isinstance(event, ContextSummarized):
        apply_summary(session, seq, event)
    elif isinstance(event, BranchSwitched):
        activate(session, place_of(session, event.head_message_id))
        trim(session)
    elif isinstance(event, (SessionOpened, SessionConfigured)):
        apply_configured(session, seq, event)
        trim(session)
    elif isinstance(event, ChildLinked):
        apply_child(session, seq, event)
    elif isinstance(event, OperationEvent):
        apply_operation(session, seq, event)
    elif isinstance(event, ReducerEvent):
        apply_reducer(session, event)
    elif not isinstance(event, Opaque):
        apply_life(session, seq, event)
