"""Payload -> event: the reading by hand agrees with the compiled reader on every input (D24 to D27)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core import Envelope
from refold.core.events import MessageAppended, Opaque, ToolCallCompleted
from refold.core.types import IMPLEMENTED_TYPES
from refold.errors import InvalidRecord
from refold.wire import parts
from refold.wire.bodies import from_record, read_plain
from refold.wire.codec import decode_body, encode, encode_body
from refold.wire.events import decode_event, event_payload

from .build import call, message, outcome, result, text

SUBJECT = "refold.event.MessageAppended"
FIELDS = ("message_id", "parent_id", "role", "body", "only_results", "replaces")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
optional = st.none() | texts
bodies = st.fixed_dictionaries(
    {
        "message_id": texts,
        "parent_id": optional,
        "role": st.sampled_from(["user", "assistant", "tool", "wizard"]) | texts,
        "content": st.lists(st.builds(lambda t: parts.to_wire(text(t)), texts), max_size=2),
        "name": optional,
        "replaces": optional,
        "group_id": optional,
        "model": optional,
        "provider": optional,
        "finish_reason": optional,
        "usage": st.none()
        | st.fixed_dictionaries(
            {k: st.integers(-(2**63), 2**63 - 1) for k in ("input", "output", "cached", "reasoning")}
        )
        | st.fixed_dictionaries(
            {k: st.integers(0, 200_000) for k in ("input", "output", "cached", "reasoning")}
        ),
        "extra_format": optional,
        "extra": st.none() | st.binary(max_size=20),
    }
)


def same(a: MessageAppended, b: MessageAppended) -> bool:
    return all(getattr(a, f) == getattr(b, f) for f in FIELDS) and not a.calls and not a.results


def strictly(body: bytes) -> MessageAppended | None:
    try:
        return from_record(decode_body(SUBJECT, body), body)
    except InvalidRecord:
        return None


@settings(max_examples=300, deadline=None)
@given(bodies)
def test_by_hand_is_what_the_compiled_reader_says(record: dict[str, object]) -> None:
    body = encode_body(SUBJECT, record)
    quick = read_plain(body)
    exact = strictly(body)
    assert exact is not None
    if quick is not None:
        assert same(quick, exact)
    else:
        content = record["content"]
        usage = record["usage"]
        large = usage is not None and any(not -(2**27) <= n < 2**27 for n in usage.values())  # type: ignore[attr-defined]
        assert len(content) != 1 or large  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(bodies, st.randoms(use_true_random=False))
def test_by_hand_never_takes_what_the_compiled_reader_refuses(
    record: dict[str, object], chance: random.Random
) -> None:
    """Damaged bytes: cut, flipped, extended."""
    body = bytearray(encode_body(SUBJECT, record))
    for _ in range(chance.randrange(1, 4)):
        kind = chance.randrange(3)
        at = chance.randrange(len(body)) if body else 0
        if kind == 0 and body:
            body[at] = chance.randrange(256)
        elif kind == 1:
            del body[at:]
        else:
            body[at:at] = bytes([chance.randrange(256)])
    damaged = bytes(body)
    quick = read_plain(damaged)
    if quick is not None:
        exact = strictly(damaged)
        assert exact is not None
        assert same(quick, exact)


def envelope(type_name: str, payload: bytes, version: int = 1) -> Envelope:
    return Envelope("e", "t", "s", type_name, version, payload=payload)


def code_of(type_name: str, payload: bytes) -> str:
    with pytest.raises(InvalidRecord) as caught:
        decode_event(envelope(type_name, payload))
    return caught.value.code


@pytest.mark.parametrize("type_name", sorted(IMPLEMENTED_TYPES))
def test_d24_broken_payloads_of_known_types_are_refused_with_a_code(type_name: str) -> None:
    frame = encode(SUBJECT, message("m")[1])[:5]
    assert code_of(type_name, b"") == "empty_value"
    assert code_of(type_name, b"\x00\x00") == "bad_frame"
    assert code_of(type_name, b"{}{}{}") == "bad_magic"
    assert code_of(type_name, b"\x00\x00\x00\x00\x07abc") == "unknown_schema"
    wrong = frame if type_name != "MessageAppended" else event_payload("SessionClosed", {})
    assert code_of(type_name, wrong + b"\x00") == "unknown_subject"


def test_d25_nul_and_pairs_pass_and_a_lone_surrogate_does_not() -> None:
    """D25: one rule in every codec: refused at the door, never in the state."""
    for body in ("a\u0000b", "\U0001f600"):
        event = decode_event(
            envelope("MessageAppended", event_payload("MessageAppended", message("m", content=body)[1]))
        )
        assert isinstance(event, MessageAppended)
        assert decode_body(SUBJECT, event.body)["content"][0]["text"] == body
    with pytest.raises(InvalidRecord) as caught:
        event_payload("MessageAppended", message("m", content="\ud83d")[1])
    assert caught.value.code == "lone_surrogate"
    good = event_payload("MessageAppended", message("m", content="abc")[1])
    assert code_of("MessageAppended", good.replace(b"abc", b"\xed\xa0\xbd")) == "lone_surrogate"
    assert code_of("MessageAppended", good.replace(b"abc", b"a\xffc")) == "bad_text"


def test_d26_unknown_types_versions_and_parts_are_kept_untouched() -> None:
    """D26: what a newer writer says is opaque here, not an error and not lost."""
    assert isinstance(decode_event(envelope("BrandNew", b"\xff\xfe")), Opaque)
    assert isinstance(decode_event(envelope("MessageAppended", b"\xff", version=2)), Opaque)
    record = message("m", content=[text("a")])[1]
    record["content"] += [
        {"type": "hologram", "type_version": 3, "text": None, "data": b"\x09\x09", "ref": None},
        {
            "type": "tool_call",
            "type_version": 2,
            "text": None,
            "data": b"\x00\x7f\x00\x00\x01abc",
            "ref": None,
        },
    ]
    payload = event_payload("MessageAppended", record)
    event = decode_event(envelope("MessageAppended", payload))
    assert isinstance(event, MessageAppended)
    assert event.body == payload[5:]
    assert event.calls == ()


def test_a_part_with_broken_data_is_refused() -> None:
    """Else a later reader of the state would meet it."""
    record = message("m", content=[call("c")])[1]
    record["content"][0]["data"] = record["content"][0]["data"][:-1]
    assert code_of("MessageAppended", event_payload("MessageAppended", record)) == "undecodable"


def test_calls_are_the_assistants_and_results_are_not() -> None:
    content = [text("x"), call("c1", "f", '{"a":1}', "op1"), result("c0", "r" * 5000)]
    mine = decode_event(
        envelope("MessageAppended", event_payload("MessageAppended", message("m", "assistant", content)[1]))
    )
    yours = decode_event(
        envelope("MessageAppended", event_payload("MessageAppended", message("m", "user", content)[1]))
    )
    assert isinstance(mine, MessageAppended)
    assert isinstance(yours, MessageAppended)
    assert [(c.call_id, c.tool, c.arguments, c.operation_id) for c in mine.calls] == [
        ("c1", "f", '{"a":1}', "op1")
    ]
    assert mine.results == ()
    assert yours.calls == ()
    assert [(r.call_id, len(r.summary), r.is_error) for r in yours.results] == [("c0", 1024, False)]
    assert not yours.only_results


def test_the_message_made_from_an_outcome_is_what_the_writer_would_write() -> None:
    """Made by joining bytes: the same as encoding the record, for short and long ids, and none."""
    for operation_id, call_id, message_id in (
        ("op", "c", "m" * 200),
        ("op", None, None),
        (None, "c" * 100, None),
    ):
        what = outcome(operation_id, call_id, "é" * 300, message_id=message_id, is_error=True)
        made = decode_event(envelope(what[0], event_payload(*what)))
        assert isinstance(made, ToolCallCompleted)
        shown = message(
            message_id or "@e", "tool", [result(call_id or operation_id or "", "é" * 300, is_error=True)]
        )
        assert made.body == encode_body(SUBJECT, shown[1])
        assert made.summary == "é" * 300


def test_d27_numbers_and_branches_survive() -> None:
    """D27: 2^31 and 2^53 + 1 are exact, a missing optional is null, instants are plain numbers."""
    usage = {"input": 2**31, "output": 2**53 + 1, "cached": 0, "reasoning": 0}
    payload = event_payload("MessageAppended", message("m", usage=usage, model="x")[1])
    event = decode_event(envelope("MessageAppended", payload))
    assert isinstance(event, MessageAppended)
    assert decode_body(SUBJECT, event.body)["usage"] == usage
