"""D26: state records that an older version filled to its larger limits: read, brought within the present
ones, and gone on with."""

from __future__ import annotations

import pytest

from refold.core import Accepted, limits, well_formed
from refold.wire.schemas import registry
from refold.wire.snapshot import SUBJECT, decode_session, encode_snapshot

from .build import Inbox, check_state, event, intended, message, rejected, step
from .test_tight_limits import tight_limits

KIB = 1024

#: The limits that were larger in snapshot version 2.
FORMER = {
    "WINDOW_BYTES_MAX": 160 * KIB,
    "SYSTEM_BYTES_MAX": 64 * KIB,
    "BRANCH_MESSAGES_MAX": 64,
    "BRANCH_BYTES_MAX": 64 * KIB,
    "OPEN_CALLS_MAX": 96,
    "TOOLS_BYTES_MAX": 160 * KIB,
}


def former() -> Inbox:
    """A session at the former limits."""
    with tight_limits(FORMER):
        inbox = Inbox()
        inbox.check = False
        inbox.ok(event("SessionOpened", window_messages=100, window_bytes=160 * KIB))
        for i in range(7):
            inbox.ok(message(f"s{i}", "system", "s" * 9_000))
        for i in range(66):
            inbox.ok(message(f"b{i}", content="b" * 950, parent_id=""))
        inbox.ok(message("u", content="hello"))
        for i in range(90):
            inbox.ok(intended(f"op{i}", arguments='"' + "a" * 1_200 + '"'))
        inbox.ok(step("ToolCallStarted", "op0"), step("ToolCallOutcomeUnknown", "op0"))
        for i in range(6):
            inbox.ok(message(f"w{i}", ("user", "assistant")[i % 2], "w" * 26_000))
        well_formed(inbox.session)
    return inbox


def as_version_2(value: bytes) -> bytes:
    """What that version wrote of the same session: the same fields up to the tail."""
    newest = registry().get(SUBJECT)
    older = registry().get(SUBJECT, 2)
    record, end = newest.read(value, 5)
    assert end == len(value)
    known = {field["name"] for field in older.schema["fields"]}
    pieces: list[bytes] = [older.frame]
    older.write(pieces.append, {**{k: v for k, v in record.items() if k in known}, "version": 2})
    return b"".join(pieces)


def test_d26_a_session_at_the_former_limits_goes_on_within_the_present_ones() -> None:
    inbox = former()
    session = inbox.session
    assert session.recent_bytes > limits.WINDOW_BYTES_MAX
    assert session.system_bytes > limits.SYSTEM_BYTES_MAX
    assert len(session.branch_messages) > limits.BRANCH_MESSAGES_MAX
    assert session.calls_bytes > limits.TOOLS_BYTES_MAX
    assert session.open_calls == 90
    again = decode_session(as_version_2(encode_snapshot(session)))
    check_state(again)
    assert again.window_bytes == limits.WINDOW_BYTES_MAX
    assert again.recent_bytes <= limits.WINDOW_BYTES_MAX
    assert again.head == session.head
    assert [m.id for m in again.system] == [m.id for m in session.system]
    assert again.system[0].body is None, "the oldest lost its words, not its place"
    assert len(again.branch_messages) <= limits.BRANCH_MESSAGES_MAX
    # Calls that wait for somebody are never dropped; they lose their arguments, oldest first.
    assert again.open_calls == 90
    assert again.calls_bytes <= limits.TOOLS_BYTES_MAX
    assert again.calls["op0"].state == "unknown"
    later = Inbox(again)
    later.offset, later.clock = inbox.offset, inbox.clock
    assert rejected(later.send(intended("one more")), "too_many_open_calls")
    for i in range(26):
        later.ok(step("ToolCallDenied", f"op{i + 1}"))
    assert rejected(later.send(intended("one more")), "too_many_open_calls")
    later.ok(step("ToolCallDenied", "op40"), intended("one more"), message("m"))


@pytest.mark.parametrize("events", [1, 3])
def test_d26_a_session_within_the_limits_is_as_it_was(events: int) -> None:
    inbox = Inbox()
    for i in range(events):
        assert isinstance(inbox.send(message(f"m{i}")), Accepted)
    value = encode_snapshot(inbox.session)
    assert encode_snapshot(decode_session(as_version_2(value))) == value
