"""Parts: lossless for what providers send, byte-exact for what nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.envelope import Envelope
from refold.core.events import ToolCallCompleted
from refold.core.messagestate import Message
from refold.core.session import initial
from refold.errors import InvalidRecord, UsageError
from refold.wire import parts
from refold.wire.codec import decode, decode_body, encode, encode_body
from refold.wire.events import decode_event, event_payload
from refold.wire.parts import KINDS, PART_DEPTH_MAX, BlobRef, Part, check_parts, from_wire, to_wire
from refold.wire.snapshot import decode_snapshot, encode_snapshot
from wire.golden import one_of_each_part
from wire.support import SchemaDir, installed, newest, strategy


@pytest.mark.parametrize("part", one_of_each_part(), ids=lambda p: p.type)
def test_a_part_survives_a_message(part: Part) -> None:
    message = {"message_id": "m", "role": "user", "content": [to_wire(part)]}
    read = from_wire(decode(encode("refold.event.MessageAppended", message)).record["content"][0])
    assert read == part
    assert hash(read) == hash(part)
    assert read.fields == part.fields
    assert read.data == part.data


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - parts.NESTING_KINDS))
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_every_field_of_every_kind_comes_back(kind: str, data: st.DataObject) -> None:
    """What a provider sent, opaque JSON included, is the same afterwards."""
    fields = data.draw(strategy(newest(KINDS[kind]).schema))
    part = Part(kind, fields=fields)
    if part.data is not None:
        assert dict(from_wire(to_wire(part)).fields) == fields


def test_opaque_provider_fields_are_byte_exact() -> None:
    """Signatures and encrypted content go back to the provider unchanged, spacing and numbers included."""
    extra = b'{ "signature":"Eq\\u003d=","n":1.0,"n":1.00 }'
    part = parts.reasoning("t", signature="s" * 3000, encrypted="gAAA\0==", extra=extra)
    read = from_wire(to_wire(part))
    assert read.fields["extra"] == extra
    assert read.fields["signature"] == "s" * 3000
    assert read.fields["encrypted"] == "gAAA\0=="


def test_arguments_stay_raw() -> None:
    """D08: cut-off arguments are kept as they are and flagged."""
    part = parts.tool_call("c1", "bash", '{"command": "ls -', arguments_valid=False)
    assert part.fields["arguments"] == '{"command": "ls -'
    assert part.fields["arguments_valid"] is False
    assert part.fields["operation_id"] is None


def test_nested_parts_are_parts() -> None:
    inner = [parts.text("a"), parts.tool_result("c", [parts.refusal("no")]), Part("hologram", data=b"\xff")]
    part = parts.tool_result("c1", inner, is_error=True)
    read = from_wire(to_wire(part))
    assert read.content == tuple(inner)
    assert read.content[1].content == (parts.refusal("no"),)
    check_parts([read])


def test_an_unknown_kind_is_kept_byte_for_byte() -> None:
    part = Part(
        "hologram", "text", ref=BlobRef("u", "h", 1, "m", "data"), type_version=4, data=b"\xff\0not framed"
    )
    read = from_wire(to_wire(part))
    assert read == part
    assert read.opaque
    assert dict(read.fields) == {}
    check_parts([read])


def test_a_newer_version_of_a_kind_is_kept_byte_for_byte(tmp_path: Any) -> None:
    """A newer producer's field is not lost by an older worker that passes the part on."""
    directory = SchemaDir(tmp_path)
    schema = directory.read("part/image/v1.avsc")
    schema["fields"].append({"name": "alt", "type": ["null", "string"], "default": None, "doc": "Alt."})
    directory.write("part/image/v2.avsc", schema)
    directory.add_version("refold.part.Image", 2, "part/image/v2.avsc")
    with installed(directory.lock()):
        newer = to_wire(parts.image(url="u", alt="a cat"))
    read = from_wire(newer)
    check_parts([read])
    assert read.opaque
    assert to_wire(read) == newer
    old = to_wire(parts.image(url="u"))
    with installed(directory.lock()):
        assert from_wire(old).fields["alt"] is None
        assert to_wire(from_wire(old)) == old


def test_data_is_absent_when_there_is_nothing_else() -> None:
    assert parts.text("x").data is None
    assert parts.text("x") == Part("text", "x", {})
    assert Part("text", "x", {"extra": None}).data is None
    assert not parts.text("x").opaque
    assert dict(parts.text("x").fields) == {}


def test_data_of_another_kind_is_refused() -> None:
    wrong = Part("tool_call", data=parts.image(url="u").data)
    with pytest.raises(InvalidRecord) as caught:
        check_parts([wrong])
    assert caught.value.code == "unknown_subject"
    nested = parts.tool_result("c", [parts.text("ok")])
    assert nested.data is not None
    broken = from_wire({**to_wire(nested), "data": nested.data[:-1]})
    with pytest.raises(InvalidRecord):
        check_parts([broken])


def nested(depth: int) -> Part:
    """A text within ``depth - 1`` results."""
    part = parts.text("x")
    for _ in range(depth - 1):
        part = parts.tool_result("c", [part])
    return part


@pytest.mark.parametrize("depth", [PART_DEPTH_MAX + 1, 3_000])
def test_d24_parts_nested_too_deep_are_refused_not_a_recursion_error(depth: int) -> None:
    """D24: 100 KB of results within results ended the worker at every restart: only InvalidRecord is a
    rejection. The limit is a number, so that every machine and call stack gives the same ruling."""
    check_parts([from_wire(to_wire(nested(PART_DEPTH_MAX)))])
    with pytest.raises(InvalidRecord) as caught:
        check_parts([from_wire(to_wire(nested(depth)))])
    assert caught.value.code == "undecodable"
    content = [to_wire(nested(depth))]
    payloads = {
        "MessageAppended": {"message_id": "m", "role": "tool", "content": content},
        "ToolCallCompleted": {"operation_id": "o", "content": content},
    }
    for name, record in payloads.items():
        with pytest.raises(InvalidRecord) as caught:
            decode_event(Envelope("e", "t", "s", name, 1, payload=event_payload(name, record)))
        assert caught.value.code == "undecodable"


def test_what_an_outcome_is_shown_as_is_within_the_depth_too() -> None:
    """An outcome's content becomes the content of a result: the message made of it must pass where it is
    looked into again, in a fork's base."""
    for depth, code in ((PART_DEPTH_MAX - 1, None), (PART_DEPTH_MAX, "undecodable")):
        payload = event_payload(
            "ToolCallCompleted", {"operation_id": "o", "content": [to_wire(nested(depth))]}
        )
        env = Envelope("e", "t", "s", "ToolCallCompleted", 1, payload=payload)
        if code is not None:
            with pytest.raises(InvalidRecord) as caught:
                decode_event(env)
            assert caught.value.code == code
            continue
        event = decode_event(env)
        assert isinstance(event, ToolCallCompleted)
        shown = decode_body("refold.event.MessageAppended", event.body)["content"]
        check_parts([from_wire(item) for item in shown])


def test_a_state_with_parts_nested_too_deep_is_shown_down_to_the_limit() -> None:
    """One that an earlier version wrote: it can be read, what is further down stays bytes."""
    session = initial("t", "s")
    record = {"message_id": "m", "role": "user", "content": [to_wire(nested(3_000))]}
    body = encode_body("refold.event.MessageAppended", record)
    session.seq = 1
    session.system = [Message("m", 1, 1, "user", "", body, len(body), False, None)]
    part = decode_snapshot(encode_snapshot(session))["context"]["system"][0]["content"][0]
    for _ in range(PART_DEPTH_MAX):
        part = part["data"]["content"][0]
    assert isinstance(part["data"], bytes)


def test_wrong_use_is_named() -> None:
    with pytest.raises(UsageError, match="no part kind 'hologram'"):
        Part("hologram", fields={"a": 1})
    with pytest.raises(UsageError, match="has no field 'colour'"):
        parts.image(colour="red")
    with pytest.raises(UsageError, match="not from both"):
        Part("image", fields={"url": "u"}, data=b"x")
    with pytest.raises(InvalidRecord, match=r"ToolCall\.arguments"):
        parts.tool_call("c", "n", "\ud83d")


def test_fields_cannot_be_changed_and_reprs_hold_no_text() -> None:
    part = parts.tool_call("c", "secret", "{}")
    with pytest.raises(TypeError):
        part.fields["name"] = "x"  # type: ignore[index]
    assert "secret" not in repr(part)
    assert "secret" not in repr(parts.text("secret"))
