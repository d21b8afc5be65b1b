"""A checkpoint on its way to a restore, on a thread of its own.

A call of the store may last for as long as the store likes: a restore that made it itself could not be
called off meanwhile, and the rebalance that takes the partition away would wait for it. So a restore looks
here every :data:`LOOK_S`, and one that is hot first does not wait at all: it serves the partition from its
changelog and goes over to the checkpoint when it is there (rule H10).

A fetch that nobody wants any more ends at its next piece and removes what it has; one that hangs in the store
keeps a thread and a directory of its own until the store answers, or the process ends.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from refold.engine.checkpoints.keyfilter import KeyFilter
from refold.engine.checkpoints.manifest import Manifest
from refold.engine.takeover import Cancelled
from refold.errors import UnavailableError

#: How soon a restore that waits notices that its partition is gone.
LOOK_S: Final = 0.05

#: A store from which nothing came for so long is taken for gone. More than one answer may last where the
#: client itself gives up: 3 x (5 + 30) s (``remote.S3_OPTIONS``).
STILL_S_MAX: Final = 120.0


class Fetching:
    """Started when made. Any thread."""

    def __init__(self, to: Path, work: Callable[[Fetching], Manifest | None]) -> None:
        """``work`` fetches into ``to`` on the new thread: the manifest of what is there then, whole and
        verified, or ``None``. It asks :attr:`stopped` and says :meth:`moved`."""
        self.to = to
        self._work = work
        #: Of the newest checkpoint that the rules allow, where the restore is hot first; set on the way.
        self.filter: KeyFilter | None = None
        #: Its id, and how far what is being fetched has the state changelog; ``None``: not known.
        self.checkpoint = ""
        self.state_next: int | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._done = threading.Event()
        self._found: Manifest | None = None
        self._error: BaseException | None = None
        self._moved_at = time.monotonic()
        threading.Thread(target=self._run, name="refold-fetching", daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = self._work(self)
        except BaseException as error:
            self._error = error
        if self._found is None:
            shutil.rmtree(self.to, ignore_errors=True)
        with self._lock:
            self._done.set()
            unwanted = self._stopped
        if unwanted:
            shutil.rmtree(self.to, ignore_errors=True)

    # --- its own thread, and those of its downloads ------------------------------------------------------

    def stopped(self) -> bool:
        return self._stopped

    def moved(self) -> None:
        """The store has answered."""
        self._moved_at = time.monotonic()

    # --- restore threads -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Fetched, failed, or given up for want of an answer."""
        return self._done.is_set() or time.monotonic() - self._moved_at > STILL_S_MAX

    @property
    def found(self) -> Manifest | None:
        """What is at :attr:`to`, once it is whole."""
        return self._found if self._done.is_set() else None

    def wait(self, cancelled: Callable[[], bool], seconds: float | None = None) -> bool:
        """Until it is over, at most ``seconds``; False: it is still on its way. Raises :class:`Cancelled`."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self.over:
            if cancelled():
                raise Cancelled
            left = LOOK_S if end is None else min(LOOK_S, end - time.monotonic())
            if left <= 0:
                return False
            self._done.wait(left)
        return True

    def result(self) -> Manifest | None:
        """When it is over. Raises what the work raised, and :class:`UnavailableError` where the store has
        not answered."""
        if not self._done.is_set():
            raise UnavailableError(f"the checkpoint store has not answered for {STILL_S_MAX:.0f} s")
        if self._error is not None:
            raise self._error
        return self._found

    def end(self) -> None:
        """Not wanted any more; returns at once."""
        with self._lock:
            self._stopped = True
            done = self._done.is_set()
        if done:
            shutil.rmtree(self.to, ignore_errors=True)
