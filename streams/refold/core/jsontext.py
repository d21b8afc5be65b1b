"""Is this text JSON that every reader takes? Deterministic: nothing depends on the caller's stack."""

from __future__ import annotations

import json
from typing import Final

from refold.core.limits import JSON_DEPTH_MAX

_OPEN: Final = "[{"
_CLOSE: Final = "]}"


def is_valid_json(text: str) -> bool:
    """RFC 8259, at most JSON_DEPTH_MAX deep, no NaN or Infinity, no lone surrogates even as escapes.

    Python's parser takes the last three, other parsers do not: a value that only some readers can read would
    poison the session for the others.
    """
    if text.count("[") + text.count("{") > JSON_DEPTH_MAX and _depth(text) > JSON_DEPTH_MAX:
        return False
    try:
        value = json.loads(text, parse_constant=_refuse, parse_int=_any_number)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        # JSONDecodeError, UnicodeEncodeError and what _refuse raises.
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


def _any_number(digits: str) -> int:
    # Python refuses to convert integers of more than 4300 digits (a process-wide setting): the text counts.
    return len(digits)


def _depth(text: str) -> int:
    """The deepest nesting, brackets inside strings not counted."""
    deepest = depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in _OPEN:
            depth += 1
            deepest = max(deepest, depth)
        elif character in _CLOSE:
            depth -= 1
    return deepest
