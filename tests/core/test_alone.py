"""What a writer can know before it sends: the fold's rules about ids, sizes and values, without a session."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from core.build import Inbox, event, message, step
from core.histories import busy_histories, histories
from refold.core.alone import CODES, wrong_alone
from refold.core.envelope import Actor
from refold.core.rulings import Duplicate, Rejected
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event

PATIENT = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
LONG = "é" * 129  # 258 bytes
STARTED: dict[str, Any] = {"attempt": 1, "holder": "h", "lease_ms": 1, "fencing": 0}

BAD: list[tuple[tuple[str, dict[str, Any]], dict[str, Any], str]] = [
    (message(LONG), {}, "bad_id"),
    (message("@mine"), {}, "bad_id"),
    (message("m", parent_id=LONG), {}, "bad_id"),
    (message("m", parent_id="m"), {}, "bad_value"),
    (message("m"), {"event_id": LONG}, "bad_id"),
    (message("m"), {"actor": Actor("user", LONG)}, "bad_id"),
    (event("FactSet", name=LONG, value="1"), {}, "bad_id"),
    (event("FactSet", name="f", value=f'"{"x" * 8_192}"'), {}, "too_large"),
    (event("FactSet", name="f", value="{"), {}, "bad_json"),
    (event("SessionConfigured", window_messages=101), {}, "bad_value"),
    (step("ToolCallStarted", "op", **{**STARTED, "holder": LONG}), {}, "bad_id"),
    (step("ToolCallStarted", "op", **{**STARTED, "lease_ms": -1}), {}, "bad_value"),
]


@pytest.mark.parametrize(("what", "fields", "code"), BAD)
def test_what_no_session_takes_is_known_without_one(
    what: tuple[str, dict[str, Any]], fields: dict[str, Any], code: str
) -> None:
    """Goal: the writer hears the fold's own words, before anything is sent."""
    env = Inbox().envelope(*what, **fields)
    wrong = wrong_alone(env, decode_event(env))
    assert wrong is not None
    assert wrong.code == code
    if what[0] != "ToolCallStarted":  # whose row is asked for first
        ruling = Inbox().send(what, **fields)
        assert isinstance(ruling, Rejected)
        assert (ruling.code, ruling.reason) == (code, wrong.reason)


@PATIENT
@given(histories())
def test_what_a_session_takes_is_never_wrong_alone(inbox: Inbox) -> None:
    """Goal: no event that some session would have taken is refused by the writer."""
    _compare(inbox)


@PATIENT
@given(busy_histories())
def test_nor_is_what_is_said_of_calls_and_generations(inbox: Inbox) -> None:
    _compare(inbox)


def _compare(inbox: Inbox) -> None:
    again = Inbox()
    for value, at_ms in inbox.records:
        env = decode_envelope(value)
        wrong = wrong_alone(env, decode_event(env))
        ruling = again.put(value, at_ms)
        # A stamp behind its producer's last one is a repeat, whatever the event holds.
        assert wrong is None or (isinstance(ruling, Rejected | Duplicate) and wrong.code in CODES)
