"""Session <-> SessionSnapshot: a join of pieces that are already encoded.

Avro is concatenative. A message in the snapshot keeps its payload's own bytes, rows and producers keep
theirs, so the snapshot of a session with eight messages costs a few microseconds instead of a re-encode.

Invariants: ``encode_snapshot(decode_session(x)) == x``; the bytes are what the compiled writer would give for
the same record (a test compares them); the same state gives the same bytes whatever was cached.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from refold.core.limits import STATE_RECORD_BYTES_MAX
from refold.core.messagestate import Message
from refold.core.older import fit
from refold.core.session import SNAPSHOT_VERSION, Session, Summary
from refold.errors import InvalidRecord, InvariantViolation
from refold.wire.codec import decode, encode_body, undecodable
from refold.wire.foreign import MESSAGE_LISTS, check_foreign
from refold.wire.parts import KINDS, NESTING_KINDS, PART_DEPTH_MAX
from refold.wire.pieces import END, NULL, SOME, Cursor, array, boolean, number, text
from refold.wire.schemas import registry
from refold.wire.snapshot_engine import encode_engine, read_engine
from refold.wire.snapshot_generations import encode_generations, read_generations
from refold.wire.snapshot_ledger import encode_rest, read_rest
from refold.wire.snapshot_messages import encode_message, read_message
from refold.wire.snapshot_tail import encode_tail, read_tail
from refold.wire.varint import LENGTHS

SUBJECT: Final = "refold.SessionSnapshot"

#: The frontier names the topic by its logical name (topology/), not by its prefix: the prefix is a setting.
INBOX: Final = "inbox"

_STATUS_AND_FRONTIER: Final = {
    status: text(status) + number(1) + text(INBOX)
    for status in ("open", "closed", "quarantined", "releasing")
}


@cache
def _frame() -> bytes:
    return registry().get(SUBJECT).frame


def encode_snapshot(session: Session) -> bytes:
    """The framed state record. Raises InvariantViolation when it is above STATE_RECORD_BYTES_MAX (S8)."""
    head = session.enc_head
    if head is None:
        head = session.enc_head = _frame() + text(session.tenant) + text(session.session)
    mid = session.enc_mid
    if mid is None:
        mid = session.enc_mid = number(SNAPSHOT_VERSION) + number(session.created_ms)
    context = session.enc_context
    if context is None:
        context = session.enc_context = _context(session)
    rest = session.enc_rest
    if rest is None:
        rest = session.enc_rest = encode_rest(session)
    recent = session.recent
    if session.branch_messages:
        branches = session.enc_branches
        if branches is None:
            branches = session.enc_branches = array(
                [m.enc or encode_message(m) for m in session.branch_messages.values()]
            )
    else:
        branches = END
    settings = session.enc_settings
    if settings is None:
        settings = session.enc_settings = b"".join(
            (number(session.window_messages), number(session.window_bytes), boolean(session.hold_for_summary))
        )
    engine = encode_engine(session)
    through = session.through
    value = b"".join(
        (
            head,
            number(session.seq),
            mid,
            number(session.time_ms),
            _STATUS_AND_FRONTIER[session.status],
            number(session.partition),
            number(session.next_offset),
            END,
            context,
            b"\x01" if session.summary_active else b"\x00",
            number(through) if through else END,
            b"\x01" if session.complete else b"\x00",
            number(session.uncovered) if session.uncovered else END,
            LENGTHS[len(session.orphans)],
            LENGTHS[len(recent)],
            *[m.enc or encode_message(m) for m in recent],
            END if recent else b"",
            branches,
            rest,
            settings,
            b"\x01" if session.overflow else b"\x00",
            number(session.parked) if session.parked else END,
            number(len(engine)),
            engine,
            (session.enc_generations or encode_generations(session)) if session.generations else END,
            session.enc_tail or encode_tail(session),
        )
    )
    if len(value) > STATE_RECORD_BYTES_MAX:
        raise InvariantViolation(
            f"S8 does not hold for {session.key} at seq {session.seq}: its record has {len(value)} bytes, "
            f"the limit is {STATE_RECORD_BYTES_MAX}. This is a bug of refold, not of the data"
        )
    return value


def _context(session: Session) -> bytes:
    """System messages and summary."""
    summary = session.summary
    system = array([m.enc or encode_message(m) for m in session.system])
    if summary is None:
        return system + NULL
    return b"".join(
        (
            system,
            SOME,
            text(summary.text),
            text(summary.through_message_id),
            number(summary.through_seq),
            number(summary.seq),
        )
    )


def decode_session(value: bytes) -> Session:
    """The session in a state record; the exact inverse of :func:`encode_snapshot`.

    A record of an older schema version is read with the declared defaults. Raises InvalidRecord as
    ``codec.decode`` does: the state record is damaged, and the session must be folded again.
    """
    frame = _frame()
    exact = value[:5] == frame
    if not exact:
        decoded = decode(value, expect=SUBJECT)
        value = frame + encode_body(SUBJECT, decoded.record)
    try:
        return _read(value, exact)
    except (ValueError, IndexError) as error:
        raise undecodable(SUBJECT, error) from None


def decode_foreign(value: bytes) -> tuple[Session, dict[str, Any]]:
    """The session in a record that no worker need have written, and the record. Every byte is read, and
    written anew, so what is kept of it is what the schema says. Raises InvalidRecord."""
    record = decode(value, expect=SUBJECT).record
    check_foreign(record)
    try:
        return _read(_frame() + encode_body(SUBJECT, record), False), record
    except (ValueError, IndexError) as error:
        raise undecodable(SUBJECT, error) from None


def _read(value: bytes, exact: bool) -> Session:
    """``exact``: what follows from other parts must agree with them; an older writer may have had less."""
    cursor = Cursor(value, 5)
    session = Session(cursor.text(), cursor.text())
    session.enc_head = value[: cursor.at]
    session.seq = cursor.number()
    start = cursor.at
    version = cursor.number()
    if version > SNAPSHOT_VERSION:
        raise ValueError(f"snapshot version {version} is newer than this refold: upgrade")
    if exact and version != SNAPSHOT_VERSION:
        raise ValueError("its version is not its schema's")
    session.created_ms = cursor.number()
    if version == SNAPSHOT_VERSION:
        session.enc_mid = value[start : cursor.at]
    session.time_ms = cursor.number()
    status = cursor.text()
    if status not in _STATUS_AND_FRONTIER:
        raise ValueError("no such status")
    session.status = status  # type: ignore[assignment]
    count = cursor.count()
    if count != 1:
        raise ValueError("not one frontier entry")
    if cursor.text() != INBOX:
        raise ValueError("the frontier is not of the inbox")
    session.partition = cursor.number()
    session.next_offset = cursor.number()
    cursor.end(count)
    start = cursor.at
    session.system, session.system_bytes = _messages(session, cursor)
    if cursor.some():
        session.summary = Summary(cursor.text(), cursor.text(), cursor.number(), cursor.number())
    session.enc_context = value[start : cursor.at]
    session.summary_active = cursor.boolean()
    session.through = cursor.number()
    session.complete = cursor.boolean()
    session.uncovered = cursor.number()
    waiting = cursor.number()
    session.recent, session.recent_bytes = _messages(session, cursor)
    start = cursor.at
    branches, session.branch_bytes = _messages(session, cursor)
    if branches:
        session.branch_messages = {m.id: m for m in branches}
        session.enc_branches = value[start : cursor.at]
    read_rest(session, cursor, exact)
    session.window_messages = cursor.number()
    session.window_bytes = cursor.number()
    session.hold_for_summary = cursor.boolean()
    overflow = cursor.boolean()
    session.parked = cursor.number()
    end = cursor.length() + cursor.at
    read_engine(session, cursor)
    disagrees = cursor.at != end
    read_generations(session, cursor)
    read_tail(session, cursor)
    if disagrees or cursor.at != len(value):
        raise ValueError("its length is not the record's")
    if exact and (waiting != len(session.orphans) or overflow != session.overflow):
        raise ValueError("its public part disagrees with its engine part")
    session.head = session.recent[-1].id if session.recent else session.trunk_id
    if not exact:
        fit(session)
    return session


def _messages(session: Session, cursor: Cursor) -> tuple[list[Message], int]:
    count = cursor.count()
    messages: list[Message] = []
    held = session.held
    size, before = 0, ""
    for _ in range(count):
        message = read_message(cursor, before)
        before = message.id
        messages.append(message)
        held[before] = message
        size += message.size
        if message.answers:
            session.answering = True
    cursor.end(count)
    return messages, size


def decode_snapshot(value: bytes) -> dict[str, Any]:
    """The public part of a state record as plain values; parts' ``data`` decoded, ``engine`` left out.

    ``data`` of a kind this reader does not know, or below PART_DEPTH_MAX, stays bytes. Raises InvalidRecord.
    """
    record = decode(value, expect=SUBJECT).record
    record.pop("engine", None)
    context = record["context"]
    for name in MESSAGE_LISTS:
        for message in context[name]:
            message["content"] = [_public_part(part) for part in message["content"]]
    return record


def _public_part(part: dict[str, Any], depth: int = 1) -> dict[str, Any]:
    data = part["data"]
    kind = part["type"]
    if data is None or kind not in KINDS or depth > PART_DEPTH_MAX:
        return part
    try:
        fields = decode(data, expect=KINDS[kind]).record
    except InvalidRecord as error:
        if error.code == "unknown_schema":
            return part
        raise
    if kind in NESTING_KINDS:
        fields["content"] = [_public_part(inner, depth + 1) for inner in fields["content"]]
    return {**part, "data": fields}
