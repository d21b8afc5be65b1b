"""Content of chat completion chunks: text or (Mistral) lists of items. OpenRouter's reasoning details."""

from __future__ import annotations

from typing import Any, Final, Protocol

from refold.formats.streams.delta import REASONING, TEXT
from refold.formats.streams.pieces import Piece

#: Of a reasoning detail: what comes in cuts. Its other keys are said as a whole.
_CUT: Final = ("text", "summary", "data")


class Speaker(Protocol):
    def _piece(self, kind: str) -> Piece: ...

    def _say(self, piece: Piece, text: Any) -> None: ...


class _Item:
    """An item of a content list whose text may go on."""

    __slots__ = ("kind", "piece", "rest")

    def __init__(self, kind: str, rest: dict[str, Any], piece: Piece | None) -> None:
        self.kind = kind
        self.rest = rest
        self.piece = piece

    def value(self) -> dict[str, Any]:
        if self.piece is None:
            return self.rest
        if self.kind == "thinking":
            said: Any = [{"type": "text", "text": self.piece.text}]
        else:
            said = self.piece.text
        return {"type": self.kind, self.kind: said, **self.rest}


class Content:
    """Absent, null, a string or a list: as the deltas had it. Once a list came, it is one."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._items: list[_Item] = []
        self._null = False
        self._string = False
        self._list = False

    def take(self, value: Any) -> None:
        if value is None:
            self._null = True
        elif isinstance(value, str):
            self._string = True
            if value or self._items:
                self._add("text", value, {})
        elif isinstance(value, list):
            self._list = True
            for item in value:
                self._take_item(item)

    def _take_item(self, item: Any) -> None:
        if not isinstance(item, dict):
            item = (
                {"type": "text", "text": item} if isinstance(item, str) else {"type": "value", "value": item}
            )
        kind, rest = item.get("type"), dict(item)
        rest.pop("type", None)
        if kind == "text" and isinstance(item.get("text"), str):
            self._add("text", rest.pop("text"), rest)
        elif kind == "thinking" and (said := _thinking(item.get("thinking"))) is not None:
            del rest["thinking"]
            self._add("thinking", said, rest)
        else:
            self._items.append(_Item(str(kind), item, None))

    def _add(self, kind: str, said: str, rest: dict[str, Any]) -> None:
        last = self._items[-1] if self._items else None
        if last is None or last.kind != kind or last.piece is None or (rest and last.rest != rest):
            piece = self._speaker._piece(TEXT if kind == "text" else REASONING)
            last = _Item(kind, rest, piece)
            self._items.append(last)
        if last.piece is not None:
            self._speaker._say(last.piece, said)

    def value(self) -> dict[str, Any]:
        """``{"content": …}``, or nothing when no delta named it."""
        if self._list:
            return {"content": [item.value() for item in self._items]}
        if self._string:
            return {"content": "".join(item.piece.text for item in self._items if item.piece is not None)}
        return {"content": None} if self._null else {}


def _thinking(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(one, dict) and one.keys() == {"type", "text"} and isinstance(one["text"], str)
        for one in value
    ):
        return "".join(one["text"] for one in value)
    return None


class Details:
    """``reasoning_details``: objects that grow, told apart by index and type.

    Their words are in ``reasoning``.
    """

    def __init__(self) -> None:
        self._details: list[dict[str, Any]] = []
        self._cuts: list[dict[str, list[str]]] = []

    def take(self, items: list[Any]) -> int:
        """Keeps the items; how many characters of them came in cuts."""
        kept = 0
        for item in items:
            if not isinstance(item, dict):
                continue
            at = next((at for at, one in enumerate(self._details) if _same(one, item)), None)
            if at is None:
                at = len(self._details)
                self._details.append({})
                self._cuts.append({})
            for key, value in item.items():
                if key in _CUT and isinstance(value, str):
                    self._cuts[at].setdefault(key, []).append(value)
                    kept += len(value)
                elif value is not None or key not in self._details[at]:
                    self._details[at][key] = value
        return kept

    def values(self) -> list[dict[str, Any]]:
        return [
            {**detail, **{key: "".join(said) for key, said in cuts.items()}}
            for detail, cuts in zip(self._details, self._cuts, strict=True)
        ]


def _same(one: dict[str, Any], item: dict[str, Any]) -> bool:
    return "index" in item and all(one.get(key) == item.get(key) for key in ("index", "type"))
