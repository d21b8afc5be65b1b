"""Parts: lossless for what providers send, byte-exact for what nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.errors import InvalidRecord, UsageError
from refold.wire import parts
from refold.wire.codec import decode, encode
from refold.wire.parts import KINDS, BlobRef, Part, check_parts, from_wire, to_wire
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
