"""SnapshotMessage: where a message stands, then the payload's own bytes.

``size`` comes before the body, so a reader of ours skips a body unparsed; only id and role are read.
"""

from __future__ import annotations

from sys import intern

from refold.core.messagestate import Message
from refold.wire.pieces import (
    END,
    NULL,
    SOME,
    Cursor,
    array,
    boolean,
    number,
    optional_text,
    text,
)

#: Turn start and tool event flags, no answers, not elided.
_PLAIN = {False: b"\x00\x00" + END + NULL, True: b"\x01\x00" + END + NULL}

#: What follows the role in a body without content: content and nine optional fields.
_STUB_END = b"\x00" * 10


def encode_message(message: Message) -> bytes:
    """The message's bytes; kept on it, instead of the body alone, until it changes."""
    body = message.body
    actor = message.actor
    if body is not None and not message.answers and not message.from_tool_event:
        enc = b"".join(
            (
                number(message.seq),
                number(message.time_ms),
                text(message.parent),
                NULL if actor is None else SOME + text(actor),
                _PLAIN[message.turn_start],
                number(message.size),
                body,
            )
        )
    else:
        elided = NULL
        if body is None:
            elided = SOME + number(message.length) + text(message.sha256)
            body = text(message.id) + NULL + text(message.role) + _STUB_END
        enc = b"".join(
            (
                number(message.seq),
                number(message.time_ms),
                text(message.parent),
                optional_text(actor),
                boolean(message.turn_start),
                boolean(message.from_tool_event),
                array([number(seq) for seq in message.answers]),
                elided,
                number(message.size),
                body,
            )
        )
    message.enc = enc
    message.kept = None
    return enc


def encode_plain(message: Message, seq: bytes, time_ms: bytes) -> None:
    """:func:`encode_message` of a message that answers nothing, has its body and was never encoded, with two
    of its numbers encoded already."""
    actor = message.actor
    message.enc = b"".join(
        (
            seq,
            time_ms,
            text(message.parent),
            NULL if actor is None else SOME + text(actor),
            _PLAIN[message.turn_start],
            number(message.size),
            message.kept,  # type: ignore[arg-type]
        )
    )
    message.kept = None


def read_message(cursor: Cursor, before: str = "") -> Message:
    """``before``: the id of the message before it, nearly always its parent, and then the same string."""
    data = cursor.data
    start = cursor.at
    seq = cursor.number()
    time_ms = cursor.number()
    parent = cursor.text()
    if parent == before:
        parent = before
    actor = cursor.optional_text()
    at = cursor.at
    answers: tuple[int, ...] = ()
    length, sha256 = 0, ""
    if data[at] < 2 and data[at + 1 : at + 4] == b"\x00\x00\x00":
        # Not from a tool event, no answers, not elided.
        turn_start = data[at] == 1
        from_tool_event = elided = False
        cursor.at = at + 4
    else:
        turn_start = cursor.boolean()
        from_tool_event = cursor.boolean()
        count = cursor.count()
        answers = tuple([cursor.number() for _ in range(count)])
        cursor.end(count)
        elided = cursor.some()
        if elided:
            length, sha256 = cursor.number(), cursor.text()
            if not sha256:
                raise ValueError("content left a message without its digest")
    size = cursor.length()
    body_at = cursor.at
    message_id = cursor.text()
    if cursor.some():
        cursor.blob()
    role = intern(cursor.text())
    end = body_at + size
    if end > len(data) or cursor.at > end:
        raise ValueError("a message is longer than its size")
    cursor.at = end
    message = Message(message_id, seq, time_ms, role, parent, None, size, turn_start, actor)
    message.from_tool_event = from_tool_event
    message.answers = answers
    message.length = length
    message.sha256 = sha256
    message.enc = data[start:end]
    return message
