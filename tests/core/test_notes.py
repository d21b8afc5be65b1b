"""What the ruling on an accepted event tells its writer: an id that the session does not hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from refold.core import evolve, initial
from refold.core.events import MessageAppended
from refold.core.notes import NOTES, Note, note_on
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import encode_snapshot

from .build import SESSION, TENANT, Inbox, call, intended, message, outcome, result, text
from .histories import histories

What = tuple[str, dict[str, Any]]


def told(inbox: Inbox, what: What) -> Note | None:
    """Asked twice: it changes nothing."""
    decoded = decode_event(decode_envelope(encode_envelope(inbox.envelope(*what))))
    before = encode_snapshot(inbox.session)
    found = note_on(inbox.session, decoded)
    assert (note_on(inbox.session, decoded), encode_snapshot(inbox.session)) == (found, before)
    return found


@pytest.fixture
def asked() -> Inbox:
    return Inbox().ok(
        message("s", "system"),
        message("u"),
        message("a", "assistant", [call("c1"), call("c2")]),
        intended("op1", None),
    )


@pytest.mark.parametrize(
    ("what", "note"),
    [
        (message("t", "tool", [result("c1")]), None),
        (message("t", "tool", [result("c1"), result("c2")]), None),
        (message("t", "tool", [result("c3")]), "no_call"),
        (message("t", "tool", [result("c1"), result("c3")]), "no_call"),
        (message("t", "user", [text("here it is"), result("c3")]), "no_call"),
        (message("t", "assistant", [call("srv"), result("srv")]), None),
        (outcome("op1"), None),
        (outcome(None, "c1"), None),
        (outcome("op2"), "no_call"),
        (outcome(None, "c3"), "no_call"),
        (outcome("op2", failed=True), "no_call"),
        (message("v"), None),
        (message("v", parent_id=""), None),
        (message("v", parent_id="u"), None),
        (message("v", parent_id="a"), None),
        (message("v", parent_id="s"), None),
        (message("v", parent_id="typo"), "no_parent"),
        (message("t", "tool", [result("c1")], parent_id="typo"), "no_parent"),
    ],
)
def test_what_is_not_held_is_told_and_nothing_else(asked: Inbox, what: What, note: str | None) -> None:
    """L6, B3: accepted all the same."""
    assert told(asked, what) == note
    asked.ok(what)


def test_a_result_of_a_call_that_is_over_has_its_call(asked: Inbox) -> None:
    asked.ok(message("t", "tool", [result("c1")]), outcome("op1"))
    assert told(asked, message("t2", "tool", [result("c1", "other")])) is None


def test_a_path_goes_on_under_a_missing_parent_without_being_told_again(asked: Inbox) -> None:
    asked.ok(message("v", parent_id="typo"))
    assert told(asked, message("w", "assistant")) is None
    assert told(asked, message("w", "assistant", parent_id="v")) is None


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(histories())
def test_l6_who_is_told_has_a_result_outside_the_context(inbox: Inbox) -> None:
    """Goal: the note and the fold mean the same. Method: fold a random journal anew; a message of nothing but
    results, or an outcome, waits unmatched exactly where the note said so."""
    session = initial(TENANT, SESSION)
    for entry, decoded in inbox.entries():
        note = note_on(session, decoded)
        evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
        if note == "no_parent" or (isinstance(decoded, MessageAppended) and not decoded.only_results):
            continue
        waits = [
            one for held in session.orphans if held.message.seq == entry.seq for one in held.results
            if not one.matched
        ]  # fmt: skip
        assert bool(waits) == (note == "no_call"), (entry.env.type, note)


def test_every_note_is_in_words() -> None:
    assert all(len(words) > 40 for words in NOTES.values())
    assert set(NOTES) == {"no_call", "no_parent"}, "names are wire contract"
