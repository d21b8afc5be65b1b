"""MessageAppended: is it news, where does it go, what does it ask and answer.

The plain case (a text message after the head) is the hot path and touches nothing else. Order is the
journal's: the producers' clocks are data (D17), and messages of concurrent generations stand in the order
they were accepted (D15).
"""

from __future__ import annotations

from refold.core.context import (
    append_recent,
    content_candidates,
    forget_messages,
    make_message,
    same_content,
    trim,
)
from refold.core.dedup import ring_content, ring_find, ring_seq
from refold.core.envelope import Envelope
from refold.core.events import MessageAppended
from refold.core.ledger import bound_calls, has_room, make_room, open_part
from refold.core.life import is_closed
from refold.core.limits import (
    ID_BYTES_MAX,
    ID_CHARS_SHORT,
    OPEN_CALLS_MAX,
    ROLE_BYTES_MAX,
    ROLE_CHARS_SHORT,
    SYSTEM_BYTES_MAX,
    SYSTEM_MESSAGES_MAX,
)
from refold.core.messagestate import Message
from refold.core.orphans import expire_orphans
from refold.core.results import apply_results, join_orphans, rule_results
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Session
from refold.core.tree import activate, add_alias, resolve, tree_message

PINNED_ROLES = frozenset({"system", "developer"})


def bad_id(value: str, name: str) -> Rejected | None:
    """An id a producer chose: there, not too long, not one of the fold's own."""
    if not value:
        return Rejected("bad_id", f"{name} is empty")
    if len(value) > ID_CHARS_SHORT and len(value.encode()) > ID_BYTES_MAX:
        return Rejected("bad_id", f"{name} is longer than {ID_BYTES_MAX} bytes")
    if value[0] == "@":
        return Rejected("bad_id", f"{name} begins with @, which marks ids that refold makes")
    return None


def bad_reference(value: str, name: str) -> Rejected | None:
    """As :func:`bad_id`, for what may also be an id that the fold made: @ and an event id, or shorter."""
    return bad_id(value[1:] if value[:1] == "@" else value, name)


def rule_message(
    session: Session, event: MessageAppended, settling: bool = False
) -> Duplicate | Rejected | None:
    """``settling``: the message was under way when the session was closed, and a closed one takes it."""
    message_id = event.message_id
    wrong = bad_id(message_id, "message_id")
    if wrong is not None:
        return wrong
    known = session.held.get(message_id)
    if known is not None:
        if same_content(known, event.body):
            return Duplicate(known.seq)
        return Rejected("conflict", f"the message id was used with other content at seq {known.seq}")
    ring = session.message_ids
    if ring:
        at = ring_find(ring, message_id)
        if at >= 0:
            seq = ring_seq(ring, at, session.seq)
            if ring_content(ring, at) in content_candidates(event.body):
                return Duplicate(seq)
            return Rejected("conflict", f"the message id was used with other content at seq {seq}")
    if (
        session.status != "open"
        and not settling
        and is_closed(session)
        and not (event.results and event.only_results)
    ):
        return Rejected("session_closed", f"the session is closed since seq {session.status_seq}")
    if event.parent_id is None and event.replaces is None and not event.results and not event.calls:
        return _rule_role(event.role)
    return _rule_role(event.role) or _rule_links(session, event)


def _rule_role(role: str) -> Rejected | None:
    if role and len(role) <= ROLE_CHARS_SHORT:
        return None
    if not role or len(role.encode()) > ROLE_BYTES_MAX:
        return Rejected("bad_value", f"role must be 1 to {ROLE_BYTES_MAX} bytes long")
    return None


def _rule_links(session: Session, event: MessageAppended) -> Duplicate | Rejected | None:
    """Parent, replaced message, calls and results."""
    for value, name in ((event.parent_id, "the parent's id"), (event.replaces, "replaces")):
        if value:
            wrong = bad_reference(value, name)
            if wrong is not None:
                return wrong
    if event.parent_id == event.message_id:
        return Rejected("bad_value", "a message cannot follow itself")
    if event.replaces is not None and event.parent_id is None and event.replaces not in session.held:
        return Rejected("unknown_message", "the replaced message is not held: name its parent too")
    for call in event.calls:
        for value, name in ((call.call_id, "call_id"), (call.tool, "the tool's name")):
            wrong = bad_id(value, name)
            if wrong is not None:
                return wrong
        if call.operation_id is not None:
            wrong = bad_id(call.operation_id, "operation_id")
            if wrong is not None:
                return wrong
    for result in event.results:
        wrong = bad_id(result.call_id, "call_id")
        if wrong is not None:
            return wrong
    if event.calls and not has_room(session, len(event.calls)):
        return Rejected(
            "too_many_open_calls", f"{session.open_calls} calls are open, the limit is {OPEN_CALLS_MAX}"
        )
    if event.results and event.only_results:
        return rule_results(session, event)
    return None


def apply_message(session: Session, seq: int, time_ms: int, env: Envelope, event: MessageAppended) -> None:
    if event.calls:
        # First, while the state is the one decide looked at: placing the message changes what may be dropped.
        make_room(session, len(event.calls))
    actor = env.actor
    head = session.head
    message = make_message(seq, time_ms, head, event, None if actor is None else actor.id)
    if (
        event.parent_id is None
        and event.replaces is None
        and not event.results
        and event.role not in PINNED_ROLES
    ):
        # The hot path, written out: after the head, nothing to match.
        session.recent.append(message)
        session.recent_bytes += message.size
        session.held[message.id] = message
        session.head = message.id
    elif event.role in PINNED_ROLES and _pin(session, message, event):
        return
    elif event.results and event.only_results:
        # Placed below, after its rows are known.
        pass
    else:
        _place(session, message, event)
    if session.aliases and session.aliases.pop(message.id, None) is not None:
        # An id used again after it was forgotten is this message now.
        session.enc_memory = None
    if message.turn_start and session.orphans:
        expire_orphans(session)
    if event.results:
        apply_results(session, message, event)
        bound_calls(session)
    if event.calls:
        opened = [open_part(session, seq, message.id, index, part) for index, part in enumerate(event.calls)]
        if session.orphans:
            join_orphans(session, opened, seq)
        bound_calls(session)
    if len(session.recent) > session.window_messages or session.recent_bytes > session.window_bytes:
        trim(session)


def _pin(session: Session, message: Message, event: MessageAppended) -> bool:
    """System and developer messages stand first while there is room (D03); one may replace another."""
    system = session.system
    at = next((i for i, m in enumerate(system) if m.id == event.replaces), -1)
    old_size = system[at].size if at >= 0 else 0
    if session.system_bytes - old_size + message.size > SYSTEM_BYTES_MAX:
        return False
    if at < 0 and len(system) >= SYSTEM_MESSAGES_MAX:
        return False
    if at >= 0:
        message.parent = system[at].parent
        forget_messages(session, (system[at],))
        add_alias(session, system[at].id, message.id)
        system[at] = message
    else:
        system.append(message)
    session.system_bytes += message.size - old_size
    session.held[message.id] = message
    session.enc_context = None
    return True


def _place(session: Session, message: Message, event: MessageAppended) -> None:
    """Hang a message where its parent, or the message it replaces, says (B1)."""
    if event.parent_id is not None:
        parent = place_of(session, event.parent_id)
    elif event.replaces is not None:
        replaced = session.held[event.replaces]
        parent = place_of(session, replaced.parent)
    else:
        parent = session.head
    if parent != session.head:
        activate(session, parent)
    message.parent = parent
    append_recent(session, message)


def place_of(session: Session, parent: str) -> str:
    """The place in the tree an id means: aliases followed, pinned and waiting messages stepped over (B4)."""
    for _ in range(len(session.system) + 1):
        parent = resolve(session, parent)
        found = session.held.get(parent)
        if found is None or tree_message(session, parent) is not None:
            return parent
        parent = found.parent
    return parent
