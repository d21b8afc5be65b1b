"""Kill an owned broker when its owner dies, however it dies.

``atexit`` does not run after SIGKILL, so an interrupted test run would leave a JVM behind. This file runs
as a process of its own with a pipe from the owner as stdin: the kernel closes that pipe when the owner is
gone. It is run by path, not as a module, so that it imports psutil only (about 12 MB).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence

import psutil

#: As in :mod:`refold.broker.process`, which this file does not import to stay small.
CREATION_TOLERANCE_S = 2.0
#: The end of the path it is run by, in whichever installation.
WATCHDOG_FILE = "/refold/broker/watchdog.py"


class Watchdog:
    """The owner's side. Keeps the pipe open until :meth:`stand_down`."""

    def __init__(self, pid: int, created: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(pid), repr(created)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal must not take the watchdog first
        )

    def stand_down(self) -> None:
        """Blocks for a moment. After it the broker may outlive the owner."""
        with contextlib.suppress(OSError):
            self._process.communicate(b"stand down")


def guarded_pid(line: Sequence[str]) -> int | None:
    """The broker that a process with this command line looks after; ``None``: it is no watchdog."""
    if len(line) < 3 or not line[-3].endswith(WATCHDOG_FILE) or not line[-2].isdecimal():
        return None
    return int(line[-2])


def main(pid: int, created: float) -> None:
    if sys.stdin.buffer.read():
        return  # told to stand down; a bare end of file means that the owner died
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if abs(process.create_time() - created) <= CREATION_TOLERANCE_S:
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
