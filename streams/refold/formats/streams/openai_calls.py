"""Tool calls of chat completion chunks, put together by index.

Rules, for servers that are not OpenAI's:

- An entry without an index belongs to the call of its id, else to the last call; an id or name not seen
  before begins a call.
- An index whose call has a name and an id, and that now comes with another id *and* a name, is a new call:
  some servers number every parallel call 0.
- An empty or missing id or name says nothing. The first id that is not empty stays.
- A name that comes again is a repeat; another piece of it is appended.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from refold.formats.jsonio import dumps_text
from refold.formats.streams.delta import TOOL_CALL
from refold.formats.streams.pieces import Piece

#: Where a call of that type keeps its name and its arguments.
_PLACES: Final = {"custom": ("custom", "input")}
_FUNCTION: Final = ("function", "arguments")


class Speaker(Protocol):
    def _piece(self, kind: str) -> Piece: ...

    def _say(self, piece: Piece, text: Any) -> None: ...


class Call:
    __slots__ = ("inner", "piece", "place", "rest", "value")

    def __init__(self, piece: Piece, place: str) -> None:
        self.piece = piece
        self.place = place
        self.rest: dict[str, Any] = {}
        self.inner: dict[str, Any] = {}
        self.value: Any = None


class Calls:
    """The calls of one message, in the order they began."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._calls: list[Call] = []
        self._by_index: dict[int, Call] = {}

    def take(self, entry: Any) -> bool:
        """One entry of ``delta.tool_calls``; False when it is no object."""
        if not isinstance(entry, dict):
            return False
        place, key = _PLACES.get(str(entry.get("type")), _FUNCTION)
        if place not in entry and "custom" in entry:
            place, key = _PLACES["custom"]
        inner = entry.get(place)
        inner = inner if isinstance(inner, dict) else {}
        call = self._call(entry, inner, place)
        call_id, name = entry.get("id"), inner.get("name")
        if isinstance(call_id, str) and call_id and call.piece.call_id is None:
            call.piece.call_id = call_id
        if isinstance(name, str) and name and name != call.piece.name:
            call.piece.name = (call.piece.name or "") + name
        for source, kept, own in (
            (entry, call.rest, ("id", "index", place)),
            (inner, call.inner, ("name", key)),
        ):
            kept.update(
                {k: v for k, v in source.items() if k not in own and (v is not None or k not in kept)}
            )
        said = inner.get(key)
        if said is not None and not isinstance(said, str):
            call.value = said  # Arguments as a value, whole: Ollama and others.
            said = dumps_text(said)
        self._speaker._say(call.piece, said if said is not None else "")
        return True

    def _call(self, entry: dict[str, Any], inner: dict[str, Any], place: str) -> Call:
        index, call_id, name = entry.get("index"), entry.get("id") or None, inner.get("name") or None
        if type(index) is int:
            found = self._by_index.get(index)
            other = found is not None and call_id is not None and found.piece.call_id not in (None, call_id)
            if found is None or (other and name is not None and found.piece.name is not None):
                found = self._by_index[index] = self._new(place)
            return found
        if call_id is not None:
            for call in self._calls:
                if call.piece.call_id == call_id:
                    return call
        if not self._calls or call_id is not None or name is not None:
            last = self._calls[-1] if self._calls else None
            if last is not None and (last.piece.call_id is None) and name is None:
                return last  # A late id.
            return self._new(place)
        return self._calls[-1]

    def _new(self, place: str) -> Call:
        call = Call(self._speaker._piece(TOOL_CALL), place)
        self._calls.append(call)
        return call

    def values(self) -> list[dict[str, Any]]:
        """The entries of the message's ``tool_calls``."""
        return [_value(call) for call in self._calls]


def _value(call: Call) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if call.piece.call_id is not None:
        made["id"] = call.piece.call_id
    inner: dict[str, Any] = {} if call.piece.name is None else {"name": call.piece.name}
    key = _PLACES.get(call.place, _FUNCTION)[1]
    inner[key] = call.piece.text if call.value is None else call.value
    return {**made, **call.rest, call.place: {**inner, **call.inner}}
