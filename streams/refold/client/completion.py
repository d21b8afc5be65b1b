"""What a context needs and the state leaves out, read from the journal and the blob store.

- *Elided content*: a message above the state's inline limit is a stub there; its event has the content.
- *The beginning of a path*: after an edit far back the fold does not hold what the path begins with
  (``context.complete`` is false). The session's journal is folded again, remembering every message, and the
  window is filled up backwards from the first message the state holds, by whole turns, within the session's
  own bounds.
- *Blobs*: parts kept outside, only when asked for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from refold.client.connection import Connection
from refold.client.events import SessionEvent
from refold.client.payloads import load_parts
from refold.client.snapshots import SnapshotView
from refold.core.evolve import evolve
from refold.core.session import Message, initial
from refold.formats.parts import as_part
from refold.wire.codec import decode_body
from refold.wire.events import decode_event

Events = Callable[[int, int | None], AsyncGenerator[SessionEvent, None]]

BODY_SUBJECT: Final = "refold.event.MessageAppended"

#: Places of a context that hold messages.
MESSAGE_LISTS: Final = ("system", "recent_messages")


async def complete(
    connection: Connection, view: SnapshotView, events: Events, *, load_blobs: bool
) -> dict[str, Any]:
    """The snapshot's public part with nothing missing that can be had; free when nothing is missing."""
    context = dict(view.data["context"])
    if not context["complete"] and context["recent_messages"]:
        context["recent_messages"] = [
            *await _beginning(view, events),
            *context["recent_messages"],
        ]
    for name in MESSAGE_LISTS:
        context[name] = [await _filled(message, events) for message in context[name]]
        if load_blobs:
            context[name] = [await _loaded(message, connection) for message in context[name]]
    return {**view.data, "context": context}


async def _filled(message: Mapping[str, Any], events: Events) -> Mapping[str, Any]:
    if not message["elided"]:
        return message
    async with aclosing(events(message["seq"] - 1, 1)) as source:
        async for event in source:
            body = _body_of(event)
            if body is not None:
                return {**message, **body, "message_id": message["message_id"], "elided": None}
    return message


def _body_of(event: SessionEvent) -> dict[str, Any] | None:
    """The message an event carries, also that of a tool's result; ``None`` when it carries none."""
    encoded: bytes | None = getattr(decode_event(event.envelope), "body", None)
    return None if encoded is None else decode_body(BODY_SUBJECT, encoded)


async def _loaded(message: Mapping[str, Any], connection: Connection) -> Mapping[str, Any]:
    parts = [as_part(part) for part in message["content"]]
    return {**message, "content": await load_parts(parts, connection.blobs)}


@dataclass(slots=True)
class _Placed:
    """A message with its place in the tree. The core moves messages while it holds them, so the object is
    kept and its ``parent`` read at the end."""

    message: Message
    body: bytes


async def _beginning(view: SnapshotView, events: Events) -> list[Mapping[str, Any]]:
    """Messages before the first held one, oldest first, as many whole turns as the window has room for."""
    placed: dict[str, _Placed] = {}
    state = initial(view.tenant, view.session)
    async with aclosing(events(0, None)) as source:
        async for event in source:
            if event.seq > view.seq:
                break
            decoded = decode_event(event.envelope)
            evolve(
                state,
                event.seq,
                event.time_ms,
                event.inbox_partition,
                event.inbox_offset,
                event.envelope,
                decoded,
            )
            body: bytes | None = getattr(decoded, "body", None)
            if body is not None and (made := _made_by(state.held.values(), event.seq)) is not None:
                placed[made.id] = _Placed(made, body)
    return _window(view, placed)


def _made_by(held: Any, seq: int) -> Message | None:
    found: Message
    for found in reversed(list(held)):
        if found.seq == seq:
            return found
    return None


def _window(view: SnapshotView, placed: Mapping[str, _Placed]) -> list[Mapping[str, Any]]:
    context, limits = view.data["context"], view.data["limits"]
    recent = context["recent_messages"]
    room = limits["max_messages"] - len(recent)
    room_bytes = limits["max_bytes"] - sum(message["size"] for message in recent)
    taken: list[_Placed] = []
    whole_turns = 0
    parent = recent[0]["parent"]
    while (found := placed.get(parent)) is not None and room > 0 and room_bytes >= len(found.body):
        taken.append(found)
        room -= 1
        room_bytes -= len(found.body)
        parent = found.message.parent
        if found.message.turn_start or parent == "":
            whole_turns = len(taken)
    return [_shown(found) for found in reversed(taken[:whole_turns])]


def _shown(found: _Placed) -> Mapping[str, Any]:
    message = found.message
    body = decode_body(BODY_SUBJECT, found.body)
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
