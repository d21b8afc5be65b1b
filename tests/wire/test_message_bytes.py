"""A held message has its body once: alone until it is encoded, then inside its encoding."""

from __future__ import annotations

import pytest

from core.build import Inbox, message
from refold.core.context import elide
from refold.core.messagestate import Message
from refold.wire.pieces import NULL, SOME, Cursor, number, text
from refold.wire.snapshot import decode_session, encode_snapshot
from refold.wire.snapshot_messages import encode_message, read_message


def made(text_: str = "words") -> tuple[Inbox, Message, bytes]:
    inbox = Inbox().ok(message("m1", content=text_), message("m2"))
    held = inbox.session.recent[0]
    body = held.body
    assert body is not None
    return inbox, held, body


def test_the_body_is_the_same_before_and_after_it_was_encoded_and_altered() -> None:
    _, held, body = made()
    held.altered()
    assert (held.kept, held.enc) == (body, None)
    first = encode_message(held)
    assert held.kept is None, "held once"
    assert held.body == body
    held.altered()
    held.parent = "another"
    assert held.body == body
    assert encode_message(held) != first
    assert held.body == body


def test_a_decoded_message_has_the_body_it_had() -> None:
    inbox, held, body = made("é" * 300)
    again = decode_session(encode_snapshot(inbox.session))
    assert [m.body for m in again.recent] == [m.body for m in inbox.session.recent]
    assert again.recent[0].body == body
    assert again.recent[0].kept is None
    assert again.recent[1].parent is again.recent[0].id, "one string for both"
    assert again.recent[0].role == held.role


def test_what_was_left_out_stays_left_out() -> None:
    inbox, held, _ = made()
    before = held.size
    elide(held)
    inbox.session.recent_bytes += held.size - before
    inbox.session.enc_context = None
    assert held.body is None
    encode_message(held)
    assert held.body is None, "its encoding is not taken for its content"
    held.altered()
    assert held.body is None
    again = decode_session(encode_snapshot(inbox.session)).recent[0]
    assert (again.body, again.sha256, again.length) == (None, held.sha256, held.length)


def test_bytes_that_leave_the_digest_out_too_are_refused() -> None:
    """Else the message's end would pass for its content."""
    stub = text("m") + NULL + text("user") + b"\x00" * 10
    flags = b"\x00\x00\x00" + SOME + number(5)
    for digest, refused in (("", True), ("ab" * 32, False)):
        data = b"".join((number(1), number(2), text(""), NULL, flags, text(digest), number(len(stub)), stub))
        if refused:
            with pytest.raises(ValueError, match="digest"):
                read_message(Cursor(data, 0))
        else:
            assert read_message(Cursor(data, 0)).body is None
