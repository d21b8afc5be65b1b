"""Anthropic citations (the entries of a text block's ``citations``) <-> citation parts."""

from __future__ import annotations

from typing import Any, Final

from refold.formats.extra import checked, pack, put, raw_of, take, take_int, unpack
from refold.formats.parts import Part, part

#: Ranges of the kinds of citation: (start, end) keys.
_RANGES: Final = {
    "char_location": ("start_char_index", "end_char_index"),
    "page_location": ("start_page_number", "end_page_number"),
    "content_block_location": ("start_block_index", "end_block_index"),
    "search_result_location": ("start_block_index", "end_block_index"),
}


def citation_in(item: Any) -> Part:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return part("citation", None, {"extra": pack({}, {"raw": item})})
    rest = {key: value for key, value in item.items() if key != "type"}
    kind = item["type"]
    start, end = _RANGES.get(kind, ("", ""))
    title = "title" if "title" in rest else "document_title"
    address = "url" if "url" in rest else "source"
    made = part(
        "citation",
        take(rest, "cited_text", str),
        {
            "kind": kind,
            "source": take(rest, title, str),
            "uri": take(rest, address, str),
            "document_index": take_int(rest, "document_index", bits=32),
            "start": take_int(rest, start),
            "end": take_int(rest, end),
            "extra": pack(rest, {"title": title, "address": address}),
        },
    )
    return checked(item, made, citation_out)


def citation_out(item: Part) -> Any:
    raw = raw_of(item)
    if raw is not None:
        return raw
    rest, hints = unpack(item.fields.get("extra"))
    kind = item.fields.get("kind")
    start, end = _RANGES.get(kind or "", ("start", "end"))
    made: dict[str, Any] = {"type": kind}
    put(made, "cited_text", item.text)
    put(made, hints.get("title", "title"), item.fields.get("source"))
    put(made, hints.get("address", "url"), item.fields.get("uri"))
    put(made, "document_index", item.fields.get("document_index"))
    put(made, start, item.fields.get("start"))
    put(made, end, item.fields.get("end"))
    return {**made, **rest}
