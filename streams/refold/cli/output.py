"""Where output goes, the same in every command.

With ``--json``: exactly one object on one line, the last of stdout; everything else goes to stderr. Without
it: text and tables on stdout, progress on stderr. Colour only on a terminal and never with ``NO_COLOR``.
Control characters in ids and texts are shown as escapes (:mod:`refold.telemetry.plaintext`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from refold.errors import InvariantViolation, UsageError
from refold.telemetry.plaintext import plain, plain_json

#: Width of tables in a pipe or file, where nobody folds lines: wide enough that rich never cuts a cell.
PIPE_COLUMNS: Final = 1_000


class Output:
    """One per command run: :meth:`say` and :meth:`table` as often as needed, :meth:`result` once, last."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._finished = False

    def say(self, text: str = "") -> None:
        """A line of the answer for a person, with empty ones before it if it begins with them; on stderr when
        the answer is JSON."""
        print(_line(text), file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def note(self, text: str) -> None:
        """Progress or a hint: always stderr."""
        print(_line(text), file=sys.stderr, flush=True)

    def document(self, line: bytes) -> None:
        """A JSON document that is the answer itself: these bytes and a line end, whatever the locale."""
        sys.stdout.flush()
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table for a person; ``None`` cells are empty. Cells are never read as markup."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        stream = sys.stderr if self.as_json else sys.stdout
        width = None if stream.isatty() else PIPE_COLUMNS
        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*("" if cell is None else Text(plain(str(cell))) for cell in row))
        Console(file=stream, width=width, highlight=False).print(table)

    def result(self, value: Mapping[str, Any]) -> None:
        """The answer for a program. Does nothing without ``--json``; called once, last."""
        if self._finished:
            raise InvariantViolation("a command printed two JSON objects; please report this")
        self._finished = True
        if self.as_json:
            print(_json_line(value), flush=True)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be undone. Raises :class:`UsageError` when the answer is no.

        Without a terminal there is nobody to ask: ``--yes`` is required then.
        """
        if yes:
            return
        if self.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{question} Nothing was done: add --yes to do it without being asked.")
        print(f"{plain(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("Nothing was done.")


def _line(text: str) -> str:
    own = text.lstrip("\n")
    return "\n" * (len(text) - len(own)) + plain(own)


def _json_line(value: Mapping[str, Any]) -> str:
    """Readable where stdout can write it; escaped where it cannot: an ASCII or Latin-1 terminal, or an
    argument that was no UTF-8 and came in as lone surrogates."""
    line = plain_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    try:
        line.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return line
