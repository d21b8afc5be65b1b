"""decide and evolve in one, for the event that is nearly all of the traffic: the next message after the head.

Every question of :func:`refold.core.decide.decide` is asked here too, in a form whose answer is either
"accepted, nothing special" or "somebody else decides". A rule that is added to decide or evolve and that a
plain message can meet must be added here, as a reason to answer False; a property test over random histories
compares the two.
"""

from __future__ import annotations

from refold.core.context import trim
from refold.core.dedup import ring_find
from refold.core.limits import ID_CHARS_SHORT, MESSAGE_INLINE_BYTES_MAX
from refold.core.messagestate import Message
from refold.core.session import Session

#: Not the pinned ones; others are rare. One string of each stands in all messages.
_ROLES = {role: role for role in ("user", "assistant")}


def append_plain(
    session: Session,
    append_ms: int,
    partition: int,
    offset: int,
    producer_id: str,
    epoch: int,
    counter: int,
    event_time_ms: int,
    actor: str | None,
    message_id: str,
    role: str,
    body: bytes,
) -> Message | None:
    """Accept and fold a message of one text, stamped, without parent, links or conditions, whose event id is
    a good one. None when it takes more than that to rule on it: then nothing has changed.
    """
    producer = session.producers.get(producer_id)
    size = len(body)
    held = session.held
    if (
        producer is None
        or producer.epoch != epoch
        or counter <= producer.counter
        or session.status != "open"
        or not message_id
        or message_id in held
        or len(message_id) > ID_CHARS_SHORT
        or message_id[0] == "@"
        or (known_role := _ROLES.get(role)) is None
        or size > MESSAGE_INLINE_BYTES_MAX
        or session.aliases
        or session.orphans
        or session.policy is not None
        or (actor is not None and len(actor) > ID_CHARS_SHORT)
    ):
        return None
    ring = session.message_ids
    if ring and ring_find(ring, message_id) >= 0:
        return None
    recent = session.recent
    bytes_now = session.recent_bytes + size
    over = bytes_now > session.window_bytes or len(recent) >= session.window_messages
    if over and session.hold_for_summary:
        # The first message above the window asks for a summary (Y1).
        return None

    seq = session.seq = session.seq + 1
    if append_ms > session.time_ms:
        session.time_ms = append_ms
    session.partition = partition
    session.next_offset = offset + 1
    producer.counter = counter
    producer.seq = seq
    producer.enc = None
    if event_time_ms > producer.event_time_ms:
        producer.event_time_ms = event_time_ms
    producers = session.producers
    if len(producers) > 1:
        # Most recently used last.
        del producers[producer_id]
        producers[producer_id] = producer
    message = Message(
        message_id, seq, session.time_ms, known_role, session.head, body, size, known_role == "user", actor
    )
    recent.append(message)
    session.recent_bytes = bytes_now
    held[message_id] = message
    session.head = message_id
    if over:
        trim(session)
    return message
