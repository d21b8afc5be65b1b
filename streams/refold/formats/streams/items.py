"""The output items of one Responses answer <-> one message body.

:mod:`refold.formats.openai_responses` makes a body of each item. An answer is one message, so its items'
parts are joined, and the hint ``items`` says how many parts each has and what else it said. Parts keep
everything of theirs, so readers and contexts see them as in any message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from refold.formats import openai_responses
from refold.formats.body import Body, mark_format, message_body
from refold.formats.extra import pack, unpack
from refold.formats.jsonio import dumps, loads
from refold.formats.parts import Part

ITEMS: Final = "items"


def items_in(items: Sequence[Mapping[str, Any]], *, message_id: str, **fields: Any) -> Body:
    """The assistant's message of these items. A single item's body is also that of ``item_in``."""
    bodies = [openai_responses.item_in(item, message_id=message_id) for item in items]
    if len(bodies) == 1 and bodies[0]["role"] == "assistant":
        return openai_responses.item_in(items[0], message_id=message_id, **fields)
    content: list[Part] = [part for body in bodies for part in body["content"]]
    entries = []
    for body in bodies:
        entry: dict[str, Any] = {"parts": len(body["content"])}
        if body["role"] != "assistant":
            entry["role"] = body["role"]
        if body["extra"] is not None:
            entry["extra"] = loads(body["extra"], where="an item")
        entries.append(entry)
    extra = pack({}, {ITEMS: entries})
    body = message_body(message_id, "assistant", content, extra=extra, **fields)
    return mark_format(body, openai_responses.FORMAT)


def items_out(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a body made by :func:`items_in`, value by value."""
    entries = unpack(body["extra"])[1].get(ITEMS)
    if not isinstance(entries, list):
        return [openai_responses.item_out(body)]
    made, at = [], 0
    for entry in entries:
        parts = list(body["content"][at : at + entry["parts"]])
        at += entry["parts"]
        extra = dumps(entry["extra"]) if "extra" in entry else None
        role = entry.get("role", "assistant")
        made.append(openai_responses.item_out({**body, "role": role, "content": parts, "extra": extra}))
    return made
