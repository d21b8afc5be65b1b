"""A generation that ended longer ago than its batches are kept: its text is the session's message.

Read from the journal by the session's history, so the cost depends on the session only.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from refold.client.generations.frames import Frame
from refold.wire.codec import decode
from refold.wire.events import MESSAGE_SUBJECT
from refold.wire.parts import from_wire

if TYPE_CHECKING:
    from refold.client.session import Session


async def archived(session: Session, generation: str) -> list[Frame] | None:
    """Reset, text and end of a generation that ended; ``None`` when the journal has no end of it."""
    ended: list[Frame] | None = None
    async with aclosing(session.events()) as events:
        async for event in events:
            if event.type not in ("GenerationFinished", "GenerationFailed"):
                continue
            payload = event.payload
            if payload is not None and payload["generation_id"] == generation:
                ended = _frames(generation, event.seq, event.type, payload)
    return ended


def _frames(generation: str, seq: int, event_type: str, payload: dict[str, Any]) -> list[Frame]:
    attempt = int(payload["attempt"])
    if event_type == "GenerationFailed":
        end = Frame("end", generation, attempt, 0, state="failed", journal_seq=seq, error=payload["code"])
        return [Frame("reset", generation, attempt, 0), end]
    body = decode(payload["message"], expect=MESSAGE_SUBJECT).record
    parts = [from_wire(part) for part in body["content"]]
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
