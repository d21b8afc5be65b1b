"""``extra``: what a provider's object says beyond refold's own fields, and how it said it.

``extra`` is a JSON object (bytes). Its keys are the provider's own keys that refold has no field for,
values untouched: signatures, encrypted content, ids, options. One key is refold's: ``$refold`` holds
*hints*, the choices of form that a rendering would otherwise have to guess (content was a list of one text,
the call had no id). A hint is written only where the form differs from the mapper's default, so most
objects have none.

Every mapper checks itself: it renders what it has just parsed and compares value by value. Where the two
differ the whole source object is kept under the hint ``raw`` and rendering gives that back. Lossless is
therefore not a property of the mapping tables but of this module; the tables only decide how much a reader
can see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from refold.formats.jsonio import dumps, loads, same
from refold.formats.parts import Part, part

HINTS: Final = "$refold"
RAW: Final = "raw"
_OWN: Final = "own"

Hints = dict[str, Any]


def pack(rest: Mapping[str, Any], hints: Mapping[str, Any] | None = None) -> bytes | None:
    """Bytes for an ``extra`` field; ``None`` when there is nothing to say."""
    made = dict(rest)
    marks: Hints = dict(hints or {})
    if HINTS in made:  # The source uses our key: its value moves under the hints, so both survive.
        marks[_OWN] = made.pop(HINTS)
    if marks:
        made[HINTS] = marks
    return dumps(made) if made else None


def unpack(extra: bytes | None) -> tuple[dict[str, Any], Hints]:
    """(provider's keys, hints) of an ``extra`` field. Foreign bytes that are no JSON object give nothing."""
    if not extra:
        return {}, {}
    value = loads(extra, where="extra")
    if not isinstance(value, dict):
        return {}, {}
    hints = value.pop(HINTS, None) or {}
    if _OWN in hints:
        value[HINTS] = hints.pop(_OWN)
    return value, hints


def hints_of(item: Part) -> Hints:
    return unpack(item.fields.get("extra"))[1]


def rest_of(item: Part) -> dict[str, Any]:
    return unpack(item.fields.get("extra"))[0]


def plain(item: Part) -> bool:
    """True for a text part that says nothing but its text.

    The one that providers let us write as a string.
    """
    return item.type == "text" and not item.fields.get("extra")


def take(rest: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """Remove and return ``rest[key]`` if it is exactly of ``kind`` (a bool is no int).

    Otherwise leave it there.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return rest.pop(key) if key in rest and type(rest[key]) in kinds else None


def take_int(rest: dict[str, Any], key: str, *, bits: int = 64) -> int | None:
    """:func:`take` for a number that fits an Avro ``int`` or ``long``; a larger one stays where it was."""
    value = rest.get(key)
    if type(value) is int and -(1 << (bits - 1)) <= value < (1 << (bits - 1)):
        del rest[key]
        return value
    return None


def put(made: dict[str, Any], key: str, value: Any) -> None:
    """Set ``key`` unless there is nothing to set.

    An absent field and a null one are told apart by ``rest``.
    """
    if value is not None:
        made[key] = value


def checked(source: Any, made: Part, render: Callable[[Part], Any]) -> Part:
    """``made``, with the source kept whole when rendering it does not give the source back."""
    if same(render(made), source):
        return made
    return part(made.type, made.text, {**made.fields, "extra": pack({}, {**hints_of(made), RAW: source})})


def raw_of(item: Part) -> Any:
    """The source kept whole by :func:`checked`, or ``None``."""
    return hints_of(item).get(RAW)
