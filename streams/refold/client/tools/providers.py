"""Providers' tool calls in, provider-ready results out.

=====================  =====================================  ==============================================
given                  a call is                              its result is
=====================  =====================================  ==============================================
OpenAI chat            ``{"type": "function", "id",           ``{"role": "tool", "tool_call_id", "content"}``
                       "function": {"name", "arguments"}}``
OpenAI Responses       ``{"type": "function_call",            ``{"type": "function_call_output", "call_id",
                       "call_id", "name", "arguments"}``      "output"}``
Anthropic              ``{"type": "tool_use", "id", "name",   ``{"type": "tool_result", "tool_use_id",
                       "input"}``                             "content", "is_error"}``
=====================  =====================================  ==============================================

Dicts and the SDKs' own objects are taken alike. What stands beside the calls in a response's content or
output (texts, reasoning) is passed over, so the whole list may be handed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from refold.client.tools.outcomes import CallOutcome
from refold.errors import InvalidRecord, UsageError
from refold.formats.jsonio import dumps_text

Provider = Literal["openai", "openai-responses", "anthropic"]

#: Items of a response that ask nothing of us: texts, reasoning, and what the provider runs itself (its
#: results end in ``_tool_result``). Calls of other kinds that wait for an answer are refused by name instead.
NOT_CALLS: Final = frozenset(
    {
        *("text", "refusal", "thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use"),
        *("container_upload", "message", "reasoning", "compaction", "web_search_call", "file_search_call"),
        *("code_interpreter_call", "image_generation_call", "mcp_call", "mcp_list_tools"),
    }
)
PROVIDERS_RESULT: Final = "_tool_result"


@dataclass(frozen=True, slots=True)
class AskedCall:
    """One call as a model asked for it. ``arguments``: its raw text."""

    provider: Provider
    call_id: str
    name: str
    arguments: str

    def result(self, outcome: CallOutcome) -> dict[str, Any]:
        """For the next request, ready to be sent."""
        if self.provider == "openai":
            return {"role": "tool", "tool_call_id": self.call_id, "content": outcome.text}
        if self.provider == "openai-responses":
            return {"type": "function_call_output", "call_id": self.call_id, "output": outcome.text}
        made = {"type": "tool_result", "tool_use_id": self.call_id, "content": outcome.text}
        return {**made, "is_error": True} if outcome.is_error else made


def read_calls(given: Iterable[Any] | None) -> list[AskedCall]:
    """The calls among ``given``, in order. ``None`` (a message without calls) is none. Raises UsageError."""
    if isinstance(given, str | bytes | Mapping):
        raise UsageError("run_tools takes a list: message.tool_calls, response.output or message.content")
    return [call for item in given or () if (call := _read(_plain(item))) is not None]


def _plain(item: Any) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    dump = getattr(item, "model_dump", None)
    if callable(dump):
        made = dump()
        if isinstance(made, Mapping):
            return made
    fields = getattr(item, "__dict__", None)
    if fields:
        return {name: value for name, value in fields.items() if not name.startswith("_")}
    raise UsageError(f"{type(item).__name__} is no tool call: hand in the provider's own objects or dicts")


def _read(item: Mapping[str, Any]) -> AskedCall | None:
    kind = item.get("type")
    if kind in NOT_CALLS or (isinstance(kind, str) and kind.endswith(PROVIDERS_RESULT)):
        return None
    if kind == "tool_use":
        given = item.get("input")
        # A stream that was cut short leaves text: kept as it is.
        raw = given if isinstance(given, str) else _text(given)
        return _made("anthropic", item.get("id"), item.get("name"), raw)
    if kind == "function_call":
        return _made("openai-responses", item.get("call_id"), item.get("name"), item.get("arguments"))
    if kind in ("function", None) and item.get("function") is not None:
        function = _plain(item["function"])
        return _made("openai", item.get("id"), function.get("name"), function.get("arguments"))
    raise UsageError(
        f"an item of type {kind!r} is no function call: run_tools takes OpenAI tool_calls (function), "
        "Responses function_call items and Anthropic tool_use blocks"
    )


def _made(provider: Provider, call_id: Any, name: Any, arguments: Any) -> AskedCall:
    if not isinstance(call_id, str) or not call_id:
        raise UsageError("a tool call without an id: a result could not be tied to it")
    if not isinstance(name, str) or not name:
        raise UsageError(f"tool call {call_id} names no tool")
    raw = arguments if isinstance(arguments, str) else _text(arguments)
    return AskedCall(provider, call_id, name, raw)


def _text(parsed: Any) -> str:
    """Arguments handed out parsed, as text; what JSON cannot hold is left to be found invalid."""
    try:
        return dumps_text({} if parsed is None else parsed)
    except InvalidRecord:
        return json.dumps(parsed)
