"""Exceptions in logs without what was in memory: type, place and chain, no locals, no source lines.

The text of an exception is written by whoever raised it and may quote a payload
(``KeyError("Dear Sir, ...")``). It is shown only for types whose text names causes: ours, the operating
system's, the interpreter's own.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any, Final

from structlog.typing import EventDict, WrappedLogger

from refold.errors import RefoldError

#: The innermost frames tell where it happened, the outermost who called; a recursion fills everything
#: between.
FRAMES_MAX: Final = 30
CHAIN_MAX: Final = 5
TEXT_CHARS_MAX: Final = 500

#: Their texts name types, attributes, files and codes. KafkaException is added by name: no import for it.
_SAFE: Final = (
    RefoldError,
    OSError,
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    ArithmeticError,
    TimeoutError,
)
_SAFE_NAMES: Final = frozenset({"KafkaException"})


class DescribeException:
    """Processor: ``exc_info`` → ``exception``, as a list of mappings for JSON or as text for a console."""

    def __init__(self, *, as_text: bool) -> None:
        self._as_text = as_text

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        info = event.pop("exc_info", None)
        error = info[1] if isinstance(info, tuple) else info
        if isinstance(error, BaseException):
            described = list(describe(error))
            event["exception"] = _text(described) if self._as_text else described
        return event


def describe(error: BaseException) -> Iterator[dict[str, Any]]:
    """The error and what caused it, the outermost first."""
    current: BaseException | None = error
    for _ in range(CHAIN_MAX):
        if current is None:
            return
        frames = list(traceback.extract_tb(current.__traceback__))
        if len(frames) > FRAMES_MAX:
            frames = [*frames[: FRAMES_MAX // 2], *frames[-FRAMES_MAX // 2 :]]
        yield {
            "type": type(current).__name__,
            "text": _said(current),
            "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
        }
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _said(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, _SAFE) or type(error).__name__ in _SAFE_NAMES:
        return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"
    return f"<{len(text)} characters withheld: may quote a payload>" if text else ""


def _text(described: list[dict[str, Any]]) -> str:
    blocks = []
    for item in described:
        lines = [f"{item['type']}: {item['text']}", *(f"  at {frame}" for frame in item["frames"])]
        blocks.append("\n".join(lines))
    return "\ncaused by ".join(blocks)
