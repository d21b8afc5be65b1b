"""How a stream's deltas are joined to what the generation has already: numbered on, continued, or looked up.

A parser numbers the parts of its own stream from 0. Here they become the generation's: no two different parts
have one number, and a text that is continued keeps the number it began with, so that it is one text again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from refold.client.generations.prefix import Prefix
from refold.core.progress import Delta
from refold.formats.streams import skip_prefix, trim_overlap

TEXT = "text"


class Join(Protocol):
    #: Whether the parser sees the whole answer, so that it can compose the message.
    whole: bool

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        """What is new of these deltas, with the generation's part numbers."""

    def finish(self) -> list[Delta]:
        """The rest, at the end of a stream that was read to its end."""


class Numbered:
    """A stream of its own: its parts come after those that are there."""

    def __init__(self, parts_from: int) -> None:
        self.whole = parts_from == 0
        self._from = parts_from

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        if not self._from:
            return list(deltas)
        return [delta._replace(part=delta.part + self._from) for delta in deltas]

    def finish(self) -> list[Delta]:
        return []


class Continued:
    """The stream says what follows the prefix; what it repeats of the prefix's end is dropped
    (``overlap``)."""

    whole = False

    def __init__(self, prefix: Prefix, parts_from: int, *, overlap: bool) -> None:
        self._numbered = Numbered(parts_from)
        last = prefix.deltas[-1] if prefix.deltas else None
        #: Part of the text that is gone on with, where the prefix ends in one.
        self._text_part = last.part if last is not None and last.kind == TEXT else None
        self._trim = trim_overlap(prefix.text_bytes if overlap and self._text_part is not None else b"")
        #: The new stream's first text part.
        self._first: int | None = None
        self._held: Delta | None = None

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        made: list[Delta] = []
        for delta in self._numbered.feed(deltas):
            if delta.kind == TEXT and self._first in (None, delta.part):
                self._first = delta.part
                made += self._text(delta)
            else:
                # What is held belongs before it.
                made += self._release() if self._held is not None else ()
                made.append(delta)
        return made

    def finish(self) -> list[Delta]:
        return self._release()

    def _text(self, delta: Delta) -> list[Delta]:
        placed = delta if self._text_part is None else delta._replace(part=self._text_part)
        self._held = placed
        new = self._trim.feed(placed.data)
        if self._trim.decided:
            self._held = None
        return [placed._replace(data=new)] if new else []

    def _release(self) -> list[Delta]:
        held, self._held = self._held, None
        if held is None:
            return []
        rest = self._trim.finish()
        return [held._replace(data=rest)] if rest else []


class LookedUp:
    """The provider says the whole response again, from its beginning: what is recorded is passed over, part
    by part. Raises InvalidRecord (``conflict``) where it is another response."""

    whole = True

    def __init__(self, prefix: Prefix) -> None:
        known: dict[tuple[str, int], bytearray] = {}
        for delta in prefix.deltas:
            known.setdefault((delta.kind, delta.part), bytearray()).extend(delta.data)
        self._skip = {part: skip_prefix(bytes(data)) for part, data in known.items()}

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        made: list[Delta] = []
        for delta in deltas:
            skip = self._skip.get((delta.kind, delta.part))
            if skip is None:
                made.append(delta)
            elif new := skip.feed(delta.data):
                made.append(delta._replace(data=new))
        return made

    def finish(self) -> list[Delta]:
        for skip in self._skip.values():
            skip.finish()
        return []
