"""ContextRestored: a path whose messages the state no longer holds is active again. Rule O3.

O3  Whoever sends it has folded the session's history and names the end of the path, in path order, with the
    place and the content of each message. It is refused where it does not fit what the fold knows: a held
    message must be the same in content, seq and parent, one whose id is remembered (U4) the same in content
    and seq (``conflict``); the path must end in its head (``unknown_message``). What nobody remembers is
    taken as it is said. Messages that come back count against the same limits as all others.

No event of the history happens again: nothing is asked, answered or run by a message that comes back.
"""

from __future__ import annotations

from hashlib import sha256

from refold.core.context import content_candidates, elide, same_content, stub_size, trim
from refold.core.dedup import SEQ_MASK, ring_content, ring_find
from refold.core.limits import (
    ANSWERS_MAX,
    DEDUP_ENTRY_BYTES,
    ID_BYTES_MAX,
    MESSAGE_INLINE_BYTES_MAX,
    ROLE_BYTES_MAX,
    SEQ_DISTANCE_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_MESSAGES_MAX,
)
from refold.core.messages import bad_reference
from refold.core.messagestate import Message
from refold.core.operationevents import ContextRestored, RestoredMessage
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Session
from refold.core.tree import activate, tree_message

_SHA256_DIGITS = frozenset("0123456789abcdef")


def rule_restored(session: Session, event: ContextRestored) -> Duplicate | Rejected | None:
    if not session.exists:
        return Rejected("no_session", "there is no session whose path this could be")
    wrong = _rule_path(session, event)
    if wrong is not None:
        return wrong
    news = False
    placed = {message.seq: message.id for message in session.held.values()}
    for message in event.messages:
        wrong = _rule_values(session, message)
        if wrong is None and (known := session.held.get(message.id)) is not None:
            wrong = _rule_held(session, known, message)
        elif wrong is None:
            news = True
            if placed.get(message.seq, message.id) != message.id:
                return Rejected("conflict", f"another message is of seq {message.seq}")
            wrong = _rule_remembered(session, message)
        if wrong is not None:
            return wrong
    if not news and event.head_message_id == session.head and session.complete:
        return Duplicate(0)
    return None


def _rule_path(session: Session, event: ContextRestored) -> Rejected | None:
    messages = event.messages
    if not messages or messages[-1].id != event.head_message_id:
        return Rejected("unknown_message", "the messages do not end in the head that is named")
    if len(messages) > WINDOW_MESSAGES_MAX:
        return Rejected("too_large", f"more than {WINDOW_MESSAGES_MAX} messages: name the end of the path")
    if sum([len(m.body or b"") for m in messages]) > WINDOW_BYTES_MAX:
        return Rejected("too_large", f"more than {WINDOW_BYTES_MAX} bytes: leave content to the journal")
    before = event.through_message_id
    if before:
        wrong = bad_reference(before, "through_message_id")
        if wrong is not None:
            return wrong
    if not before and (event.through or event.uncovered):
        return Rejected("bad_value", "a path that begins at the root has nothing before it")
    if not -SEQ_DISTANCE_MAX < event.through <= session.seq or not 0 <= event.uncovered <= SEQ_DISTANCE_MAX:
        return Rejected("bad_value", "through or uncovered is out of range")
    # Where a parent came after its child the path may close a ring: then it begins behind one of its own.
    seen: set[str] = set()
    for message in messages:
        if message.parent != before:
            return Rejected("bad_value", "each message must follow the one before it")
        before = message.id
        if before in seen:
            return Rejected("bad_value", "a message is named twice")
        seen.add(before)
    if len({message.seq for message in messages}) != len(messages):
        return Rejected("bad_value", "two messages are of one event")
    return None


def _rule_values(session: Session, message: RestoredMessage) -> Rejected | None:
    wrong = bad_reference(message.id, "message_id")
    if wrong is not None:
        return wrong
    if len((message.actor or "").encode()) > ID_BYTES_MAX:
        return Rejected("bad_id", f"actor is longer than {ID_BYTES_MAX} bytes")
    if not message.role or len(message.role.encode()) > ROLE_BYTES_MAX:
        return Rejected("bad_value", f"role must be 1 to {ROLE_BYTES_MAX} bytes long")
    if not -SEQ_DISTANCE_MAX < message.seq <= session.seq or len(message.answers) > ANSWERS_MAX:
        return Rejected("bad_value", "a message is from the future, or answers too many")
    if any(abs(seq) > SEQ_DISTANCE_MAX for seq in message.answers):
        return Rejected("bad_value", "a message answers what no session reaches")
    if message.body is None and (
        len(message.sha256) != 64 or not _SHA256_DIGITS.issuperset(message.sha256) or message.length < 0
    ):
        return Rejected("bad_value", "a message has neither content nor its length and SHA-256")
    if message.id in session.aliases:
        return Rejected("conflict", "the state has a message of this id in another place")
    return None


def _rule_held(session: Session, known: Message, message: RestoredMessage) -> Rejected | None:
    if (
        tree_message(session, known.id) is not known
        or (known.seq, known.parent, known.role) != (message.seq, message.parent, message.role)
        or not _same(known, message)
    ):
        return Rejected("conflict", f"the state holds the message of seq {known.seq} differently")
    return None


def _same(known: Message, message: RestoredMessage) -> bool:
    if message.body is not None:
        return same_content(known, message.body)
    if known.body is None:
        return (known.length, known.sha256) == (message.length, message.sha256)
    return (len(known.body), sha256(known.body).hexdigest()) == (message.length, message.sha256)


def _rule_remembered(session: Session, message: RestoredMessage) -> Rejected | None:
    """The ids that left are remembered with four bytes of their content, newest entry last."""
    ring = session.message_ids
    at = ring_find(ring, message.id)
    if at < 0:
        return None
    if int.from_bytes(ring[at + 12 : at + DEDUP_ENTRY_BYTES], "little") != message.seq & SEQ_MASK:
        return Rejected("conflict", "the message was of another event")
    if message.body is None:
        # Remembered by its SHA-256 if it was elided when it left, by another sum if not.
        return None
    if ring_content(ring, at) not in content_candidates(message.body):
        return Rejected("conflict", f"the message of seq {message.seq} had other content")
    return None


def apply_restored(session: Session, event: ContextRestored) -> None:
    for restored in event.messages:
        if restored.id in session.held:
            continue
        message = _message(restored)
        session.held[message.id] = message
        session.branch_messages[message.id] = message
        session.branch_bytes += message.size
        if message.answers:
            session.answering = True
    session.branch_messages = dict(sorted(session.branch_messages.items(), key=lambda item: item[1].seq))
    activate(session, event.head_message_id)
    if not session.complete:
        _complete(session, event)
    trim(session)


def _message(restored: RestoredMessage) -> Message:
    body = restored.body
    message = Message(
        restored.id,
        restored.seq,
        restored.time_ms,
        restored.role,
        restored.parent,
        body,
        0 if body is None else len(body),
        restored.turn_start,
        restored.actor,
    )
    message.from_tool_event = restored.from_tool_event
    message.answers = restored.answers
    if body is None:
        message.length = restored.length
        message.sha256 = restored.sha256
        message.size = stub_size(message)
    elif len(body) > MESSAGE_INLINE_BYTES_MAX:
        elide(message)
    return message


def _complete(session: Session, event: ContextRestored) -> None:
    """Whoever sent it has read the journal: how many messages lie before the window is known again."""
    if session.trunk_id == event.through_message_id:
        session.through, session.uncovered = event.through, event.uncovered
        session.complete = True
        return
    first = event.messages[0].id
    held = next((at for at, message in enumerate(session.recent) if message.id == first), None)
    if held is not None and held <= event.uncovered:
        # More of the path is held than was named: so much less lies before it.
        session.uncovered = event.uncovered - held
        session.complete = True
        return
    for at, message in enumerate(event.messages):
        # Cut behind a result whose call lies before the path that was named.
        if message.id == session.trunk_id:
            session.through, session.uncovered = message.seq, event.uncovered + at + 1
            session.complete = True
            return
