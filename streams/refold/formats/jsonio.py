"""JSON in and out without a silent change.

What a source file says must be what its export says, so reading refuses what cannot be given back:

- ``NaN``, ``Infinity`` and numbers too large for a double (they would come back as something else or not at
  all),
- an object that names a key twice (every reader keeps another one),
- a lone surrogate (no UTF-8 exists for it; Avro, orjson and Kafka clients refuse it far from the cause).

NUL and surrogate *pairs* are ordinary text. Numbers are compared by type and value: 1, 1.0 and true differ.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final

from refold.errors import InvalidRecord

JSON = Any
"""A value the standard ``json`` module reads or writes."""

#: A pair spelled with escapes is legal, so this only says that a closer look is needed. Files are decoded as
#: strict UTF-8 first, which leaves escapes as the one way a surrogate can come in.
_MAYBE_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
REPLACEMENT: Final = "\ufffd"


def _constant(name: str) -> JSON:
    raise InvalidRecord("bad_json", f"{name} is not JSON; write null or a string instead")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidRecord("bad_json", f"the number {text[:40]} does not fit a double")
    return value


def _object(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidRecord(
            "bad_json", "an object names the same key twice; only one of the values could be kept"
        )
    return made


def loads(text: str | bytes, *, where: str = "the value") -> JSON:
    """Parse strictly. ``where`` (a file and line, never content) goes into the error's text.

    Raises :class:`InvalidRecord` with code ``bad_utf8``, ``bad_json`` or ``lone_surrogate``. Does not block.
    """
    value = _parse(text, where)
    if _needs_a_look(text) and has_lone_surrogate(value):
        raise InvalidRecord(
            "lone_surrogate",
            f"{where} has a lone surrogate (half of a character, such as \\ud83d alone): no UTF-8 exists "
            "for it. Repair the source, or import with --replace-surrogates to put U+FFFD in its place",
        )
    return value


def loads_replacing(text: str | bytes, *, where: str = "the value") -> tuple[JSON, int]:
    """Like :func:`loads`, with each lone surrogate replaced by U+FFFD; the second value counts them."""
    value = _parse(text, where)
    return replace_lone_surrogates(value) if _needs_a_look(text) else (value, 0)


def _parse(text: str | bytes, where: str) -> JSON:
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, parse_constant=_constant, parse_float=_float, object_pairs_hook=_object)
    except InvalidRecord as error:
        raise InvalidRecord(error.code, f"{where}: {error.reason}") from None
    except UnicodeDecodeError as error:
        raise InvalidRecord(
            "bad_utf8", f"{where} is not UTF-8 (byte {error.start}): {error.reason}"
        ) from None
    except RecursionError:
        raise InvalidRecord("bad_json", f"{where} is nested too deeply to be read") from None
    except ValueError as error:
        detail = str(error)
        if isinstance(error, json.JSONDecodeError):
            row = f"line {error.lineno}, " if error.lineno > 1 else ""
            detail = f"{error.msg} at {row}column {error.colno}"
        raise InvalidRecord("bad_json", f"{where} is not JSON: {detail}") from None


def _needs_a_look(text: str | bytes) -> bool:
    if isinstance(text, bytes):
        return _MAYBE_SURROGATE.search(text.decode("utf-8")) is not None
    return _MAYBE_SURROGATE.search(text) is not None or _LONE_SURROGATE.search(text) is not None


def dumps(value: JSON) -> bytes:
    """Compact UTF-8 JSON, key order kept.

    Raises :class:`InvalidRecord` for what JSON or UTF-8 cannot hold.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRecord(
            "lone_surrogate", "a string has a lone surrogate, for which no UTF-8 exists"
        ) from None
    except RecursionError:
        raise InvalidRecord("bad_json", "a value is nested too deeply to be written") from None
    except (TypeError, ValueError) as error:
        raise InvalidRecord("bad_json", f"a value has no JSON form: {error}") from None


def dumps_text(value: JSON) -> str:
    """:func:`dumps` as text."""
    return dumps(value).decode("utf-8")


def has_lone_surrogate(value: JSON) -> bool:
    return any(_LONE_SURROGATE.search(text) for text in _strings(value))


def _strings(value: JSON) -> Iterable[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def replace_lone_surrogates(value: JSON) -> tuple[JSON, int]:
    """A copy with U+FFFD for each lone surrogate, and how many there were.

    Pairs were joined by the parser.
    """
    if isinstance(value, str):
        return _LONE_SURROGATE.subn(REPLACEMENT, value)
    if isinstance(value, list):
        items = [replace_lone_surrogates(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        made: dict[str, JSON] = {}
        total = 0
        for key, item in value.items():
            new_key, in_key = _LONE_SURROGATE.subn(REPLACEMENT, key)
            made[new_key], in_item = replace_lone_surrogates(item)
            total += in_key + in_item
        if len(made) != len(value):
            raise InvalidRecord(
                "lone_surrogate", "two keys of one object become equal once their surrogates are replaced"
            )
        return made, total
    return value, 0


def same(left: JSON, right: JSON) -> bool:
    """Equality value by value.

    Type-exact (1 is not 1.0 is not true), key order irrelevant, -0.0 is not 0.0.
    """
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, float):
        return left.hex() == float(right).hex()
    return bool(left == right)


def first_difference(left: JSON, right: JSON, path: str = "$") -> str | None:
    """Where two values first differ, as a path and the two shapes; ``None`` when they are :func:`same`."""
    if type(left) is not type(right):
        return f"{path}: {type(left).__name__} became {type(right).__name__}"
    if isinstance(left, dict):
        for key in left:
            if key not in right:
                return f"{path}.{key}: missing"
            found = first_difference(left[key], right[key], f"{path}.{key}")
            if found:
                return found
        extra = [key for key in right if key not in left]
        return f"{path}.{extra[0]}: added" if extra else None
    if isinstance(left, list):
        if len(left) != len(right):
            return f"{path}: {len(left)} items became {len(right)}"
        for at, (a, b) in enumerate(zip(left, right, strict=True)):
            found = first_difference(a, b, f"{path}[{at}]")
            if found:
                return found
        return None
    return None if same(left, right) else f"{path}: another {type(left).__name__}"


def parse_object(text: str) -> dict[str, JSON] | None:
    """The JSON object in ``text``, or ``None`` when it is not one that every codec can carry."""
    try:
        value = loads(text)
    except InvalidRecord:
        return None
    return value if isinstance(value, dict) else None
