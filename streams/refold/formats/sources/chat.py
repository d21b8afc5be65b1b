"""OpenAI-style chat JSON Lines, tau-bench trajectories and SWE-agent trajectories.

All three are lists of OpenAI chat messages in a frame of their own. OpenHands' LLM logs are OpenAI-style
chat too: request messages under ``messages``, the answer stays in the frame.
"""

from __future__ import annotations

from typing import Any, Final

from refold.formats import openai
from refold.formats.body import Body
from refold.formats.calls import CallNames
from refold.formats.sources.framed import Framed, one_by_one

_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
#: Anthropic's block types: a chat that has one is not OpenAI's.
_FOREIGN: Final = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"})


def is_chat(messages: Any) -> bool:
    """Whether these are OpenAI chat messages as far as their first ones show."""
    return isinstance(messages, list) and all(_is_message(message) for message in messages[:8])


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(
            isinstance(item, dict) and "value" not in item and item.get("type") not in _FOREIGN
            for item in content
        )
    return content is None or isinstance(content, str)


def _message_in(message: Any, message_id: str, names: CallNames) -> list[Body]:
    return [openai.message_in(message, message_id=message_id, calls=names)]


def _looks_chat(value: Any) -> float:
    if isinstance(value, list):
        return 0.8 if value and is_chat(value) else 0.0
    if not isinstance(value, dict) or "messages" not in value or not is_chat(value["messages"]):
        return 0.0
    return 0.4 if "system" in value or "anthropic_version" in value else 0.8


def _looks_tau(value: Any) -> float:
    return (
        1.0
        if isinstance(value, dict) and {"task_id", "traj"} <= value.keys() and is_chat(value["traj"])
        else 0.0
    )


def _looks_swe(value: Any) -> float:
    if not isinstance(value, dict) or not is_chat(value.get("history")) or not value["history"]:
        return 0.0
    return 1.0 if "agent" in value["history"][0] or "trajectory" in value else 0.5


CHAT: Final = Framed(
    name="openai",
    expects='one {"messages": [{"role", "content", …}]} per line',
    place="messages",
    looks=lambda value: _looks_chat(value) if isinstance(value, dict) else 0.0,
    message_in=_message_in,
    messages_out=one_by_one(openai.message_out),
)
BARE_CHAT: Final = Framed(
    name="openai-list",
    expects='one [{"role", "content", …}] per line',
    place=None,
    looks=lambda value: _looks_chat(value) if isinstance(value, list) else 0.0,
    message_in=_message_in,
    messages_out=one_by_one(openai.message_out),
)
TAU: Final = Framed(
    name="tau-bench",
    expects='one {"task_id", "traj": [chat messages]} per line',
    place="traj",
    looks=_looks_tau,
    message_in=_message_in,
    messages_out=one_by_one(openai.message_out),
)
SWE_AGENT: Final = Framed(
    name="swe-agent",
    expects='one {"history": [chat messages], "trajectory": …} per line',
    place="history",
    looks=_looks_swe,
    message_in=_message_in,
    messages_out=one_by_one(openai.message_out),
)
