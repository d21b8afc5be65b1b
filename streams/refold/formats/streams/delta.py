"""What a stream gives: deltas, and an error where the provider ended with one.

``part`` numbers the pieces of a stream in the order in which they began, over the whole stream: a piece keeps
its number, and no later piece is given it. It is no index into the final message, whose mapper may put a
citation between two texts.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from refold.core.progress import Delta

__all__ = ["OTHER", "REASONING", "REFUSAL", "TEXT", "TOOL_CALL", "Delta", "StreamError"]

TEXT: Final = "text"
REASONING: Final = "reasoning"
REFUSAL: Final = "refusal"
TOOL_CALL: Final = "tool_call"
#: Tools the provider runs itself, citations, restarts: ``name`` says what.
OTHER: Final = "other"


class StreamError(NamedTuple):
    """An error event of the provider.

    ``raw`` is its JSON value; ``code`` is the provider's word, or ``""``.
    """

    code: str
    message: str
    raw: Any


def error_of(value: Any) -> StreamError:
    """From a provider's error value: an object with ``code``/``type`` and ``message``, or a bare string."""
    if not isinstance(value, dict):
        return StreamError("", str(value), value)
    codes = (value.get(key) for key in ("code", "type", "status", "__type"))
    code = next((str(one) for one in codes if isinstance(one, str | int) and one != ""), "")
    said = next((value[key] for key in ("message", "Message") if isinstance(value.get(key), str)), "")
    return StreamError(code, said, value)
