"""Double texting: what a user message does while an answer is under way. Rule O4, ``policy.on_busy``.

O4  Busy: a generation is open, or a run leased, and its lease not over. A message of role user without tool
    results is then, by the policy:

    queue      accepted as ever (the default).
    reject     refused with ``busy``.
    interrupt  accepted; open generations become stopping, leased runs are stopped.
    branch     accepted as a sibling of the message being answered, where it names no place of its own. What
               answers the other message joins it there, off the active path.

Decided in the fold, so that two clients that text at once are ruled in the order of the inbox. A session
without a policy asks one question.
"""

from __future__ import annotations

from refold.core.answering import answered_by, note_places
from refold.core.events import MessageAppended
from refold.core.generations import is_open
from refold.core.limits import RUN_ERROR_BYTES_MAX
from refold.core.messagestate import Message
from refold.core.rulings import Rejected
from refold.core.runlife import end
from refold.core.session import Generation, Session
from refold.core.texts import clip
from refold.core.tree import path_to

INTERRUPTED = "a user message interrupted it"


def texts(event: MessageAppended) -> bool:
    """Whether this is a user's message, and no tool's result."""
    return event.role == "user" and not event.results


def _answering(session: Session, now_ms: int) -> list[Generation]:
    return [r for r in session.generations.values() if is_open(r) and (r.lease_until_ms or 0) > now_ms]


def is_busy(session: Session, now_ms: int) -> bool:
    if _answering(session, now_ms):
        return True
    return any(r.state == "leased" and (r.lease_until_ms or 0) > now_ms for r in session.runs.values())


def rule_busy(session: Session, event: MessageAppended, now_ms: int) -> Rejected | None:
    """``now_ms``: session time if the event is accepted."""
    policy = session.policy
    if policy is None or policy.on_busy != "reject" or not texts(event) or not is_busy(session, now_ms):
        return None
    return Rejected("busy", "an answer is under way, and the session's policy refuses further messages")


def interrupts(session: Session, event: MessageAppended) -> bool:
    """Whether the message stops what is under way, if there is any."""
    policy = session.policy
    return policy is not None and policy.on_busy == "interrupt" and texts(event)


def apply_busy(
    session: Session, seq: int, time_ms: int, event: MessageAppended
) -> tuple[MessageAppended, bool]:
    """Before a message is applied to a session with a policy: what it stops. Returned are the message, with
    the place it gets, and whether a run was stopped."""
    policy = session.policy
    if policy is None or not texts(event):
        return event, False
    if policy.on_busy == "interrupt":
        return event, _interrupt(session, seq)
    if policy.on_busy == "branch" and event.parent_id is None and event.replaces is None:
        answered = _answered(session, time_ms)
        if answered is not None:
            note_places(session, [row for row in session.generations.values() if is_open(row)])
            return _placed(event, answered.parent), False
    return event, False


def _interrupt(session: Session, seq: int) -> bool:
    for row in session.generations.values():
        if row.state == "started":
            row.state = "stopping"
            row.updated_seq = seq
            session.enc_generations = None
    leased = [run for run in session.runs.values() if run.state == "leased"]
    for run in leased:
        run.error_code = None
        run.error = clip(INTERRUPTED, RUN_ERROR_BYTES_MAX)
        end(session, run, "stopped", seq)
    return bool(leased)


def _answered(session: Session, now_ms: int) -> Message | None:
    """The user message that is being answered; None where nothing is under way, or it is not held."""
    rows = _answering(session, now_ms)
    if not rows and not is_busy(session, now_ms):
        return None
    place = answered_by(session, rows[-1]) if rows else session.head
    return next((m for m in reversed(path_to(session, place)) if m.turn_start), None)


def _placed(event: MessageAppended, parent: str) -> MessageAppended:
    return MessageAppended(
        event.message_id,
        parent,
        event.role,
        event.body,
        event.calls,
        event.results,
        event.only_results,
        event.replaces,
    )
