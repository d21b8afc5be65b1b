"""Text of others on a terminal: ids, names and payloads may hold anything, also what a terminal obeys.

A control character ends a line and begins a forged one, moves the cursor, sets the window's title; one that
sets the direction of writing shows an id as another. They are shown as escapes, as Python writes them.
"""

from __future__ import annotations

import re
from typing import Final

#: C0 and C1 controls but the tab, DEL, separators of lines and paragraphs, and what sets the direction.
_CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """``text`` on one line, whatever is in it."""
    return _CONTROLS.sub(_escaped, text)


def plain_json(document: str) -> str:
    """A JSON document as equal JSON: such characters stand in its strings only."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def plain_lines(text: str) -> str:
    """``text`` whose own lines stay lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
