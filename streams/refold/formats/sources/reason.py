"""LLaMA-Factory's content-part chats: parts are ``{"type": text | reasoning | tool_call, "value"}``.

A tool message answers all calls of the turn in one text. Where that text is a JSON list with one entry per
open call, each entry is one result; else the whole text answers the first open call. SOURCES.md counts tool
messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.errors import InvalidRecord
from refold.formats.body import Body, message_body
from refold.formats.calls import CallNames
from refold.formats.extra import RAW, hints_of, pack, take, unpack
from refold.formats.jsonio import dumps_text, loads, parse_object, same
from refold.formats.parts import Part, generic, part, text, tool_call, tool_result
from refold.formats.sources.framed import Framed, one_by_one

FORMAT: Final = "reason-tool-use"


def _message_in(message: Any, message_id: str, names: CallNames) -> list[Body]:
    rest = dict(message) if isinstance(message, dict) else {}
    role, items = take(rest, "role", str), take(rest, "content", list)
    if role is None or items is None:
        raise InvalidRecord("bad_message", "a message needs a string 'role' and a list 'content'")
    if role == "user":
        names.turn_ended()
    content: list[Part] = []
    for item in items:
        content += _answers_in(item, names) if role == "tool" else [_part_in(item, names)]
    body = message_body(message_id, role, content, extra_format=FORMAT, extra=pack(rest))
    if not same(_message_out(body), message):
        body["extra"] = pack({}, {RAW: message})
    return [body]


def _part_in(item: Any, names: CallNames) -> Part:
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(item, dict) or item.keys() != {"type", "value"} or not isinstance(item["value"], str):
        return generic(kind if isinstance(kind, str) else None, item)
    if kind == "text":
        return text(item["value"])
    if kind == "reasoning":
        return part("reasoning", item["value"])
    said = parse_object(item["value"]) if kind == "tool_call" else None
    if said is None or said.keys() != {"name", "arguments"} or not isinstance(said["name"], str):
        return generic(kind, item)
    raw = said["arguments"] if isinstance(said["arguments"], str) else dumps_text(said["arguments"])
    return tool_call(names.ask(said["name"]), said["name"], raw, pack({}, {"text": item["value"]}))


def _answers_in(item: Any, names: CallNames) -> list[Part]:
    if not isinstance(item, dict) or item.get("type") != "text" or not isinstance(item.get("value"), str):
        return [generic(None, item)]
    whole = item["value"]
    try:
        listed = loads(whole)
    except InvalidRecord:
        listed = None
    waiting = names.waiting()
    if not isinstance(listed, list) or len(listed) != waiting or waiting < 2:
        return [tool_result(names.answer(), [text(whole)])]
    # The exact text stays with the first result: writing the entries again would change its spaces.
    results = []
    for at, entry in enumerate(listed):
        said = entry.get("content", entry) if isinstance(entry, dict) else entry
        body = said if isinstance(said, str) else dumps_text(said)
        marks = {"text": whole} if at == 0 else {"part_of": "previous"}
        results.append(tool_result(names.answer(), [text(body)], extra=pack({}, marks)))
    return results


def _message_out(body: Mapping[str, Any]) -> Any:
    rest, hints = unpack(body["extra"])
    if RAW in hints:
        return hints[RAW]
    content = [_part_out(item) for item in body["content"] if "part_of" not in hints_of(item)]
    return {"role": body["role"], "content": content, **rest}


def _part_out(item: Part) -> Any:
    if item.type == "generic":
        return loads(item.fields["json"])
    if item.type == "tool_result":
        whole = hints_of(item).get("text")
        return {"type": "text", "value": item.fields["content"][0].text if whole is None else whole}
    if item.type == "tool_call":
        return {"type": "tool_call", "value": hints_of(item)["text"]}
    return {"type": item.type, "value": item.text}


def _looks(value: Any) -> float:
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages:
        return 0.0
    parts = [
        item
        for m in messages[:4]
        if isinstance(m, dict) and isinstance(m.get("content"), list)
        for item in m["content"]
    ]
    return (
        1.0
        if parts and all(isinstance(item, dict) and {"type", "value"} <= item.keys() for item in parts)
        else 0.0
    )


REASON: Final = Framed(
    name="reason-tool-use",
    expects='one {"messages": [{"role", "content": [{"type", "value"}]}]} per line (LLaMA-Factory)',
    place="messages",
    looks=_looks,
    message_in=_message_in,
    messages_out=one_by_one(_message_out),
)
