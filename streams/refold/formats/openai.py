"""OpenAI chat completions messages <-> message bodies, lossless both ways.

A message's parts are listed in one order whatever their place in the source: reasoning, content, refusal,
audio, annotations, tool calls, then the legacy function call. A tool message becomes one ``tool_result``
part. Anything refold has no field for stays in ``extra`` by its own key (``refusal: null``, ``tool_calls:
[]``, ``provider_specific_fields``, …), so null, absent and empty stay three different things.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.errors import InvalidRecord
from refold.formats.body import Body, mark_format, message_body
from refold.formats.calls import CallNames
from refold.formats.extra import (
    RAW,
    Hints,
    checked,
    hints_of,
    pack,
    plain,
    put,
    raw_of,
    take,
    take_int,
    unpack,
)
from refold.formats.jsonio import dumps_text, loads, same
from refold.formats.openai_parts import AT, CONTENT, annotation_in, annotation_out, part_in, part_out
from refold.formats.parts import Part, decode_base64, encode_base64, part, text, tool_call, tool_result

FORMAT: Final = "openai"
#: Keys under which OpenAI-compatible servers send the model's reasoning as text, the first one being the
#: default.
REASONING_KEYS: Final = ("reasoning_content", "reasoning")


def message_in(
    message: Mapping[str, Any], *, message_id: str, calls: CallNames | None = None, **fields: Any
) -> Body:
    """A body for one chat message. ``calls`` names calls without an id across a conversation.

    Raises :class:`InvalidRecord` (``bad_message``) when there is no role.
    """
    names = calls or CallNames(f"refold_call_{message_id}")
    rest = dict(message)
    role = take(rest, "role", str)
    if role is None:
        raise InvalidRecord("bad_message", "a chat message needs a string 'role'")
    hints: Hints = {}
    if role in ("tool", "function"):
        if role == "function":
            hints["role"] = role
        content = [_result_in(rest, hints, names)]
        role = "tool"
    else:
        if role == "user":
            names.turn_ended()
        content = _content_in(rest, hints, names)
        put(fields, "name", take(rest, "name", str))
    body = message_body(message_id, role, content, extra=pack(rest, hints), **fields)
    if not same(message_out(body), dict(message)):
        body["extra"] = pack({}, {RAW: dict(message)})
    return mark_format(body, FORMAT)


def message_out(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat message of a body made by :func:`message_in`, value by value."""
    rest, hints = unpack(body["extra"])
    raw = hints.get(RAW)
    if isinstance(raw, dict):
        return raw
    made: dict[str, Any] = {"role": hints.get("role", body["role"])}
    put(made, "name", body["name"])
    if body["role"] == "tool" and body["content"] and body["content"][0].type == "tool_result":
        _result_out(made, body["content"][0], hints)
    else:
        _content_out(made, body["content"], hints)
    return {**made, **rest}


# ---- content -------------------------------------------------------------------------------------------


def _content_in(rest: dict[str, Any], hints: Hints, names: CallNames) -> list[Part]:
    parts: list[Part] = []
    for key in REASONING_KEYS:
        said = take(rest, key, str)
        if said is not None:
            parts.append(
                part("reasoning", said, {"extra": pack({}, {"key": key} if key != REASONING_KEYS[0] else {})})
            )
    content = _items_in(rest, hints)
    return [*parts, *content, *_tail_in(rest, names)]


def _items_in(rest: dict[str, Any], hints: Hints) -> list[Part]:
    """The parts of ``content``; a value of no known form stays in ``rest``."""
    value = rest.get("content")
    parts: list[Part]
    if "content" not in rest:
        form, parts = "absent", []
    elif value is None:
        form, parts = "null", []
    elif isinstance(value, str):
        form, parts = "string", [text(value)]
    elif isinstance(value, list):
        form, parts = "list", [part_in(item) for item in value]
    else:
        return []
    rest.pop("content", None)
    if form != default_form(parts):
        hints["content"] = form
    return parts


def default_form(content: list[Part]) -> str:
    """How content is written unless a hint says otherwise.

    Nothing is null, one bare text a string, else a list.
    """
    if not content:
        return "null"
    return "string" if len(content) == 1 and plain(content[0]) else "list"


def _tail_in(rest: dict[str, Any], names: CallNames) -> list[Part]:
    parts: list[Part] = []
    refusal = take(rest, "refusal", str)
    if refusal is not None:
        parts.append(part("refusal", refusal))
    if isinstance(rest.get("audio"), dict):
        parts.append(_answer_audio_in(rest.pop("audio")))
    if isinstance(rest.get("annotations"), list) and rest["annotations"]:
        parts.extend(annotation_in(item) for item in rest.pop("annotations"))
    asked = rest.get("tool_calls")
    if isinstance(asked, list) and asked and all(isinstance(call, dict) for call in asked):
        parts.extend(call_in(call, names) for call in rest.pop("tool_calls"))
    legacy = rest.get("function_call")
    if isinstance(legacy, dict) and isinstance(legacy.get("name"), str):
        parts.append(_legacy_in(rest.pop("function_call"), names))
    return parts


def _content_out(made: dict[str, Any], parts: list[Part], hints: Hints) -> None:
    content: list[Part] = []
    for item in parts:
        marks = hints_of(item)
        if item.type == "reasoning":
            made[marks.get("key", REASONING_KEYS[0])] = item.text or ""
        elif item.type == "refusal" and marks.get(AT) != CONTENT:
            made["refusal"] = item.text or ""
        elif item.type == "audio" and marks.get(AT) == "answer":
            made["audio"] = _answer_audio_out(item)
        elif item.type == "citation":
            made.setdefault("annotations", []).append(annotation_out(item))
        elif item.type == "tool_call" and marks.get("legacy"):
            made["function_call"] = _legacy_out(item)
        elif item.type == "tool_call":
            made.setdefault("tool_calls", []).append(call_out(item))
        else:
            content.append(item)
    write_content(made, content, hints)


def write_content(made: dict[str, Any], content: list[Part], hints: Hints) -> None:
    """Set ``content`` in the form it had."""
    form = hints.get("content") or default_form(content)
    if form == "null":
        made["content"] = None
    elif form == "string":
        made["content"] = content[0].text if content else ""
    elif form == "list":
        made["content"] = [part_out(item) for item in content]


def _answer_audio_in(item: dict[str, Any]) -> Part:
    rest = dict(item)
    said = take(rest, "transcript", str)
    raw = decode_base64(rest["data"]) if isinstance(rest.get("data"), str) else None
    if raw is not None:
        del rest["data"]
    fields = {"id": take(rest, "id", str), "expires_at": take_int(rest, "expires_at"), "data": raw}
    return part("audio", said, {**fields, "extra": pack(rest, {AT: "answer"})})


def _answer_audio_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {}
    put(made, "id", item.fields.get("id"))
    put(made, "expires_at", item.fields.get("expires_at"))
    put(made, "transcript", item.text)
    data = item.fields.get("data")
    put(made, "data", None if data is None else encode_base64(data))
    return {**made, **rest}


# ---- calls ---------------------------------------------------------------------------------------------


def call_in(call: Mapping[str, Any], names: CallNames) -> Part:
    """One entry of ``tool_calls``: nested (``function`` or ``custom``) or flat (``name``, ``arguments``)."""
    rest = dict(call)
    hints: Hints = {}
    kind = rest["type"] if isinstance(rest.get("type"), str) else None
    place = "custom" if kind == "custom" else "function"
    inner = rest[place] if isinstance(rest.get(place), dict) else None
    if inner is None:
        hints["flat"] = True
        if "type" in rest:
            hints["type"] = rest.pop("type")
        holder = rest
    else:
        holder = dict(inner)
        del rest[place]
        if kind == place:
            del rest["type"]
            if place == "custom":
                hints["type"] = kind
        else:
            hints["type"] = None
    name = take(holder, "name", str)
    raw = _arguments_in(holder, "input" if place == "custom" else "arguments", hints)
    call_id = take(rest, "id", str)
    if name is None:
        hints["name"], name = "absent", ""
    if call_id is None:
        hints["id"], call_id = "absent", names.ask(name)
    if inner is not None and holder:
        rest[place] = holder
    return checked(dict(call), tool_call(call_id, name, raw, pack(rest, hints)), call_out)


def _arguments_in(holder: dict[str, Any], key: str, hints: Hints) -> str:
    if key not in holder:
        hints["arguments"] = "absent"
        return ""
    value = holder.pop(key)
    if isinstance(value, str):
        return value
    hints["arguments"] = "value"
    return dumps_text(value)


def call_out(item: Part) -> dict[str, Any]:
    raw = raw_of(item)
    if isinstance(raw, dict):
        return raw
    rest, hints = unpack(item.fields.get("extra"))
    kind = hints.get("type", "function")
    custom = kind == "custom" and not hints.get("flat")
    place = "custom" if custom else "function"
    made: dict[str, Any] = {}
    if hints.get("id") != "absent":
        made["id"] = item.fields["call_id"]
    if hints.get("flat"):
        put(made, "type", hints.get("type"))
        holder = made
    else:
        put(made, "type", kind)
        holder = made[place] = dict(rest.pop(place, {}))
    if hints.get("name") != "absent":
        holder["name"] = item.fields["name"]
    if hints.get("arguments") == "value":
        holder["arguments"] = loads(item.fields["arguments"])
    elif hints.get("arguments") != "absent":
        holder["input" if custom else "arguments"] = item.fields["arguments"]
    return {**made, **rest}


def _legacy_in(call: dict[str, Any], names: CallNames) -> Part:
    rest = dict(call)
    hints: Hints = {"legacy": True}
    name = take(rest, "name", str) or ""
    raw = _arguments_in(rest, "arguments", hints)
    return checked(call, tool_call(names.ask(name), name, raw, pack(rest, hints)), _legacy_out)


def _legacy_out(item: Part) -> dict[str, Any]:
    raw = raw_of(item)
    if isinstance(raw, dict):
        return raw
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"name": item.fields["name"]}
    if hints.get("arguments") == "value":
        made["arguments"] = loads(item.fields["arguments"])
    elif hints.get("arguments") != "absent":
        made["arguments"] = item.fields["arguments"]
    return {**made, **rest}


# ---- results -------------------------------------------------------------------------------------------


def _result_in(rest: dict[str, Any], hints: Hints, names: CallNames) -> Part:
    name = take(rest, "name", str)
    call_id = take(rest, "tool_call_id", str)
    if call_id is None:
        many = rest.get("tool_call_ids")
        if isinstance(many, list) and many and all(isinstance(one, str) for one in many):
            call_id = many[0]
            hints["id"] = "list"
            if len(many) == 1:
                del rest["tool_call_ids"]
        else:
            call_id = names.answer(name)
            hints["id"] = "absent"
    return tool_result(call_id, _items_in(rest, hints), name=name)


def _result_out(made: dict[str, Any], item: Part, hints: Hints) -> None:
    put(made, "name", item.fields.get("name"))
    if hints.get("id") == "list":
        made["tool_call_ids"] = [item.fields["call_id"]]
    elif hints.get("id") != "absent":
        made["tool_call_id"] = item.fields["call_id"]
    write_content(made, item.fields.get("content", []), hints)
