"""Content parts as the formats build and read them: one constructor per kind.

A kind's fields and their meaning are in ``schemas/part``; :class:`refold.wire.parts.Part` carries them.
Nothing here knows a provider.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from refold.errors import InvalidRecord
from refold.formats.jsonio import dumps_text, loads
from refold.wire.parts import NESTING_KINDS, BlobRef, Part, from_wire

__all__ = [
    "Part",
    "as_part",
    "decode_base64",
    "encode_base64",
    "generic",
    "part",
    "text",
    "tool_call",
    "tool_result",
    "valid_json",
]


def part(kind: str, body: str | None = None, fields: Mapping[str, Any] | None = None) -> Part:
    """A part of ``kind``; fields that are ``None`` are left to their schema defaults."""
    kept = {key: value for key, value in (fields or {}).items() if value is not None}
    return Part(type=kind, text=body, fields=kept)


def as_part(item: Part | Mapping[str, Any]) -> Part:
    """A part in any form it is read in: as a value, from the wire (``data`` are bytes), or from a decoded
    snapshot (``data`` are the kind's fields, inner parts alike)."""
    if isinstance(item, Part):
        return item
    data = item["data"]
    if not isinstance(data, Mapping):
        return from_wire(item)
    ref = item["ref"]
    fields = {key: value for key, value in data.items() if value is not None}
    if item["type"] in NESTING_KINDS:
        fields["content"] = [as_part(inner) for inner in data["content"]]
    outside = None if ref is None else BlobRef(**ref)
    return Part(item["type"], item["text"], fields, outside, item["type_version"])


def text(body: str, extra: bytes | None = None) -> Part:
    return part("text", body, {"extra": extra})


def tool_call(call_id: str, name: str, arguments: str, extra: bytes | None = None) -> Part:
    """``arguments`` is the raw text; whether it is JSON is recorded, never repaired."""
    return part(
        "tool_call",
        None,
        {
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "arguments_valid": valid_json(arguments),
            "extra": extra,
        },
    )


def tool_result(
    call_id: str,
    content: Sequence[Part],
    *,
    name: str | None = None,
    is_error: bool = False,
    extra: bytes | None = None,
) -> Part:
    return part(
        "tool_result",
        None,
        {"call_id": call_id, "name": name, "is_error": is_error, "content": list(content), "extra": extra},
    )


def generic(kind: str | None, value: Any) -> Part:
    """A part refold has no name for; the provider's JSON is kept as it is."""
    return part("generic", None, {"kind": kind, "json": dumps_text(value).encode()})


def valid_json(raw: str) -> bool:
    """Whether ``raw`` is JSON that every codec can carry (see :mod:`refold.formats.jsonio`)."""
    try:
        loads(raw)
    except InvalidRecord:
        return False
    return True


def decode_base64(data: str) -> bytes | None:
    """The bytes, or ``None`` when encoding them again would not give exactly ``data``."""
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if encode_base64(raw) == data else None


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
