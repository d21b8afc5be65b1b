"""A process of a harness that serves HTTP on a free port of this machine, and says which.

Its protocol: the port as the first line on stdout, and it ends when its stdin does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from refold.errors import UnavailableError

#: It ends when its stdin does; a second is ample for closing a file.
STOP_S_MAX: Final = 5.0
LOG_TAIL_CHARS: Final = 1_000


class ListeningProcess:
    """``python -m module options``. It dies with its starter: the pipe to its stdin closes."""

    def __init__(self, name: str, directory: Path, module: str, options: Sequence[str]) -> None:
        self._name = name
        self._log = directory / f"{name}.log"
        self._command = [sys.executable, "-m", module, *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Blocks until it listens. Raises :class:`UnavailableError` quoting its log when it does not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        out = self._process.stdout
        line = out.readline() if out is not None else b""
        if not line.strip().isdigit():
            self.stop()
            tail = self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:]
            raise UnavailableError(f"the {self._name} process did not start. The end of its log:\n{tail}")
        self.url = f"http://127.0.0.1:{int(line)}"

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
