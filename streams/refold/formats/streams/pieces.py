"""One piece of a stream: text that arrives in cuts, kept as it came.

Invariants: the bytes handed out are the UTF-8 of the text that arrived, in order, each once. A character that
is cut between its two surrogates is held back until its second half comes; a half that stays alone is refused
(``lone_surrogate``), as everywhere.
"""

from __future__ import annotations

import re
from typing import Final

from refold.errors import InvalidRecord
from refold.formats.streams.delta import Delta

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _refuse() -> InvalidRecord:
    return InvalidRecord(
        "lone_surrogate",
        "the stream has a lone surrogate (half of a character, such as \\ud83d alone): no UTF-8 "
        "exists for it. Replace half pairs before recording the stream",
    )


def whole(text: str) -> str:
    """``text`` with pairs of surrogates joined. Raises InvalidRecord (``lone_surrogate``)."""
    if _SURROGATE.search(text) is None:
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise _refuse() from None


class Piece:
    """``call_id`` and ``name`` are told with the first delta after they became known."""

    __slots__ = ("_half", "_kept", "_told", "call_id", "kind", "name", "part")

    def __init__(self, kind: str, part: int, call_id: str | None = None, name: str | None = None) -> None:
        self.kind = kind
        self.part = part
        self.call_id = call_id
        self.name = name
        self._kept: list[str] = []
        self._half = ""
        self._told: tuple[str | None, str | None] = (None, None)

    def add(self, text: str) -> list[Delta]:
        """The deltas for ``text``: none when there is nothing new to tell, else one."""
        text = self._half + text
        self._half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        text = whole(text[:-1] if self._half else text)
        if text:
            self._kept.append(text)
        known = (self.call_id, self.name)
        if not text and known == self._told:
            return []
        new = known if known != self._told else (None, None)
        self._told = known
        return [Delta(self.kind, self.part, text.encode("utf-8"), *new)]

    def rest(self, whole_text: str) -> str | None:
        """What of the whole text (as a closing event repeats it) has not come yet.

        ``None`` when what came is not its beginning.
        """
        have = self.text + self._half
        return whole_text[len(have) :] if whole_text.startswith(have) else None

    @property
    def text(self) -> str:
        if len(self._kept) > 1:
            self._kept = ["".join(self._kept)]
        return self._kept[0] if self._kept else ""

    def close(self, *, cut: bool) -> None:
        """The end of the stream. A half character is dropped where the stream was ``cut``, else refused."""
        if self._half and not cut:
            raise _refuse()
        self._half = ""
