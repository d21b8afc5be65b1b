"""A body's return value as result parts, and a recorded result back as text and value.

Whatever a body returns can be recorded: its effect has happened, so a value that is no JSON must not lose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from pydantic_core import to_json

from refold.wire.parts import Part
from refold.wire.parts import text as text_part

#: ``extra`` of an outcome whose content is one JSON text, so that the value can be given back as it was.
JSON_EXTRA: Final = b'{"result":"json"}'


def content_of(value: Any) -> tuple[list[Part], bytes | None]:
    """Parts of the result, and the ``extra`` that says how to read them."""
    if isinstance(value, Part):
        return [value], None
    if isinstance(value, list | tuple) and value and all(isinstance(item, Part) for item in value):
        return list(value), None
    if isinstance(value, str):
        return [text_part(whole(value))], None
    return [text_part(_json(value))], JSON_EXTRA


def whole(text: str) -> str:
    """Lone surrogates replaced: no UTF-8 exists for them, and the effect must be recorded all the same."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _json(value: Any) -> str:
    try:
        return to_json(value, bytes_mode="base64", inf_nan_mode="null", serialize_unknown=True).decode()
    except (ValueError, TypeError, RecursionError):
        # Circular, or a serialiser of the caller's that raises.
        return orjson.dumps(whole(repr(value))).decode()


def text_of(content: Sequence[Part]) -> str:
    """The text a model is given; parts without text are named."""
    said = [part.text if part.text is not None else f"[refold: {part.type}]" for part in content]
    return "\n".join(said)


def value_of(content: Sequence[Part], extra: bytes | None) -> Any:
    """What the body returned, where it was JSON; else the text."""
    said = text_of(content)
    if extra != JSON_EXTRA:
        return said
    try:
        return orjson.loads(said)
    except orjson.JSONDecodeError:
        return said


def summary_of(said: str, bytes_max: int) -> str:
    """The beginning of a text, at most ``bytes_max`` bytes of UTF-8."""
    data = said.encode()
    return said if len(data) <= bytes_max else data[:bytes_max].decode("utf-8", "ignore")
