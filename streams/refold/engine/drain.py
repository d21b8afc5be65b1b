"""A stop that was asked for: what it may take and how it ended, in files of the data directory.

::

    worker.lock    flock, held while a worker (supervisor.lock: a supervisor) runs here: the proof of life
    worker.json    who holds it: pid, instance, processes; believed only while the lock is held
    drain.json     limits for the next stop, written before SIGTERM and taken by whom it reaches
    drained.json   how the last stop ended; written last of all, removed at the next start

Files and a signal, not the HTTP port: who may write the directory may end the process anyway, and the port
may be open to others. A stop has three outcomes, each with its exit status; none loses anything, because what
was not committed is read again.

``drained`` 0: everything folded is committed, stores are flushed. ``cut_short`` 75: the time was over, ended
as if killed. ``interrupted`` 128 + signal: a second signal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from refold.errors import StorageError

Outcome = Literal["drained", "cut_short", "interrupted"]
Role = Literal["worker", "supervisor"]


#: Of a stop's time, this part is kept for leaving the group and closing the stores; that takes milliseconds
#: where everything is flushed, and this at most where the broker does not answer.
LEAVING_PART: Final = 0.25
LEAVING_S_MAX: Final = 5.0

#: Between two lines of progress in the log.
PROGRESS_S: Final = 1.0

#: Who looks whether somebody runs here holds the lock for microseconds: a start does not give up for that.
LOOKERS_S_MAX: Final = 0.3
LOCK_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Order:
    """``leave``: tell the group, so that the partitions move at once; else they stay this member's until its
    session has timed out, and a worker of the same name that is back sooner goes on without a rebalance."""

    seconds_max: float
    leave: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """Who runs in a directory. ``processes``: of a supervisor; 0 for a worker."""

    pid: int
    instance: str
    processes: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    pid: int
    outcome: Outcome
    seconds: float
    exit_code: int


class Place:
    """The files of one worker or supervisor in its directory (``EngineConfig.store_dir``)."""

    def __init__(self, directory: Path, role: Role = "worker") -> None:
        self.directory = directory
        self._role = role

    def _path(self, name: str) -> Path:
        return self.directory / (name if self._role == "worker" else f"supervisor.{name}")

    @property
    def lock(self) -> Path:
        return self.directory / f"{self._role}.lock"

    @contextlib.contextmanager
    def held(self, running: Running) -> Iterator[None]:
        """Be the only one here. Raises StorageError: not writable, or somebody else is."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = self.lock.open("a")
        except OSError as error:
            raise StorageError(
                f"the data directory {self.directory} cannot be used ({error.strerror}). Name one that can be"
                " written with --data-dir or REFOLD_WORKER__DATA_DIR"
            ) from None
        with lock:
            end = time.monotonic() + LOOKERS_S_MAX
            while not _lock(lock, fcntl.LOCK_EX):
                if time.monotonic() > end:
                    raise StorageError(
                        f"the data directory {self.directory} is locked by another {self._role}. Give each"
                        " worker its own (--data-dir or REFOLD_WORKER__DATA_DIR), or stop the other one"
                    )
                time.sleep(LOCK_AGAIN_S)
            try:
                for name in ("drain.json", "drained.json"):
                    self._path(name).unlink(missing_ok=True)
                self._write("worker.json", asdict(running))
            except OSError as error:
                why = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror
                raise StorageError(
                    f"the data directory {self.directory} cannot be written ({why}). Free some space, or name"
                    " another one with --data-dir or REFOLD_WORKER__DATA_DIR"
                ) from None
            yield

    @property
    def busy(self) -> bool:
        """Whether somebody holds the lock. Does not block."""
        try:
            lock = self.lock.open("r")
        except OSError:
            return False
        with lock:
            return not _lock(lock, fcntl.LOCK_SH)

    def running(self) -> Running | None:
        """Who holds the lock now, or ``None``. Does not block."""
        row = self._read("worker.json") if self.busy else None
        return None if row is None else Running(**row)

    def order(self, order: Order) -> None:
        self._write("drain.json", asdict(order))

    def take_order(self) -> Order | None:
        row = self._read("drain.json")
        self._path("drain.json").unlink(missing_ok=True)
        return None if row is None else Order(**row)

    def ended(self, ended: Ended) -> None:
        """Say how it ended; a full disk must not keep anybody from ending."""
        with contextlib.suppress(OSError):
            self._write("drained.json", asdict(ended))

    def last_end(self) -> Ended | None:
        row = self._read("drained.json")
        return None if row is None else Ended(**row)

    def left(self) -> tuple[str, float] | None:
        """Name of the worker that drained here and does not run again, and when, in seconds since the epoch;
        ``None`` where none has said so. Does not block."""
        running, ended = self._read("worker.json"), self.last_end()
        if running is None or ended is None or self.busy:
            return None
        try:
            return str(running["instance"]), self._path("drained.json").stat().st_mtime
        except (OSError, KeyError):
            return None

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            row = json.loads(self._path(name).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return row if isinstance(row, dict) else None

    def _write(self, name: str, row: Mapping[str, Any]) -> None:
        path = self._path(name)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(row) + "\n", encoding="utf-8")
        partial.replace(path)


def _lock(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
