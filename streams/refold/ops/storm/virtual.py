"""An event loop whose clock jumps to whatever is due next: asyncio code of seconds runs in microseconds.

Nothing but timers and callbacks may be used on it: there is no I/O and there are no threads, so a run is a
function of its arguments. Waiting for something that no timer will bring is an error instead of a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from refold.errors import InvariantViolation

T = TypeVar("T")


class _Clock(selectors.BaseSelector):
    """Stands where asyncio waits for file descriptors: the wait is the passing of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise InvariantViolation("a simulated task waits for something that never comes")
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` begins at 0."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to its end in virtual time. Raises what it raises."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
