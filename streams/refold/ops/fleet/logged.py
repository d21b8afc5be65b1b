"""A process that writes to a log of its own, is sent signals, and does not outlive its starter."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from refold.broker.process import Identity
from refold.broker.watchdog import Watchdog

#: What is quoted of a log when a process does not start, or ends by itself.
LOG_TAIL_LINES: Final = 15


class LoggedProcess:
    """One place for a process and those that follow it there, in one log. ``detached``: it outlives us."""

    def __init__(self, name: str, directory: Path, *, detached: bool = False) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._detached = detached
        #: Where the log of its present life begins.
        self._log_from = 0
        self._watchdog: Watchdog | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a no-op when the process has ended."""
        if self.alive and self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self._stand_down()

    def log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError:
            return "(no log)"
        return "\n".join(f"    {line[:300]}" for line in lines)

    def _launch(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it, with ``environment`` over ours; returns at once."""
        with self.log_path.open("ab") as log:
            self._log_from = log.tell()
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if not self._detached:
            with contextlib.suppress(Exception):  # it died at once: who waits for it reports that
                identity = Identity.of(self.process.pid)
                self._watchdog = Watchdog(identity.pid, identity.created)

    def _stand_down(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stand_down()
            self._watchdog = None
