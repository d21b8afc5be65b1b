"""Anthropic's rules for a request's ``system`` and ``messages``, as the API enforces them (HTTP 400
otherwise).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_SERVER_ID: Final = re.compile(r"srvtoolu_[a-zA-Z0-9_]+")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_THINKING: Final = ("thinking", "redacted_thinking")
#: Keys each block must and may have. ``cache_control`` is allowed by the API, four times; refold sends none.
_BLOCKS: Final[Mapping[str, tuple[set[str], set[str]]]] = {
    "text": ({"text"}, {"citations"}),
    "image": ({"source"}, set()),
    "document": ({"source"}, {"title", "context", "citations"}),
    "tool_use": ({"id", "name", "input"}, set()),
    "tool_result": ({"tool_use_id"}, {"content", "is_error"}),
    "thinking": ({"thinking", "signature"}, set()),
    "redacted_thinking": ({"data"}, set()),
    "server_tool_use": ({"id", "name", "input"}, set()),
    "web_search_tool_result": ({"tool_use_id", "content"}, set()),
}
_IN_USER: Final = {"text", "image", "document", "tool_result"}
_IN_ASSISTANT: Final = {
    "text",
    "tool_use",
    "thinking",
    "redacted_thinking",
    "server_tool_use",
    "web_search_tool_result",
}
_IN_RESULT: Final = {"text", "image", "document"}
_IMAGES: Final = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def problems_anthropic(request: Mapping[str, Any]) -> list[str]:
    """Every rule broken, as ``messages.N: …``; empty when the API accepts ``system`` and ``messages``."""
    messages = request.get("messages")
    found = _system_problems(request.get("system"))
    found += [f"unknown key {key!r}" for key in request.keys() - {"system", "messages"}]
    if not isinstance(messages, Sequence) or not messages:
        return [*found, "messages: empty"]
    if messages[0].get("role") != "user":
        found.append("messages.0: the first message must use the user role")
    used: set[str] = set()
    for at, message in enumerate(messages):
        where = f"messages.{at}"
        if message.keys() != {"role", "content"} or message["role"] not in ("user", "assistant"):
            found.append(f"{where}: needs role user or assistant, and content, only")
            continue
        if at and message["role"] == messages[at - 1]["role"]:
            found.append(f"{where}: roles must alternate")
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if not isinstance(blocks, list) or not blocks:
            found.append(f"{where}: content must not be empty")
            continue
        allowed = _IN_USER if message["role"] == "user" else _IN_ASSISTANT
        found += [
            one
            for n, block in enumerate(blocks)
            for one in _block_problems(f"{where}.content.{n}", block, allowed)
        ]
        if message["role"] == "assistant":
            found += _assistant_problems(where, blocks, used, last=at == len(messages) - 1)
            after = messages[at + 1] if at + 1 < len(messages) else None
            found += _answer_problems(where, blocks, after)
        else:
            found += _result_problems(where, blocks, messages[at - 1] if at else None)
    return [*found, *_encoding_problems(request)]


def _system_problems(system: Any) -> list[str]:
    if system is None or isinstance(system, str):
        return []
    if not isinstance(system, list) or not system:
        return ["system: must be a string or a list of text blocks"]
    return [one for n, block in enumerate(system) for one in _block_problems(f"system.{n}", block, {"text"})]


def _block_problems(where: str, block: Any, allowed: set[str]) -> list[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in allowed:
        return [f"{where}: a block of type {kind!r} may not stand here"]
    must, may = _BLOCKS[kind]
    keys = block.keys() - {"type"}
    found = [f"{where}.{key}: field required" for key in must - keys]
    found += [f"{where}.{key}: extra inputs are not permitted" for key in keys - must - may]
    if found:
        return found
    if kind == "text":
        return (
            []
            if isinstance(block["text"], str) and block["text"].strip()
            else [f"{where}: text must be non-blank"]
        )
    if kind in ("tool_use", "server_tool_use"):
        pattern = _ID if kind == "tool_use" else _SERVER_ID
        ok = (
            pattern.fullmatch(str(block["id"]))
            and _NAME.fullmatch(str(block["name"]))
            and isinstance(block["input"], dict)
        )
        return [] if ok else [f"{where}: bad id, name or input"]
    if kind == "tool_result":
        return _content_problems(where, block)
    if kind == "thinking":
        return (
            []
            if isinstance(block["signature"], str) and block["signature"]
            else [f"{where}: signature required"]
        )
    if kind in ("image", "document"):
        return _source_problems(where, kind, block["source"])
    return []


def _content_problems(where: str, block: Mapping[str, Any]) -> list[str]:
    content = block.get("content", "")
    if isinstance(content, str):
        return []
    if not isinstance(content, list) or not content:
        return [f"{where}: content must be a string or blocks"]
    return [
        one
        for n, item in enumerate(content)
        for one in _block_problems(f"{where}.content.{n}", item, _IN_RESULT)
    ]


def _source_problems(where: str, kind: str, source: Any) -> list[str]:
    if not isinstance(source, dict):
        return [f"{where}: source must be an object"]
    if source.get("type") == "url":
        return [] if str(source.get("url", "")).startswith("http") else [f"{where}: not a URL"]
    types = _IMAGES if kind == "image" else {"application/pdf"}
    ok = (
        source.keys() == {"type", "media_type", "data"}
        and source["type"] == "base64"
        and source["media_type"] in types
    )
    return [] if ok and source["data"] else [f"{where}: not a source the API takes"]


def _assistant_problems(where: str, blocks: list[Any], used: set[str], *, last: bool) -> list[str]:
    found = []
    kinds = [block.get("type") for block in blocks]
    if any(kind in _THINKING for kind in kinds) and kinds[0] not in _THINKING:
        found.append(f"{where}: a turn with thinking must begin with it")
    if kinds[-1] in _THINKING:
        found.append(f"{where}: the final block cannot be thinking")
    if last and kinds[-1] == "text" and blocks[-1]["text"] != blocks[-1]["text"].rstrip():
        found.append(f"{where}: final assistant content cannot end with trailing whitespace")
    calls = [n for n, kind in enumerate(kinds) if kind == "tool_use"]
    if calls and calls != list(range(calls[0], len(kinds))):
        found.append(f"{where}: tool_use blocks must come last")
    for block in blocks:
        if block.get("type") in ("tool_use", "server_tool_use"):
            if block.get("id") in used:
                found.append(f"{where}: tool_use ids must be unique")
            used.add(block.get("id"))
    asked = sorted(str(block.get("id")) for block in blocks if block.get("type") == "server_tool_use")
    told = sorted(
        str(block.get("tool_use_id")) for block in blocks if str(block.get("type")).endswith("_tool_result")
    )
    if asked != told:
        found.append(f"{where}: a server tool's use and result must be in one turn")
    return found


def _answer_problems(where: str, blocks: list[Any], after: Any) -> list[str]:
    asked = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    told = [
        b.get("tool_use_id")
        for b in (after or {}).get("content", [])
        if isinstance(b, dict) and b.get("type") == "tool_result"
    ]
    missing = [call for call in asked if call not in told]
    return (
        [f"{where}: tool_use ids without tool_result blocks immediately after: {missing}"] if missing else []
    )


def _result_problems(where: str, blocks: list[Any], before: Any) -> list[str]:
    kinds = [block.get("type") for block in blocks]
    told = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    found = []
    if "tool_result" in kinds[len(told) :]:
        found.append(f"{where}: tool_result blocks must come first")
    if len(set(told)) != len(told):
        found.append(f"{where}: each tool_use must have a single result")
    asked = [
        b.get("id")
        for b in (before or {}).get("content", [])
        if isinstance(b, dict) and b.get("type") == "tool_use"
    ]
    found += [
        f"{where}: tool_result without its tool_use in the message before: {one}"
        for one in told
        if one not in asked
    ]
    return found


def _encoding_problems(request: Mapping[str, Any]) -> list[str]:
    try:
        json.dumps(request, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (UnicodeEncodeError, ValueError) as error:
        return [f"the request has no JSON form: {error}"]
    return []
