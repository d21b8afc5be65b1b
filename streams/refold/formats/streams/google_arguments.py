"""Arguments of a call that come as pieces by JSON path (``$.items[0].name``), put together as a value."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Final

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]")
_VALUES: Final = ("stringValue", "numberValue", "boolValue", "nullValue")
#: Deeper or longer is no path of a tool's arguments.
DEPTH_MAX: Final = 64
LENGTH_MAX: Final = 10_000


class PartialArguments:
    """Texts are appended to what is at their path, other values are set. ``used``: whether any came."""

    __slots__ = ("used", "value")

    def __init__(self) -> None:
        self.used = False
        self.value: dict[str, Any] = {}

    def take(self, piece: Any) -> bool:
        """One entry of ``partialArgs``; False when it cannot be placed."""
        if not isinstance(piece, dict):
            return False
        path = _path(piece.get("jsonPath"))
        key = next((name for name in _VALUES if name in piece), None)
        if not path or key is None or not isinstance(path[0], str):
            return False
        holder: Any = self.value
        for step, following in pairwise(path):
            holder = _enter(holder, step, [] if isinstance(following, int) else {})
            if holder is None:
                return False
        value = None if key == "nullValue" else piece[key]
        before = _enter(holder, path[-1], "" if isinstance(value, str) else value)
        if isinstance(value, str) and isinstance(before, str):
            value = before + value
        if not isinstance(holder, dict | list) or isinstance(holder, list) != isinstance(path[-1], int):
            return False
        holder[path[-1]] = value  # type: ignore[index]
        self.used = True
        return True


def _path(text: Any) -> list[str | int]:
    if not isinstance(text, str) or not text.startswith("$"):
        return []
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or len(steps) >= DEPTH_MAX:
            return []
        name, number, quoted = found.groups()
        if number is not None and int(number) >= LENGTH_MAX:
            return []
        steps.append(int(number) if number is not None else name if name is not None else quoted)
        at = found.end()
    return steps


def _enter(holder: Any, step: str | int, default: Any) -> Any:
    """What is at ``step``, set to ``default`` where there is nothing; ``None`` when it cannot be there."""
    if isinstance(holder, dict) and isinstance(step, str):
        return holder.setdefault(step, default)
    if isinstance(holder, list) and isinstance(step, int):
        while len(holder) <= step:
            holder.append(default if len(holder) == step else None)
        if holder[step] is None:
            holder[step] = default
        return holder[step]
    return None
