"""The plain record: a stamped ``MessageAppended`` whose content is one text, read without an envelope.

It is nearly all of the traffic, and a general envelope costs as much as everything else the fold does with
one. Here the bytes are walked once and only what the fold needs becomes an object; fields whose value is
known beforehand (tenant, session, type) are compared as bytes.

Invariant: a record that is read here is one that :func:`refold.wire.envelope.decode_envelope` and
:func:`refold.wire.events.decode_event` read, with the same values (a test compares them). Anything else,
right or wrong, is None: the general readers decide.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple, TypeAlias

from refold.wire.bodies import plain_fields
from refold.wire.envelope import newest
from refold.wire.events import MESSAGE_SUBJECT
from refold.wire.pieces import number, text
from refold.wire.schemas import registry
from refold.wire.varint import read_more

#: producer id, epoch, counter, event time in ms; actor's id; message id, role, body.
Plain: TypeAlias = tuple[str, int, int, int, str | None, str, str, bytes]

#: expected_seq, subject, actor, run, step, attempt, causation_id, correlation_id, origin, link: all null.
_NOTHING: Final = bytes(10)
_NO_MORE: Final = bytes(7)
_AT_SIGN: Final = ord("@")
_ACTOR_KINDS_END: Final = 12


class Frames(NamedTuple):
    """What a record and the payload in it begin with, in the schemas we write."""

    envelope: bytes
    payload: bytes


@cache
def frames() -> Frames:
    return Frames(newest().frame, registry().get(MESSAGE_SUBJECT).frame)


def names_of(tenant: str, session: str) -> bytes:
    """What follows the event id in the plain records of a session: tenant, session, type, type version."""
    return text(tenant) + text(session) + text("MessageAppended") + number(1)


def read_plain_record(value: bytes, framing: Frames, names: bytes) -> Plain | None:
    """The plain message in an inbox record's value, None when it is not one. Never raises.

    ``framing``: :func:`frames`; ``names``: :func:`names_of` the session the record's key names.
    """
    envelope, payload = framing
    try:
        length = value[5]
        # An id the fold takes: not empty, not one of its own, and short enough that no limit is near.
        if length & 129 or not length or value[6] == _AT_SIGN or not value.startswith(envelope):
            return None
        at = 6 + (length >> 1)
        if not value.startswith(names, at):
            return None
        value[6:at].decode()
        at += len(names)
        n = value[at]
        at += 1
        if n > 127:
            n, at = read_more(value, at, n)
        event_time_ms = (n >> 1) ^ -(n & 1)
        length = value[at + 1]
        if value[at] != 2 or length & 129:
            return None
        at += 2
        end = at + (length >> 1)
        producer_id = value[at:end].decode()
        n = value[end]
        at = end + 1
        if n > 127:
            n, at = read_more(value, at, n)
        epoch = (n >> 1) ^ -(n & 1)
        n = value[at]
        at += 1
        if n > 127:
            n, at = read_more(value, at, n)
        counter = (n >> 1) ^ -(n & 1)
        actor = None
        if value.startswith(_NOTHING, at):
            at += 10
        else:
            found = _actor(value, at)
            if found is None:
                return None
            actor, at = found
        n = value[at]
        at += 1
        if n > 127:
            n, at = read_more(value, at, n)
        if n & 1 or at + (n >> 1) != len(value) or not value.startswith(payload, at):
            return None
        body = value[at + 5 :]
    except (ValueError, IndexError):
        return None
    fields = plain_fields(body)
    if fields is None or fields[1] is not None or fields[3] is not None:
        return None
    return producer_id, epoch, counter, event_time_ms, actor, fields[0], fields[2], body


def _actor(value: bytes, at: int) -> tuple[str | None, int] | None:
    """(the actor's id, where the payload begins) when nothing but an actor is set."""
    if value[at : at + 3] != b"\0\0\2" or value[at + 3] & 1 or value[at + 3] >= _ACTOR_KINDS_END:
        return None
    at += 4
    texts: list[str | None] = []
    for _ in range(2):
        branch = value[at]
        at += 1
        if branch == 0:
            texts.append(None)
            continue
        length = value[at]
        if branch != 2 or length & 129:
            return None
        end = at + 1 + (length >> 1)
        texts.append(value[at + 1 : end].decode())
        at = end
    end = at + 7
    return (texts[0], end) if value[at:end] == _NO_MORE else None
