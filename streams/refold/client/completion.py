"""What a context needs and the state leaves out, read from the journal and the blob store.

- *Elided content*: a message above the state's inline limit is a stub there; its event has the content.
- *The beginning of a path*: after an edit far back the fold does not hold what the path begins with
  (``context.complete`` is false). The session's journal is folded again, remembering every message, and the
  window is filled up backwards from the first message the state holds, by whole turns, within the session's
  own bounds. Where no message has the id that the path hangs under (a wrong ``parent`` of an append, which
  the fold takes: rule B3), ``context.missing_parent`` has it.
- *Blobs*: parts kept outside, only when asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from refold.client.connection import Connection
from refold.client.events import SessionEvent
from refold.client.operations.past import EventsOf, Placed, fold_past, origin_of
from refold.client.payloads import load_parts
from refold.client.snapshots import SnapshotView
from refold.formats.parts import as_part
from refold.wire.codec import decode_body
from refold.wire.events import MESSAGE_SUBJECT, decode_event

#: Places of a context that hold messages.
MESSAGE_LISTS: Final = ("system", "recent_messages")


async def complete(
    connection: Connection, view: SnapshotView, events_of: EventsOf, *, load_blobs: bool
) -> dict[str, Any]:
    """The snapshot's public part with nothing missing that can be had; free when nothing is missing."""
    context = {**view.data["context"], "missing_parent": None}
    if not context["complete"] and context["recent_messages"]:
        before, missing = await _beginning(view, events_of)
        context["recent_messages"] = [*before, *context["recent_messages"]]
        context["missing_parent"] = missing
    for name in MESSAGE_LISTS:
        context[name] = [await _filled(message, view, events_of) for message in context[name]]
        if load_blobs:
            context[name] = [await _loaded(message, connection) for message in context[name]]
    return {**view.data, "context": context}


async def _filled(message: Mapping[str, Any], view: SnapshotView, events_of: EventsOf) -> Mapping[str, Any]:
    elided = message["elided"]
    if not elided:
        return message
    place = await _place(message["seq"], view, events_of)
    if place is None:
        return message
    session, seq = place
    async with aclosing(events_of(session, seq - 1, 1)) as source:
        async for event in source:
            encoded = _body_of(event)
            # Of a source that was deleted and begun anew, another message may have that seq by now.
            if encoded is not None and hashlib.sha256(encoded).hexdigest() == elided["sha256"]:
                body = decode_body(MESSAGE_SUBJECT, encoded)
                return {**message, **body, "message_id": message["message_id"], "elided": None}
    return message


async def _place(seq: int, view: SnapshotView, events_of: EventsOf) -> tuple[str, int] | None:
    """Session and seq of the event that has a message's content: of a fork's message, in its source."""
    if seq > 0:
        return view.session, seq
    link = view.data["link"]
    if link is None or link["seq"] is None:
        return None
    return await origin_of(events_of, link["session"], link["seq"], seq)


def _body_of(event: SessionEvent) -> bytes | None:
    """The message an event carries, also that of a tool's result; ``None`` when it carries none."""
    encoded: bytes | None = getattr(decode_event(event.envelope), "body", None)
    return encoded


async def _loaded(message: Mapping[str, Any], connection: Connection) -> Mapping[str, Any]:
    parts = [as_part(part) for part in message["content"]]
    return {**message, "content": await load_parts(parts, connection.blobs)}


async def _beginning(view: SnapshotView, events_of: EventsOf) -> tuple[list[Mapping[str, Any]], str | None]:
    """Messages before the first held one, oldest first, as many whole turns as the window has room for; and
    the id the path goes on with, where no message has it."""
    past = await fold_past(events_of, view.tenant, view.session, view.seq, messages=True)
    return _window(view, past.placed)


def _window(view: SnapshotView, placed: Mapping[str, Placed]) -> tuple[list[Mapping[str, Any]], str | None]:
    context, limits = view.data["context"], view.data["limits"]
    recent = context["recent_messages"]
    room = limits["max_messages"] - len(recent)
    room_bytes = limits["max_bytes"] - sum(message["size"] for message in recent)
    taken: list[Placed] = []
    whole_turns = 0
    parent = recent[0]["parent"]
    while (found := placed.get(parent)) is not None and room > 0 and room_bytes >= len(found.body):
        taken.append(found)
        room -= 1
        room_bytes -= len(found.body)
        parent = found.message.parent
        if found.message.turn_start or parent == "":
            whole_turns = len(taken)
    missing = parent if parent and parent not in placed else None
    return [_shown(found) for found in reversed(taken[:whole_turns])], missing


def _shown(found: Placed) -> Mapping[str, Any]:
    message = found.message
    body = decode_body(MESSAGE_SUBJECT, found.body)
    return {
        "seq": message.seq,
        "time_ms": message.time_ms,
        "parent": message.parent,
        "actor": message.actor,
        "turn_start": message.turn_start,
        "from_tool_event": message.from_tool_event,
        "answers": list(message.answers),
        "elided": None,
        "size": len(found.body),
        **body,
        "message_id": message.id,
    }
