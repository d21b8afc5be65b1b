"""The source formats ``refold import`` reads: one :class:`Source` each, told apart by their first values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from refold.errors import UsageError
from refold.formats.sources.anthropic_chat import ANTHROPIC
from refold.formats.sources.base import NewEvent, Source, SourceSession
from refold.formats.sources.chat import BARE_CHAT, CHAT, SWE_AGENT, TAU
from refold.formats.sources.claude_code import ClaudeCode
from refold.formats.sources.files import Reading, head
from refold.formats.sources.reason import REASON
from refold.formats.sources.sharegpt import SHAREGPT
from refold.formats.sources.tau2 import TAU2
from refold.formats.sources.tooltalk import TOOLTALK
from refold.formats.sources.tree_sources import ChatGpt, LibreChat, Oasst

__all__ = ["SOURCES", "NewEvent", "Reading", "Source", "SourceSession", "detect", "source_named"]

_ALL: Final[tuple[Source, ...]] = (
    CHAT,
    BARE_CHAT,
    ANTHROPIC,
    TAU,
    TAU2,
    ClaudeCode(),
    Oasst(),
    SHAREGPT,
    REASON,
    SWE_AGENT,
    TOOLTALK,
    ChatGpt(),
    LibreChat(),
)
#: By the name ``--format`` takes and ``SourceRecordKept.source`` holds.
SOURCES: Final[Mapping[str, Source]] = {source.name: source for source in _ALL}

#: How much of a first line's shape an error shows.
_SHAPE_DEPTH: Final = 3
_SHAPE_KEYS: Final = 12
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z_ -]{0,39}")


def source_named(name: str) -> Source:
    """Raises :class:`UsageError` listing the formats for a name that is none."""
    if name not in SOURCES:
        raise UsageError(f"there is no format {name!r}; choose one of: auto, {', '.join(SOURCES)}")
    return SOURCES[name]


def detect(path: Path) -> Source:
    """The format of a file by its first values.

    Raises :class:`UsageError` for an unknown one: what was expected and the first value's shape (keys and
    types, never content). Reading errors are those of :mod:`refold.formats.sources.files`.
    """
    values = head(path)
    if not values:
        raise UsageError(f"{path.name} is empty; expected one JSON value per line")
    scored = [(source.detect(values), source) for source in _ALL]
    best = max(score for score, _ in scored)
    if best <= 0.0:
        known = "\n".join(f"  {source.name}: {source.expects}" for source in _ALL)
        raise UsageError(
            f"{path.name} is of no format refold knows. Its first value looks like:\n  {shape(values[0])}\n"
            f"Expected one of these, plain or gzip:\n{known}\n"
            "Name the format with --format if the first lines mislead."
        )
    return next(source for score, source in scored if score == best)


def shape(value: Any) -> str:
    """Keys and types of a value, nothing of its content."""
    return json.dumps(_shape(value, _SHAPE_DEPTH), ensure_ascii=False)


def _shape(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        if depth == 0:
            return "object"
        # A key that does not look like a field's name may be data (an id, an e-mail address).
        shown = {
            key if _FIELD.fullmatch(key) else "<key>": _shape(value[key], depth - 1)
            for key in list(value)[:_SHAPE_KEYS]
        }
        return {
            **shown,
            **({"…": f"{len(value) - _SHAPE_KEYS} more keys"} if len(value) > _SHAPE_KEYS else {}),
        }
    if isinstance(value, list):
        return [_shape(value[0], depth - 1), f"… {len(value)} items"] if value and depth else "list"
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return names.get(type(value), type(value).__name__)
