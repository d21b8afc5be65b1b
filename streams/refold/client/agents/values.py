"""Inputs and outputs as recorded: canonical JSON and its digest.

Canonical (sorted keys, no blanks), so that equal values have equal bytes and digests in every process. What a
step returned is given to the body *as read back*, the first time too: a body that sees a tuple once and a
list after a crash would not do the same thing twice.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from refold.client.agents.limits import SUMMARY_CHARS_DEFAULT
from refold.core.limits import RUN_SUMMARY_BYTES_MAX
from refold.errors import UsageError


def encode(value: Any, what: str) -> bytes:
    """Raises UsageError for what is no JSON value (``what`` names it)."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise UsageError(
            f"{what} is not JSON ({error}): return and pass dicts, lists, texts and numbers; large binary "
            "content goes to a blob store of yours, its address into the value"
        ) from None


def decode(data: bytes) -> Any:
    return orjson.loads(data)


def digest(data: bytes) -> str:
    """SHA-256 in hex, as the fold checks it."""
    return hashlib.sha256(data).hexdigest()


def short(value: Any, bytes_max: int) -> str:
    """A value as text on one line, cut at ``bytes_max`` bytes of UTF-8."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return cut(" ".join(text.split()), bytes_max)


def cut(text: str, bytes_max: int) -> str:
    """At most ``bytes_max`` bytes of UTF-8, the ellipsis included."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= bytes_max else data[: bytes_max - 3].decode("utf-8", "ignore") + "…"


def summary_of(value: Any) -> str:
    """The beginning of an output, where nobody wrote a summary."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    text = " ".join(text.split())
    if len(text) > SUMMARY_CHARS_DEFAULT:
        text = text[: SUMMARY_CHARS_DEFAULT - 1] + "…"
    return short(text, RUN_SUMMARY_BYTES_MAX)
