"""A generation that ended longer ago than its batches are kept: its text is the session's message.

Read from the journal by the session's history, so the cost depends on the session only.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from refold.client.events import SessionEvent
from refold.client.generations.frames import Frame
from refold.client.payloads import load_parts
from refold.wire.codec import decode
from refold.wire.events import MESSAGE_SUBJECT
from refold.wire.parts import from_wire

if TYPE_CHECKING:
    from refold.client.session import Session


async def archived(session: Session, generation: str) -> list[Frame] | None:
    """Reset, text and end of a generation that ended; ``None`` when the journal has no end of it."""
    event = await end_of(session, generation)
    if event is None or event.payload is None:
        return None
    return await _frames(session, generation, event.seq, event.type, event.payload)


async def end_of(session: Session, generation: str) -> SessionEvent | None:
    """The journal's last event that ended it."""
    ended: SessionEvent | None = None
    async with aclosing(session.events()) as events:
        async for event in events:
            if event.type not in ("GenerationFinished", "GenerationFailed"):
                continue
            payload = event.payload
            if payload is not None and payload["generation_id"] == generation:
                ended = event
    return ended


async def _frames(
    session: Session, generation: str, seq: int, event_type: str, payload: dict[str, Any]
) -> list[Frame]:
    attempt = int(payload["attempt"])
    if event_type == "GenerationFailed":
        end = Frame("end", generation, attempt, 0, state="failed", journal_seq=seq, error=payload["code"])
        return [Frame("reset", generation, attempt, 0), end]
    body = decode(payload["message"], expect=MESSAGE_SUBJECT).record
    # A long text is outside.
    blobs = session.publisher.connection.blobs
    parts = await load_parts([from_wire(part) for part in body["content"]], blobs)
    text = "".join(part.text or "" for part in parts if part.type == "text")
    last = int(payload["last_seq"])
    return [
        Frame("reset", generation, attempt, 0),
        Frame("delta", generation, attempt, last, text),
        Frame(
            "end",
            generation,
            attempt,
            last,
            state="stopped" if payload["stopped"] else "finished",
            message_id=body["message_id"],
            journal_seq=seq,
            finish=payload["finish_reason"],
        ),
    ]
