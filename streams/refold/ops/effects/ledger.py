"""The gateway's book: what really ran, in order, on disk before anybody is told.

One JSON object per line: ``{"n", "what", "session", "key", "tool", "arguments", "result"}``. ``what`` is

- ``executed``: the operation took effect, now;
- ``repeated``: a key that had run was asked for again and got its first result;
- ``refused``: a key that was voided by an authoritative "not done" came late;
- ``lookup``: somebody asked for a key; ``result`` is the answer given (done, not_done, unknown).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from refold.errors import StorageError

What = Literal["executed", "repeated", "refused", "lookup"]

#: What a ledger may hold: ten times a run of 1142 calls with every call repeated, refused and looked up.
LINES_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. ``arguments`` is the JSON object by parameter name."""

    n: int
    what: What
    session: str
    key: str
    tool: str
    arguments: dict[str, Any]
    result: str


class Ledger:
    """Appends lines; each is synchronised to disk before the call returns (about a millisecond)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._n = 0
        self.executed: dict[str, list[Entry]] = {}

    def write(
        self, what: What, session: str, key: str, tool: str, arguments: dict[str, Any], result: str
    ) -> Entry:
        """Raises :class:`StorageError` when the book is full."""
        if self._n >= LINES_MAX:
            raise StorageError(f"the ledger has {LINES_MAX} lines: the agents call without end")
        self._n += 1
        entry = Entry(self._n, what, session, key, tool, arguments, result)
        self._file.write(json.dumps(asdict(entry), ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        if what == "executed":
            self.executed.setdefault(session, []).append(entry)
        return entry

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Entry]:
    """Every entry in order."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield Entry(**json.loads(line))
