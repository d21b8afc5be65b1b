"""How a run goes, on stderr: a bar with rate and remaining time on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from refold.ops.evals.limits import PROGRESS_LINE_S, RATE_WINDOW_S
from refold.ops.evals.run import Watcher
from refold.wire.evals import EvalResult


class Rate:
    """Samples per second over the last RATE_WINDOW_S; ``None`` before there are two moments to compare."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: (moment, samples until then), one per second at most.
        self._marks: deque[tuple[float, int]] = deque([(now(), 0)])
        self._count = 0

    def add(self) -> None:
        self._count += 1
        moment = self._now()
        if moment - self._marks[-1][0] >= 1.0:
            self._marks.append((moment, self._count))
        while len(self._marks) > 2 and moment - self._marks[0][0] > RATE_WINDOW_S:
            self._marks.popleft()

    def per_s(self) -> float | None:
        begun, before = self._marks[0]
        seconds = self._now() - begun
        if seconds <= 0 or self._count == before:
            return None
        return (self._count - before) / seconds


class Progress(Watcher):
    """Counts samples whose outcome is committed, each once although its attempts may be several."""

    def __init__(self, batch: str, note: Callable[[str], None]) -> None:
        self._batch = batch
        self._note = note
        self._rate = Rate()
        self._settled: set[int] = set()
        self._todo = self._done = self._failed = 0
        self._lasting: set[int] = set()
        self._said = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def begun(self, todo: int, done: int, failed: int) -> None:
        self._todo, self._done = todo, done
        self._note(f"batch {self._batch}: {todo} samples to run; {done} done and {failed} failed before")
        if todo and sys.stderr.isatty():
            self._open_bar(todo)

    def committed(self, row: EvalResult) -> None:
        if row.done:
            self._done += 1
            self._lasting.discard(row.position)
        else:
            self._lasting.add(row.position)
        if row.position not in self._settled:
            self._settled.add(row.position)
            self._rate.add()
        if self._bar is not None:
            self._bar.update(self._task, completed=len(self._settled), words=self._words())
        elif time.monotonic() - self._said >= PROGRESS_LINE_S:
            self._said = time.monotonic()
            self._note(f"{len(self._settled)}/{self._todo}  {self._words()}")

    def ended(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _words(self) -> str:
        failed = f", {len(self._lasting)} failed" if self._lasting else ""
        rate = self._rate.per_s()
        if rate is None:
            return f"- /s{failed}"
        left = (self._todo - len(self._settled)) / rate
        return f"{rate:.1f}/s, {duration(left)} left{failed}"

    def _open_bar(self, todo: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("evaluating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=Console(stderr=True, highlight=False),
        )
        self._task = self._bar.add_task("", total=todo, words="")
        self._bar.start()


def duration(seconds: float) -> str:
    """As people say it: 42 s, 3 min, 1 h 20 min."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
