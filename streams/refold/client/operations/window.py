"""The window of a path, made from history: what ``ContextRestored`` says of it (rule O3)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from refold.client.operations.past import Past, Placed
from refold.core.context import asks_by_policy
from refold.core.limits import MESSAGE_INLINE_BYTES_MAX, WINDOW_BYTES_MAX, WINDOW_MESSAGES_MAX
from refold.core.session import Session
from refold.errors import NotFound
from refold.wire.events import MESSAGE_SUBJECT
from refold.wire.schemas import registry


def restored_payload(past: Past, head: str) -> dict[str, Any]:
    """The payload that makes the path to ``head`` the active one. Raises NotFound for an unknown message."""
    if head not in past.placed:
        raise NotFound(
            f"session {past.state.key} never had a message {head!r} in its tree: `refold session events "
            "--payload` lists what it has"
        )
    path: list[Placed] = []
    seen: set[str] = set()
    name = head
    while name in past.placed and name not in seen:
        seen.add(name)
        path.append(past.placed[name])
        name = past.placed[name].message.parent
    path.reverse()
    cut = window_start(past.state, path)
    before = path[cut - 1].message if cut else None
    return {
        "head_message_id": head,
        "through_message_id": path[cut].message.parent,
        "through": 0 if before is None else before.seq,
        "uncovered": cut,
        "messages": [_record(placed) for placed in path[cut:]],
    }


def window_start(state: Session, path: list[Placed]) -> int:
    """Where the window begins: as many whole turns as its settings allow, one at least, within the hard
    limits; where messages wait for summaries, as many as those allow."""
    held = state.hold_for_summary or asks_by_policy(state)
    count_max = WINDOW_MESSAGES_MAX if held else state.window_messages
    bytes_max = WINDOW_BYTES_MAX if held else state.window_bytes
    size = 0
    start = hard = len(path)
    for count, at in enumerate(range(len(path) - 1, -1, -1), 1):
        size += _kept_bytes(path[at])
        if count > WINDOW_MESSAGES_MAX or size > WINDOW_BYTES_MAX:
            break
        hard = at
        whole = path[at].message.turn_start or at == 0
        if whole and (start == len(path) or (count <= count_max and size <= bytes_max)):
            start = at
    return start if start < len(path) else min(hard, len(path) - 1)


def _kept_bytes(placed: Placed) -> int:
    size = len(placed.body)
    return size if size <= MESSAGE_INLINE_BYTES_MAX else 0


def _record(placed: Placed) -> dict[str, Any]:
    message, body = placed.message, placed.body
    kept = len(body) <= MESSAGE_INLINE_BYTES_MAX
    return {
        "message_id": message.id,
        "parent": message.parent,
        "seq": message.seq,
        "time_ms": message.time_ms,
        "actor": message.actor,
        "turn_start": message.turn_start,
        "from_tool_event": message.from_tool_event,
        "answers": list(message.answers),
        "role": message.role,
        "body": registry().get(MESSAGE_SUBJECT).frame + body if kept else None,
        "length": 0 if kept else len(body),
        "sha256": "" if kept else sha256(body).hexdigest(),
    }
