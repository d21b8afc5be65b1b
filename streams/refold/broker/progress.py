"""Download progress on stderr: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

#: Between two plain lines. A 45 MB download at 1 MB/s prints nine of them.
PLAIN_INTERVAL_S: Final = 5.0


def megabytes(size: int) -> str:
    return f"{size / 1_000_000:.1f} MB"


class Progress:
    """Counts bytes from any thread. Writes to stderr only: stdout belongs to the result."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._started = self._printed = time.monotonic()
        self._lock = threading.Lock()
        self._bar: Any = None

    def __enter__(self) -> Self:
        print(self._title, file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if error is None:
            seconds = time.monotonic() - self._started
            print(f"  done in {seconds:.1f} s, all sha256 match", file=sys.stderr, flush=True)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.advance(self._task, count)
            elif time.monotonic() - self._printed >= PLAIN_INTERVAL_S:
                self._printed = time.monotonic()
                print(f"  {megabytes(self._done)} of {megabytes(self._total)}", file=sys.stderr, flush=True)
