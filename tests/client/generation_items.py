"""Items of the batches topic for tests of followers and recorders: short to write, offsets counted."""

from __future__ import annotations

from refold.client.generations.frames import Frame, Item, Transcript
from refold.core.progress import Batch, Delta, Marker

G = "g-1"


def begin(attempt: int = 1, mode: str = "restart", **fields: object) -> Marker:
    return Marker(G, "begin", attempt, mode, "h", 5_000, generator="reply", **fields)  # type: ignore[arg-type]


def end(state: str = "finished", attempt: int = 1) -> Marker:
    return Marker(G, "end", attempt, state=state, message_id="m-1", journal_seq=9)


def batch(seq: int, text: str | bytes = "", attempt: int = 1, *, finish: str | None = None) -> Batch:
    data = text if isinstance(text, bytes) else text.encode()
    deltas = (Delta("text", 0, data),) if data else ()
    return Batch(G, attempt, seq, deltas, finish)


def frames(items: list[Item]) -> list[Frame]:
    """What a follower of these items is shown."""
    transcript = Transcript(G)
    found = (transcript.take(item, offset, 1_000 + offset) for offset, item in enumerate(items))
    return [frame for frame in found if frame is not None]


def joined(shown: list[Frame]) -> str:
    """The text a reader ends up with: a reset forgets what was there."""
    text = ""
    for frame in shown:
        text = "" if frame.kind == "reset" else text + frame.text
    return text
