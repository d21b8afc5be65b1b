"""The message a generation ends in: as the provider's parser composed it, else from the deltas.

The parser knows more (signatures, citations, how the provider wrote it), so it is asked where one stream of
one attempt is the whole answer. What began in another process, or came in several streams, is put together
from the deltas, which all of them have in common; its text is the same byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from refold.client.generations.frames import UNDECODABLE
from refold.core.progress import Delta, TokenUsage
from refold.formats.parts import valid_json
from refold.wire.parts import Part, generic, reasoning, refusal, text, tool_call

CALL_DIGITS: Final = 24


class _Piece:
    __slots__ = ("call_id", "data", "kind", "name")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.data = bytearray()
        self.call_id: str | None = None
        self.name: str | None = None

    def part(self) -> Part | None:
        body = self.data.decode("utf-8", UNDECODABLE)
        if self.kind == "tool_call":
            return tool_call(
                self.call_id or "",
                self.name or "",
                body,
                arguments_valid=bool(body) and valid_json(body),
            )
        if not body:
            return None
        if self.kind == "text":
            return text(body)
        if self.kind == "reasoning":
            return reasoning(body)
        if self.kind == "refusal":
            return refusal(body)
        if valid_json(body):
            return generic(self.name, body.encode())
        return None


def compose(deltas: Iterable[Delta]) -> list[Part]:
    """Content parts in the order in which they began."""
    pieces: dict[tuple[str, int], _Piece] = {}
    for delta in deltas:
        piece = pieces.get((delta.kind, delta.part))
        if piece is None:
            piece = pieces[delta.kind, delta.part] = _Piece(delta.kind)
        piece.data += delta.data
        piece.call_id = delta.call_id or piece.call_id
        piece.name = delta.name or piece.name
    made = (piece.part() for piece in pieces.values())
    return [part for part in made if part is not None]


def name_calls(content: Iterable[Part], message_id: str) -> list[Part]:
    """Some providers name no call, and the fold keeps none without a name: it is named after its place, the
    same in whichever process composes the message."""
    made: list[Part] = []
    for place, part in enumerate(content):
        if part.type == "tool_call" and not part.fields["call_id"]:
            mark = hashlib.sha256(f"{message_id}\0{place}".encode()).hexdigest()
            fields = {**part.fields, "call_id": f"call_{mark[:CALL_DIGITS]}"}
            part = Part(part.type, part.text, fields, type_version=part.type_version)
        made.append(part)
    return made


def usage_record(usage: TokenUsage) -> dict[str, int] | None:
    """As a record's field; ``None`` when nothing was used or nobody said."""
    return usage._asdict() if any(usage) else None
