"""What a message is to the Agents SDK: one item where it came as one, else as many as say the same.

Items that :func:`refold.formats.openai_responses.item_in` has read come back value by value. Messages from
elsewhere (``session.append``, an import, a tool's result) are said in items of the Responses API: one message
for the words, one item for each call and result. What these have no form for is a marked text; thinking of
another shape is left out, because no provider takes another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from refold.formats.openai_responses import FORMAT, item_out, piece_out
from refold.formats.parts import Part
from refold.formats.transcript import said_of

Item: TypeAlias = dict[str, Any]


def items_of(body: Mapping[str, Any]) -> list[Item]:
    """Never empty. ``content`` of ``body`` holds parts."""
    parts: list[Part] = body["content"]
    if body["extra_format"] == FORMAT or (body["extra"] is None and all(p.type == "text" for p in parts)):
        return [item_out(body)]
    role = "assistant" if body["role"] == "tool" else body["role"]
    items: list[Item] = []
    pieces: list[Any] = []
    for part in parts:
        if part.type == "tool_call":
            _say(items, role, pieces)
            fields = part.fields
            items.append(
                {
                    "type": "function_call",
                    "call_id": fields["call_id"],
                    "name": fields["name"],
                    "arguments": fields["arguments"],
                }
            )
        elif part.type == "tool_result":
            _say(items, role, pieces)
            said = "\n".join(said_of(one) for one in part.fields.get("content", []))
            items.append({"type": "function_call_output", "call_id": part.fields["call_id"], "output": said})
        elif part.type != "reasoning":
            pieces.append(_piece(part, role))
    if pieces or not items:
        _say(items, role, pieces or [{"type": _text_kind(role), "text": ""}])
    return items


def _say(items: list[Item], role: str, pieces: list[Any]) -> None:
    if pieces:
        items.append({"type": "message", "role": role, "content": list(pieces)})
        pieces.clear()


def _piece(part: Part, role: str) -> Any:
    if part.type == "refusal" and role == "assistant":
        return {"type": "refusal", "refusal": part.text or ""}
    if part.type in ("image", "file") and role == "user":
        made = piece_out(part, role)
        if len(made) > 1:
            return made
    return {"type": _text_kind(role), "text": said_of(part)}


def _text_kind(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"
