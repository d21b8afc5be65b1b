"""Points armed while the worker runs, for harnesses that choose the moment (``refold verify``, ``refold
demo``).

``REFOLD_POINT_FILE=<file>``: when the file exists at the beginning of a commit, its text
(``<name>:<action>``) is armed and the file removed. At the point a line is appended to ``<file>.hit`` just
before the action: ``{"point": …, "action": …, "events": …}``, where ``events`` is the number of folded
events the open commit holds. Costs one ``stat`` per commit, and only where the variable is set.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from refold.engine.points import COMMIT, Points

#: The first point of a commit: the only one at which the file is looked for, so that a spec names the commit
#: that begins after it was written.
_FIRST: Final = COMMIT[0]


class FilePoints(Points):
    """As :class:`Points`, re-armed by the file each time."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self.reach = self._look

    def _look(self, name: str) -> None:
        if name == _FIRST and self._file.exists():
            self._arm()
        if name == self._name:
            self._reach(name)

    def _arm(self) -> None:
        spec = self._file.read_text().strip()
        self._file.unlink(missing_ok=True)
        checked = Points(spec)
        self._name, self._action, self._left = checked.armed, checked.action, 1

    def _act(self) -> None:
        row = {"point": self._name, "action": self._action, "events": self.held}
        descriptor = os.open(f"{self._file}.hit", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (json.dumps(row) + "\n").encode())
        finally:
            os.close(descriptor)
        super()._act()
