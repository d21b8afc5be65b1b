"""tau2 simulations:

chat messages with times, flat calls (arguments are an object), tool messages by ``id``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.formats import openai
from refold.formats.body import Body
from refold.formats.calls import CallNames
from refold.formats.extra import pack, unpack
from refold.formats.parts import part
from refold.formats.sources.framed import Framed, one_by_one

FORMAT: Final = "tau2"


def _message_in(message: Any, message_id: str, names: CallNames) -> list[Body]:
    """tau2's tool message differs from OpenAI's in two keys; the rest is OpenAI's own mapping."""
    shaped = dict(message)
    failed = None
    if shaped.get("role") == "tool":
        if isinstance(shaped.get("id"), str) and "tool_call_id" not in shaped:
            shaped["tool_call_id"] = shaped.pop("id")
        failed = shaped.pop("error") if isinstance(shaped.get("error"), bool) else None
    body = openai.message_in(shaped, message_id=message_id, calls=names)
    body["extra_format"] = FORMAT
    if failed is not None:
        (result,) = body["content"]
        body["content"] = [part("tool_result", None, {**result.fields, "is_error": failed})]
        rest, hints = unpack(body["extra"])
        body["extra"] = pack(rest, {**hints, "error": True})
    return [body]


def _message_out(body: Mapping[str, Any]) -> dict[str, Any]:
    _, hints = unpack(body["extra"])
    made = openai.message_out(body)
    if made.get("role") == "tool" and "tool_call_id" in made:
        made["id"] = made.pop("tool_call_id")
    if hints.get("error"):
        made["error"] = bool(body["content"][0].fields.get("is_error"))
    return made


def _looks(value: Any) -> float:
    if not isinstance(value, dict) or not {"task_id", "messages"} <= value.keys():
        return 0.0
    messages = value["messages"]
    timed = isinstance(messages, list) and all(isinstance(m, dict) and "turn_idx" in m for m in messages[:4])
    return 1.0 if timed else 0.0


TAU2: Final = Framed(
    name="tau2",
    expects='one simulation {"id", "task_id", "messages": [… "turn_idx" …]} per line',
    place="messages",
    looks=_looks,
    message_in=_message_in,
    messages_out=one_by_one(_message_out),
    natural_id=lambda value: f"tau2-{value['id']}" if isinstance(value.get("id"), str) else None,
    times=("start_time", "timestamp"),
)
