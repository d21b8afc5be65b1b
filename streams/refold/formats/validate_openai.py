"""OpenAI's rules for a chat completions request's messages, as the API enforces them (HTTP 400 otherwise).

Independent of the renderer: nothing here is shared with it but the ids' alphabet limits, written out again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CALL_ID_MAX: Final = 40
_KEYS: Final = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio", "function_call"},
    "tool": {"role", "content", "tool_call_id"},
}
_PARTS: Final = {
    "system": {"text"},
    "developer": {"text"},
    "tool": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
}


def problems_openai(messages: Sequence[Any]) -> list[str]:
    """Every rule broken, as ``messages.N: …``; empty when the API accepts the list."""
    if not messages:
        return ["messages: empty"]
    found: list[str] = []
    roles = {message.get("role") for message in messages if isinstance(message, dict)}
    if {"system", "developer"} <= roles:
        found.append("messages: both system and developer messages")
    waiting: list[str] = []
    for at, message in enumerate(messages):
        where = f"messages.{at}"
        if not isinstance(message, dict) or message.get("role") not in _KEYS:
            found.append(f"{where}: no known role")
            continue
        role = message["role"]
        if waiting and role != "tool":
            found.append(f"{where}: tool_call_ids without a tool message right after: {', '.join(waiting)}")
            waiting = []
        found += [f"{where}: unknown key {key!r}" for key in message.keys() - _KEYS[role]]
        found += _name_problems(where, message.get("name", "x"))
        found += _content_problems(where, message)
        if role == "tool":
            if message.get("tool_call_id") in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                found.append(f"{where}: a tool message that answers no call of the message before")
        elif role == "assistant" and "tool_calls" in message:
            waiting = _calls(where, message["tool_calls"], found)
    if waiting:
        found.append(f"messages: calls without a tool message: {', '.join(waiting)}")
    return found


def _name_problems(where: str, name: Any) -> list[str]:
    return [] if isinstance(name, str) and _NAME.fullmatch(name) else [f"{where}: bad name"]


def _calls(where: str, calls: Any, found: list[str]) -> list[str]:
    if not isinstance(calls, list) or not calls:
        found.append(f"{where}: tool_calls must be a list with at least one call")
        return []
    ids: list[str] = []
    for at, call in enumerate(calls):
        place = f"{where}.tool_calls.{at}"
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or call.keys() != {"id", "type", "function"}
            or call["type"] != "function"
        ):
            found.append(f"{place}: not a function call")
            continue
        if function.keys() != {"name", "arguments"} or not isinstance(function["arguments"], str):
            found.append(f"{place}: arguments must be a string")
        found.extend(_name_problems(place, function.get("name")))
        if not isinstance(call["id"], str) or not 0 < len(call["id"]) <= _CALL_ID_MAX:
            found.append(f"{place}: an id has 1 to {_CALL_ID_MAX} characters")
        if call["id"] in ids:
            found.append(f"{place}: the id is used twice in one message")
        ids.append(call["id"])
    return ids


def _content_problems(where: str, message: dict[str, Any]) -> list[str]:
    role, content = message["role"], message.get("content")
    if content is None:
        optional = role == "assistant" and (message.get("tool_calls") or message.get("function_call"))
        return [] if optional else [f"{where}: content is missing"]
    if isinstance(content, str):
        return _text_problems(where, content)
    if not isinstance(content, list) or not content:
        return [f"{where}: content must be a string or a list with at least one part"]
    found = []
    for at, part in enumerate(content):
        place = f"{where}.content.{at}"
        if not isinstance(part, dict) or part.get("type") not in _PARTS[role]:
            found.append(f"{place}: a part no {role} message may have")
            continue
        found += _part_problems(place, part)
    if len(content) > 1 and any(isinstance(part, dict) and part.get("type") == "refusal" for part in content):
        found.append(f"{where}: content is texts, or exactly one refusal")
    return found


def _part_problems(place: str, part: dict[str, Any]) -> list[str]:
    kind = part["type"]
    if part.keys() != {"type", kind}:
        return [f"{place}: unknown keys"]
    value = part[kind]
    if kind in ("text", "refusal"):
        return _text_problems(place, value) if isinstance(value, str) else [f"{place}: no text"]
    if not isinstance(value, dict):
        return [f"{place}: {kind} must be an object"]
    if kind == "image_url":
        ok = isinstance(value.get("url"), str) and value["url"].startswith(
            ("http://", "https://", "data:image/")
        )
    elif kind == "input_audio":
        ok = isinstance(value.get("data"), str) and value.get("format") in ("wav", "mp3")
    else:
        ok = isinstance(value.get("file_id"), str) or isinstance(value.get("file_data"), str)
    return [] if ok else [f"{place}: not a {kind} the API takes"]


def _text_problems(where: str, text: str) -> list[str]:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return [f"{where}: a lone surrogate"]
    return []
