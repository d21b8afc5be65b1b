"""Where one broker keeps its files. Several nodes are several layouts: ``DIR/node-2`` and so on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: broker.log is rotated once, at a start, when it is larger. slf4j-simple cannot rotate a file that is
#: open; at level WARN a day of tests writes well under 1 MiB.
LOG_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Layout:
    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def formatting(self) -> Path:
        """A data directory in the making: renamed to :attr:`data` when complete, so never half formatted."""
        return self.directory / "data.new"

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def state(self) -> Path:
        return self.directory / "state.json"

    @property
    def lock(self) -> Path:
        return self.directory / ".lock"

    @property
    def crash_report(self) -> Path:
        return self.directory / "jvm-crash.log"

    def rotate_log(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".log.1"))

    def wipe(self) -> None:
        """Delete what we made here and nothing else: the directory may be a user's own."""
        for tree in (self.data, self.formatting, self.temporary):
            shutil.rmtree(tree, ignore_errors=True)
        log_1 = self.log.with_suffix(".log.1")
        for file in (self.log, log_1, self.properties, self.state, self.crash_report):
            file.unlink(missing_ok=True)
