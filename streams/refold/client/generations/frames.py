"""What a follower gets: frames, made from the items of one generation by the fold's own rule.

Invariants:

- :class:`Transcript` runs :func:`refold.core.progress.advance`, so whatever the fold ignores or refuses is
  never shown: repeats, fenced batches of a process that lost its lease, batches after the end.
- The joined ``text`` of the delta frames since the last reset, and of the end frame, is the generation's
text.
  A frame never ends inside a UTF-8 character: its bytes wait for the next frame.
- :class:`Cursor` gives each sequence number once, whatever it is fed: also frames again from a read that
  began earlier.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from refold.client.generations.limits import FRAME_OVERHEAD_BYTES
from refold.core.progress import Ack, Applied, Batch, Delta, Marker, Progress, advance

FrameKind = Literal["delta", "reset", "end"]
Item = Batch | Ack | Marker

#: How a byte that can be no part of a character is shown, in frames and in the message alike.
UNDECODABLE: Final = "replace"


@dataclass(frozen=True, slots=True)
class FramePart:
    """Content that is not the answer's text: ``kind`` reasoning, refusal, tool_call or other."""

    kind: str
    part: int
    text: str
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of a generation.

    ``delta``: ``text`` (and ``parts``) follow what was there; ``seq`` counts them from 1. ``reset``: forget
    the text so far, it begins anew under ``attempt``. ``end``: nothing follows; ``state`` is finished,
    stopped or failed, ``message_id`` and ``journal_seq`` say which message the session holds, ``error`` why
    not. ``attempt`` is the attempt that the text began with, so ``(attempt, seq)`` is a place to go on from.
    """

    kind: FrameKind
    generation: str
    attempt: int
    seq: int
    text: str = ""
    parts: tuple[FramePart, ...] = ()
    state: str = ""
    message_id: str | None = None
    journal_seq: int = 0
    error: str | None = None
    finish: str | None = None

    @property
    def id(self) -> str:
        """``generation:attempt:seq``, the SSE id: give it back as ``last_event_id`` to go on after it."""
        return f"{self.generation}:{self.attempt}:{self.seq}"

    @property
    def size(self) -> int:
        """About the bytes it holds in memory."""
        return (
            FRAME_OVERHEAD_BYTES
            + len(self.text)
            + sum(FRAME_OVERHEAD_BYTES + len(p.text) for p in self.parts)
        )

    def data(self) -> dict[str, Any]:
        """What a browser needs, as JSON-ready values; keys without content are left out."""
        found: dict[str, Any] = {"seq": self.seq, "text": self.text}
        if self.parts:
            found["parts"] = [
                {name: value for name, value in _part(part).items() if value is not None}
                for part in self.parts
            ]
        for name in ("state", "message_id", "journal_seq", "error", "finish"):
            if value := getattr(self, name):
                found[name] = value
        return found


def _part(part: FramePart) -> dict[str, Any]:
    return {
        "kind": part.kind,
        "part": part.part,
        "text": part.text,
        "call_id": part.call_id,
        "name": part.name,
    }


class Decoders:
    """Bytes of each content part → text, whole characters only."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], codecs.IncrementalDecoder] = {}

    def text(self, delta: Delta) -> str:
        decoder = self._open.get((delta.kind, delta.part))
        if decoder is None:
            decoder = self._open[delta.kind, delta.part] = codecs.getincrementaldecoder("utf-8")(UNDECODABLE)
        return decoder.decode(delta.data)

    def rest(self) -> Iterator[tuple[str, int, str]]:
        """What never became a character, per (kind, part)."""
        for (kind, part), decoder in sorted(self._open.items(), key=lambda entry: entry[0][1]):
            if left := decoder.decode(b"", final=True):
                yield kind, part, left
        self._open = {}


class Transcript:
    """One generation, item by item in offset order."""

    __slots__ = ("_decoders", "generation", "progress")

    def __init__(self, generation: str) -> None:
        self.generation = generation
        self.progress: Progress | None = None
        self._decoders = Decoders()

    def take(self, item: Item, offset: int, append_ms: int) -> Frame | None:
        """The frame this item makes, ``None`` when there is nothing to show."""
        if isinstance(item, Ack):
            return None
        text_attempt = 0 if self.progress is None else self.progress.text_attempt
        self.progress, verdict = advance(self.progress, item, offset, append_ms)
        if not isinstance(verdict, Applied) or self.progress is None:
            return None
        if isinstance(item, Batch):
            return self._delta(item) if item.seq else None
        if item.kind == "end":
            return self._end(item)
        if item.kind == "begin" and self.progress.text_attempt != text_attempt and text_attempt:
            self._decoders = Decoders()
            return Frame("reset", self.generation, self.progress.text_attempt, 0)
        return None

    def _delta(self, batch: Batch) -> Frame:
        assert self.progress is not None
        text: list[str] = []
        parts: list[FramePart] = []
        for delta in batch.deltas:
            shown = self._decoders.text(delta)
            if delta.kind == "text":
                text.append(shown)
            elif shown or delta.call_id is not None or delta.name is not None:
                parts.append(FramePart(delta.kind, delta.part, shown, delta.call_id, delta.name))
        attempt = self.progress.text_attempt
        return Frame("delta", self.generation, attempt, batch.seq, "".join(text), tuple(parts))

    def _end(self, marker: Marker) -> Frame:
        assert self.progress is not None
        text: list[str] = []
        parts: list[FramePart] = []
        for kind, part, left in self._decoders.rest():
            if kind == "text":
                text.append(left)
            else:
                parts.append(FramePart(kind, part, left))
        return Frame(
            "end",
            self.generation,
            self.progress.text_attempt,
            self.progress.produced,
            "".join(text),
            tuple(parts),
            state=marker.state,
            message_id=marker.message_id,
            journal_seq=marker.journal_seq,
            error=marker.error,
            finish=self.progress.finish or None,
        )


class Cursor:
    """Where one follower is. ``attempt`` 0: it has seen nothing, or knows only a number (``after``)."""

    __slots__ = ("attempt", "ended", "seq")

    def __init__(self, attempt: int = 0, seq: int = 0) -> None:
        self.attempt = attempt
        self.seq = seq
        self.ended = False

    def take(self, frame: Frame) -> Iterator[Frame]:
        """What the follower gets for this frame: nothing, the frame, or a reset and the frame."""
        if self.ended or frame.attempt < self.attempt:
            return
        if frame.attempt > self.attempt:
            known, self.attempt = self.attempt, frame.attempt
            # Without an attempt of its own (`after` is a number) it goes on in whatever attempt there is.
            if known or (frame.kind == "reset" and self.seq):
                self.seq = 0
                yield Frame("reset", frame.generation, frame.attempt, 0)
        if frame.kind == "delta" and frame.seq > self.seq:
            self.seq = frame.seq
            yield frame
        elif frame.kind == "end":
            self.ended = True
            yield frame


def parse_frame_id(text: str) -> tuple[str, int, int] | None:
    """``generation:attempt:seq`` → its parts; ``None`` for anything else (a browser sends what it was given,
    other clients may send anything)."""
    generation, _, rest = text.strip().rpartition(":")
    generation, _, attempt = generation.rpartition(":")
    numbers = (attempt, rest)
    if not generation or not all(n.isascii() and n.isdigit() and len(n) <= 18 for n in numbers):
        return None
    return generation, int(attempt), int(rest)
