"""What waits for a person: read from the review topic, or one call with its history from its session.

The topic is compacted: the newest record of a key stands, a tombstone means settled. ``show`` and ``resolve``
look into the session's own state, which costs one request and not a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from refold.client import Refold, Session, SessionEvent
from refold.client.bulk import batches
from refold.client.positions import Position
from refold.client.tools.rows import full_arguments
from refold.core.reviews import ReviewItem
from refold.errors import NotFound
from refold.missing import no_session
from refold.wire.reviews import decode_review

#: States in which a call waits for a person, and the word for it.
WAITING: Final[Mapping[str, str]] = {"unknown": "unknown", "awaiting_approval": "approval"}


async def waiting_items(rf: Refold) -> list[ReviewItem]:
    """All that waits, oldest first. Memory: the items, each a few KB at most."""
    connection = rf.connection
    topic = connection.names.review
    found: dict[bytes, ReviewItem] = {}
    async with aclosing(
        batches(connection.reader_config, topic, Position.of(None, topic), follow=False)
    ) as source:
        async for batch in source:
            for _, message in batch:
                value = message.value()
                if value is None:
                    found.pop(message.key(), None)
                else:
                    found[message.key()] = decode_review(value)
    return sorted(found.values(), key=lambda item: (item.since_ms, item.tenant, item.session, item.seq))


async def waiting_row(session: Session, operation: str) -> Mapping[str, Any]:
    """The row of a call that waits. Raises NotFound when there is none, or it waits no more."""
    view = await session.state(min_seq=0)
    if view is None:
        raise no_session(session.tenant, session.id)
    row = next((row for row in view.data["tools"] if row["operation_id"] == operation), None)
    if row is None:
        raise NotFound(
            f"session {session.id!r} holds no call {operation!r}: `refold review list` shows what waits, "
            "`refold session show` the calls of one session."
        )
    if row["state"] not in WAITING:
        then = ": it may run when its agent asks for it next" if row["state"] == "intended" else ""
        raise NotFound(f"call {operation!r} does not wait for a person any more: it is {row['state']}{then}.")
    found: Mapping[str, Any] = row
    return found


async def history_of(session: Session, operation: str, since_seq: int) -> list[dict[str, Any]]:
    """Every event of the call, from the one that opened it: who did what when, and why."""
    made = []
    async with aclosing(session.events(after=max(0, since_seq - 1))) as source:
        async for event in source:
            if event.type.startswith("ToolCall"):
                payload = event.payload or {}
                if payload.get("operation_id") == operation:
                    made.append(_told(event, payload))
    return made


def _told(event: SessionEvent, payload: Mapping[str, Any]) -> dict[str, Any]:
    actor = event.envelope.actor
    outcome = payload.get("outcome")
    return {
        "seq": event.seq,
        "time_ms": event.time_ms,
        "event": event.type if outcome is None else f"{event.type} {outcome}",
        "attempt": payload.get("attempt"),
        "who": payload.get("by") or (actor.id if actor is not None and actor.id else payload.get("holder")),
        "why": payload.get("reason") or payload.get("detail") or payload.get("error"),
    }


async def arguments_of(session: Session, row: Mapping[str, Any]) -> str:
    """The whole raw text, from the journal where the state leaves it out."""
    return await full_arguments(session, row)
