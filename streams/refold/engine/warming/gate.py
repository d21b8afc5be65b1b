"""Two threads write to a DB that is restored while it is served: the commit thread and a restore thread. One
at a time, and each with what the other has written before it."""

from __future__ import annotations

import threading
from types import TracebackType


class Gate:
    """A lock, made of a condition so that the simulator can stand in for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._taken = False

    def __enter__(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: not self._taken)
            self._taken = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._condition:
            self._taken = False
            self._condition.notify()
