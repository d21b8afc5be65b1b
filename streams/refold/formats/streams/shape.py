"""A payload's shape for error texts: its keys and what kind of event it says it is, never its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

KEYS_MAX: Final = 8
WORD_CHARS_MAX: Final = 40


def shape(payload: Mapping[str, Any]) -> str:
    keys = [str(key)[:WORD_CHARS_MAX] for key in list(payload)[:KEYS_MAX]]
    more = ", …" if len(payload) > KEYS_MAX else ""
    named = [
        f"{key} {payload[key][:WORD_CHARS_MAX]!r}"
        for key in ("type", "object", "event_type")
        if isinstance(payload.get(key), str)
    ]
    return f"an object with keys {', '.join(keys)}{more}" + (f" ({', '.join(named)})" if named else "")
