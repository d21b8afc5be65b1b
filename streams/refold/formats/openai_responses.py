"""OpenAI Responses API items (the ``input`` and ``output`` lists) <-> message bodies, one body per item.

message, function_call(_output), custom_tool_call(_output), reasoning and compaction have a meaning of their
own; items of tools the provider runs (``web_search_call``, ``code_interpreter_call``, ``mcp_call``, …)
become a provider call whose extra keeps every key; any other item is a generic part. The plain form
``{"role", "content"}`` is read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.formats.body import Body, mark_format, message_body
from refold.formats.extra import RAW, Hints, checked, hints_of, pack, plain, put, raw_of, take, unpack
from refold.formats.jsonio import dumps_text, loads, same
from refold.formats.openai_parts import data_url_out
from refold.formats.parts import Part, generic, part, text, tool_call, tool_result

FORMAT: Final = "openai.responses"
_TEXT_KINDS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_ANSWERS: Final = ("function_call_output", "custom_tool_call_output")


def item_in(item: Mapping[str, Any], *, message_id: str, **fields: Any) -> Body:
    """A body for one item."""
    said_by_role = "type" not in item and isinstance(item.get("role"), str)
    kind = "message" if said_by_role else item.get("type")
    kind = kind if isinstance(kind, str) else None
    rest = dict(item)
    hints: Hints = {}
    role = "assistant"
    content: list[Part] | None = None
    if kind == "message" and isinstance(item.get("role"), str):
        role = rest.pop("role")
        content = _content_in(rest, "content", hints, role)
        hints["type"] = rest.pop("type", None)
        if hints["type"] == "message":
            del hints["type"]
    elif kind in _CALLS and isinstance(item.get("call_id"), str) and isinstance(item.get(_CALLS[kind]), str):
        content = [_call_in(rest, kind)]
    elif kind in _ANSWERS and isinstance(item.get("call_id"), str):
        role = "tool"
        content = [_answer_in(rest, hints)]
    elif kind == "reasoning":
        content = [_reasoning_in(rest)]
    elif kind == "compaction":
        content = [
            part(
                "compaction",
                None,
                {"id": take(rest, "id", str), "encrypted": take(rest, "encrypted_content", str)},
            )
        ]
    elif isinstance(kind, str) and kind.endswith("_call"):
        content = [_provider_call(rest, kind)]
    if content is None:
        content, rest = [generic(kind if isinstance(kind, str) else None, dict(item))], {}
        hints = {"generic": True}
    body = message_body(message_id, role, content, extra=pack(rest, hints), **fields)
    if not same(item_out(body), dict(item)):
        body["extra"] = pack({}, {RAW: dict(item)})
    return mark_format(body, FORMAT)


def item_out(body: Mapping[str, Any]) -> dict[str, Any]:
    """The item of a body made by :func:`item_in`, value by value."""
    rest, hints = unpack(body["extra"])
    raw = hints.get(RAW)
    if isinstance(raw, dict):
        return raw
    content: list[Part] = body["content"]
    first = content[0] if content else None
    if hints.get("generic") and first is not None:
        value = loads(first.fields["json"])
        return value if isinstance(value, dict) else {"value": value}
    made: dict[str, Any] = {}
    kind = rest.get("type")
    if kind is None or first is None:
        put(made, "type", hints.get("type", "message"))
        made["role"] = body["role"]
        _content_out(made, "content", content, hints, body["role"])
    elif first.type == "tool_call":
        made["call_id"] = first.fields["call_id"]
        made["name"] = first.fields["name"]
        made[_CALLS[kind]] = first.fields["arguments"]
    elif first.type == "tool_result":
        made["call_id"] = first.fields["call_id"]
        _content_out(made, "output", first.fields.get("content", []), hints, "tool")
    elif first.type == "reasoning":
        _reasoning_out(made, first)
    elif first.type == "compaction":
        put(made, "id", first.fields.get("id"))
        put(made, "encrypted_content", first.fields.get("encrypted"))
    elif first.type == "provider_tool_call":
        put(made, "id", first.fields.get("call_id"))
        put(made, "status", first.fields.get("status"))
    return {**made, **rest}


def _content_in(rest: dict[str, Any], key: str, hints: Hints, role: str) -> list[Part]:
    value = rest.get(key)
    if isinstance(value, str):
        form, parts = "string", [text(value)]
    elif isinstance(value, list):
        form, parts = "list", [_piece_in(item, role) for item in value]
    else:
        hints["content"] = "absent"
        return []
    del rest[key]
    if form != _default_form(parts):
        hints["content"] = form
    return parts


def _content_out(made: dict[str, Any], key: str, parts: list[Part], hints: Hints, role: str) -> None:
    form = hints.get("content") or _default_form(parts)
    if form == "string":
        made[key] = parts[0].text if parts else ""
    elif form == "list":
        made[key] = [piece_out(item, role) for item in parts]


def _default_form(parts: list[Part]) -> str:
    return "string" if len(parts) == 1 and plain(parts[0]) else "list"


def _piece_in(item: Any, role: str) -> Part:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return generic(None, item)
    rest = dict(item)
    kind = rest.pop("type")
    hints: Hints = {} if kind == _text_kind(role) else {"type": kind}
    if kind in _TEXT_KINDS and isinstance(item.get("text"), str):
        made = text(rest.pop("text"), pack(rest, hints))
    elif kind == "refusal" and isinstance(item.get("refusal"), str):
        made = part("refusal", rest.pop("refusal"), {"extra": pack(rest)})
    elif kind == "input_image":
        made = part(
            "image",
            None,
            {
                "url": take(rest, "image_url", str),
                "file_id": take(rest, "file_id", str),
                "detail": take(rest, "detail", str),
                "extra": pack(rest),
            },
        )
    elif kind == "input_file":
        made = part(
            "file",
            None,
            {
                "url": take(rest, "file_url", str),
                "file_id": take(rest, "file_id", str),
                "filename": take(rest, "filename", str),
                "extra": pack(rest),
            },
        )
    else:
        return generic(kind, item)
    return checked(item, made, lambda one: piece_out(one, role))


def piece_out(item: Part, role: str) -> Any:
    """An entry of a message's ``content``: of a part that has no such form, its type alone."""
    raw = raw_of(item)
    if raw is not None:
        return raw
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {}
    if item.type == "text":
        made.update(type=hints.get("type", _text_kind(role)), text=item.text or "")
    elif item.type == "refusal":
        made.update(type="refusal", refusal=item.text or "")
    elif item.type == "image":
        made["type"] = "input_image"
        put(made, "image_url", data_url_out(item))
        put(made, "file_id", item.fields.get("file_id"))
        put(made, "detail", item.fields.get("detail"))
    elif item.type == "file":
        made["type"] = "input_file"
        put(made, "file_url", item.fields.get("url"))
        put(made, "file_id", item.fields.get("file_id"))
        put(made, "filename", item.fields.get("filename"))
    elif item.type == "generic":
        return loads(item.fields["json"])
    else:
        made["type"] = item.type
    return {**made, **rest}


def _text_kind(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"


def _call_in(rest: dict[str, Any], kind: str) -> Part:
    name = take(rest, "name", str)
    return tool_call(rest.pop("call_id"), name or "", rest.pop(_CALLS[kind]))


def _answer_in(rest: dict[str, Any], hints: Hints) -> Part:
    call_id = rest.pop("call_id")
    return tool_result(call_id, _content_in(rest, "output", hints, "tool"))


def _reasoning_in(rest: dict[str, Any]) -> Part:
    fields: dict[str, Any] = {"id": take(rest, "id", str), "encrypted": take(rest, "encrypted_content", str)}
    summary = rest.get("summary")
    hints: Hints = {}
    if isinstance(summary, list) and all(_bare(item, "summary_text") for item in summary):
        fields["summary"] = [item["text"] for item in rest.pop("summary")]
    else:
        hints["summary"] = "absent"  # The field's default is an empty list, which is what most items have.
    said = rest.get("content")
    words = None
    if isinstance(said, list) and len(said) == 1 and _bare(said[0], "reasoning_text"):
        words = rest.pop("content")[0]["text"]
    return part("reasoning", words, {**fields, "extra": pack({}, hints)})


def _bare(item: Any, kind: str) -> bool:
    return (
        isinstance(item, dict)
        and item.keys() == {"type", "text"}
        and item["type"] == kind
        and isinstance(item["text"], str)
    )


def _reasoning_out(made: dict[str, Any], item: Part) -> None:
    put(made, "id", item.fields.get("id"))
    put(made, "encrypted_content", item.fields.get("encrypted"))
    if hints_of(item).get("summary") != "absent":
        made["summary"] = [{"type": "summary_text", "text": line} for line in item.fields.get("summary", [])]
    if item.text is not None:
        made["content"] = [{"type": "reasoning_text", "text": item.text}]


def _provider_call(rest: dict[str, Any], kind: str) -> Part:
    """The call's own keys stay in the body's extra; the part names the tool and shows what it was asked."""
    asked = {key: rest[key] for key in ("action", "queries", "code", "arguments", "input") if key in rest}
    return part(
        "provider_tool_call",
        None,
        {
            "call_id": take(rest, "id", str),
            "name": kind.removesuffix("_call"),
            "arguments": dumps_text(asked),
            "status": take(rest, "status", str),
        },
    )
