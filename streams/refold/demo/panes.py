"""Two devices looking at one chat: side by side on a terminal, lines of text everywhere else."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self

#: Refreshes per second on a terminal: as fast as words come.
REFRESHES_PER_S: Final = 12
#: Width of a line in the plain form.
COLUMNS: Final = 78


class Panes(Protocol):
    """``show`` the whole text of a pane as it is now; ``note`` a line below or between."""

    def show(self, pane: str, text: str) -> None: ...
    def note(self, line: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_panes(names: tuple[str, str], say: Callable[[str], None]) -> Panes:
    """Live panes where stderr is a terminal, else lines through ``say``."""
    return LivePanes(names) if sys.stderr.isatty() else PlainPanes(names, say)


class PlainPanes:
    """Prints a pane's text in whole lines as they fill up, and the rest when something happens."""

    def __init__(self, names: tuple[str, str], say: Callable[[str], None]) -> None:
        self._say = say
        self._texts = dict.fromkeys(names, "")
        self._shown = dict.fromkeys(names, 0)
        self._width = max(map(len, names))

    def show(self, pane: str, text: str) -> None:
        self._texts[pane] = text
        for line in textwrap.wrap(text[self._shown[pane] :], COLUMNS)[:-1]:
            self._line(pane, line)

    def note(self, line: str) -> None:
        self._rest()
        self._say(f"  {line}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rest()

    def _rest(self) -> None:
        for pane, text in self._texts.items():
            if rest := text[self._shown[pane] :].strip():
                self._line(pane, rest)

    def _line(self, pane: str, line: str) -> None:
        text, start = self._texts[pane], self._shown[pane]
        self._shown[pane] = text.index(line, start) + len(line)
        self._say(f"  {pane:<{self._width}} | {line.strip()}")


class LivePanes:
    """rich's Live: both panes, redrawn in place, with the last note below."""

    def __init__(self, names: tuple[str, str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._texts = dict.fromkeys(names, "")
        self._notes: list[str] = []
        self._live = Live(
            console=Console(stderr=True, highlight=False),
            refresh_per_second=REFRESHES_PER_S,
            get_renderable=self._render,
        )

    def show(self, pane: str, text: str) -> None:
        self._texts[pane] = text

    def note(self, line: str) -> None:
        self._notes.append(line)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _render(self) -> Any:
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        panels = [Panel(Text(text), title=name, width=COLUMNS // 2) for name, text in self._texts.items()]
        return Group(Columns(panels), *(Text(f"  {line}") for line in self._notes))
