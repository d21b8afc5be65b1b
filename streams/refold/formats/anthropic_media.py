"""Anthropic image and document blocks <-> image and file parts.

A source is base64 (kept as bytes where encoding them again gives the same text), an address, an uploaded
file's id, or something newer, which stays in ``extra`` as it is.
"""

from __future__ import annotations

from typing import Any

from refold.formats.extra import Hints, pack, put, take, unpack
from refold.formats.parts import Part, decode_base64, encode_base64, part


def media_in(block: dict[str, Any]) -> Part | None:
    rest = {key: value for key, value in block.items() if key != "type"}
    source = rest.get("source")
    if not isinstance(source, dict):
        return None
    source = dict(rest.pop("source"))
    hints: Hints = {}
    kind = take(source, "type", str)
    fields: dict[str, Any] = {"media_type": take(source, "media_type", str)}
    if kind == "base64" and isinstance(source.get("data"), str):
        data = decode_base64(source["data"])
        if data is not None:
            del source["data"]
            fields["data"] = data
    elif kind == "url":
        fields["url"] = take(source, "url", str)
    elif kind == "file":
        fields["file_id"] = take(source, "file_id", str)
    if kind != _source_kind(fields):
        hints["source"] = kind
    if source:
        rest["source"] = source
    if block["type"] == "document":
        fields["title"] = take(rest, "title", str)
    return part("image" if block["type"] == "image" else "file", None, {**fields, "extra": pack(rest, hints)})


def _source_kind(fields: dict[str, Any]) -> str:
    if fields.get("data") is not None:
        return "base64"
    return "url" if fields.get("url") is not None else "file"


def media_out(item: Part) -> dict[str, Any]:
    rest, hints = unpack(item.fields.get("extra"))
    source = dict(rest.pop("source", {}))
    put(source, "type", hints["source"] if "source" in hints else _source_kind(dict(item.fields)))
    put(source, "media_type", item.fields.get("media_type"))
    data = item.fields.get("data")
    put(source, "data", None if data is None else encode_base64(data))
    put(source, "url", item.fields.get("url"))
    put(source, "file_id", item.fields.get("file_id"))
    made: dict[str, Any] = {"type": "image" if item.type == "image" else "document", "source": source}
    put(made, "title", item.fields.get("title"))
    return {**made, **rest}
