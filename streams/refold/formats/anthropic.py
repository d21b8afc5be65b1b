"""Anthropic messages <-> message bodies, lossless both ways.

Works for a request's message (``role``, ``content``) and for a response (``id``, ``model``,
``stop_reason``, ``usage``, …). A response's own keys stay in ``extra`` as they are *and* fill the body's
typed fields, which are what readers look at. A user message with a tool result gets role ``tool``: the
window must never cut between a call and its results, and that rule goes by role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.errors import InvalidRecord
from refold.formats.anthropic_blocks import blocks_in, blocks_out
from refold.formats.body import Body, mark_format, message_body
from refold.formats.extra import RAW, Hints, pack, plain, take, unpack
from refold.formats.jsonio import same
from refold.formats.parts import Part, text

FORMAT: Final = "anthropic"


def message_in(message: Mapping[str, Any], *, message_id: str, **fields: Any) -> Body:
    """A body for one message. Raises :class:`InvalidRecord` (``bad_message``) when there is no role."""
    rest = dict(message)
    role = take(rest, "role", str)
    if role is None:
        raise InvalidRecord("bad_message", "an Anthropic message needs a string 'role'")
    hints: Hints = {}
    content = _content_in(rest, role, hints)
    if role == "user" and any(item.type == "tool_result" for item in content):
        role = "tool"
    fields = {**_typed(rest), **fields}
    body = message_body(message_id, role, content, extra=pack(rest, hints), **fields)
    if not same(message_out(body), dict(message)):
        body["extra"] = pack({}, {RAW: dict(message)})
    return mark_format(body, FORMAT)


def message_out(body: Mapping[str, Any]) -> dict[str, Any]:
    """The message of a body made by :func:`message_in`, value by value."""
    rest, hints = unpack(body["extra"])
    raw = hints.get(RAW)
    if isinstance(raw, dict):
        return raw
    role = "user" if body["role"] == "tool" else body["role"]
    made: dict[str, Any] = {"role": role}
    form = hints.get("content") or _default_form(body["content"], role)
    if form == "string":
        made["content"] = body["content"][0].text
    elif form == "list":
        made["content"] = blocks_out(body["content"])
    return {**made, **rest}


def _content_in(rest: dict[str, Any], role: str, hints: Hints) -> list[Part]:
    value = rest.get("content")
    if isinstance(value, str):
        form, parts = "string", [text(value)]
    elif isinstance(value, list):
        form, parts = "list", blocks_in(value)
    else:
        hints["content"] = "absent"  # Null, missing or of another type: what there is stays in rest.
        return []
    del rest["content"]
    if form != _default_form(parts, role):
        hints["content"] = form
    return parts


def _default_form(parts: list[Part], role: str) -> str:
    """Models answer in lists; people's single bare text is written as a string."""
    return "string" if role != "assistant" and len(parts) == 1 and plain(parts[0]) else "list"


def _typed(rest: Mapping[str, Any]) -> dict[str, Any]:
    """The typed fields of a response's body; the keys themselves stay in ``extra``."""
    fields: dict[str, Any] = {}
    if rest.get("type") != "message":
        return fields
    for key, name in (("id", "group_id"), ("model", "model"), ("stop_reason", "finish_reason")):
        if isinstance(rest.get(key), str):
            fields[name] = rest[key]
    fields["provider"] = FORMAT
    usage = usage_of(rest.get("usage"))
    if usage:
        fields["usage"] = usage
    return fields


def usage_of(usage: Any) -> dict[str, int] | None:
    """Typed usage of a response.

    Anthropic counts cached input beside ``input_tokens``; refold's input has all.
    """
    if not isinstance(usage, dict):
        return None

    def count(key: str) -> int:
        value = usage.get(key)
        return value if type(value) is int and 0 <= value < 1 << 62 else 0

    cached = count("cache_read_input_tokens")
    return {
        "input": count("input_tokens") + cached + count("cache_creation_input_tokens"),
        "output": count("output_tokens"),
        "cached": cached,
        "reasoning": 0,
    }
