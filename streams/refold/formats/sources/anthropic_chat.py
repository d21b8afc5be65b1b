"""Anthropic requests as JSON Lines: ``{"messages": […], "system"?: …}``, the messages in Anthropic's shape.

A top-level ``system`` becomes a system message of its own, so that the context has it; the frame keeps it
too, and the export takes it from there.
"""

from __future__ import annotations

from typing import Any, Final

from refold.formats import anthropic
from refold.formats.body import Body
from refold.formats.calls import CallNames
from refold.formats.sources.framed import LEAD, Framed, one_by_one

_OWN_BLOCKS: Final = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"}
)


def _message_in(message: Any, message_id: str, _: CallNames) -> list[Body]:
    return [anthropic.message_in(message, message_id=message_id)]


def _lead(value: Any) -> list[tuple[Any, Body]]:
    system = value.get("system") if isinstance(value, dict) else None
    if not isinstance(system, str | list):
        return []
    said = {"role": "system", "content": system}
    return [(said, anthropic.message_in(said, message_id=f"{LEAD}system"))]


def _looks(value: Any) -> float:
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages:
        return 0.0
    if not all(isinstance(one, dict) and one.get("role") in ("user", "assistant") for one in messages):
        return 0.0
    blocks = [item for one in messages if isinstance(one.get("content"), list) for item in one["content"]]
    if any(isinstance(item, dict) and item.get("type") in _OWN_BLOCKS for item in blocks):
        return 0.9
    return 0.7 if "system" in value or "anthropic_version" in value else 0.0


ANTHROPIC: Final = Framed(
    name="anthropic",
    expects='one {"messages": [{"role", "content": [blocks]}], "system"?} per line',
    place="messages",
    looks=_looks,
    message_in=_message_in,
    messages_out=one_by_one(anthropic.message_out),
    lead=_lead,
)
