"""What of a run is on its way in this process: tasks inside a step, and bodies in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from refold.errors import InvariantViolation, UsageError

T = TypeVar("T")

#: The step whose body runs in this context; also in tasks and threads it begins.
_INSIDE: Final[ContextVar[str]] = ContextVar("refold-step", default="")


class Running:
    """Of one held run. ``moved``: called when a step has ended here."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved
        self._tasks: dict[asyncio.Task[object], int] = {}
        #: Tasks whose step has failed for good and that only have to say so.
        self._ending: set[asyncio.Task[object]] = set()
        self._threads: set[object] = set()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step, replayed ones too. Raises UsageError inside of another step's body."""
        if inside := _INSIDE.get():
            raise UsageError(
                f"step {inside!r} asks for a step of its own: steps do not nest, because a completed one is "
                "not executed again. Ask for it in the body"
            )
        task = _current()
        self._tasks[task] = self._tasks.get(task, 0) + 1
        try:
            yield
        finally:
            self._tasks[task] -= 1
            if not self._tasks[task]:
                del self._tasks[task]
            self._ending.discard(task)
            self._moved()

    async def body(self, step_id: str, body: Awaitable[T]) -> T:
        """Await a step's body; what runs in it knows that it does."""
        token = _INSIDE.set(step_id)
        try:
            return await body
        finally:
            _INSIDE.reset(token)

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Around a body that runs in a thread, in that thread."""
        token = object()
        self._threads.add(token)
        try:
            yield
        finally:
            self._threads.discard(token)

    @property
    def busy(self) -> bool:
        """Whether a step is on its way here."""
        return bool(self._tasks)

    @property
    def unstoppable(self) -> bool:
        """Whether a body runs that cannot be cancelled: the run must not be given back then."""
        return bool(self._threads)

    def ending(self) -> None:
        """The caller's step has failed for good."""
        self._ending.add(_current())
        self._moved()

    @property
    def alone(self) -> bool:
        """Whether every step on its way has failed for good."""
        return self._tasks.keys() <= self._ending

    async def cancel(self, body: asyncio.Task[object]) -> None:
        """End the body, and tasks of it that are in a step; returns when they have ended."""
        tasks = {body, *self._tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()


def _current() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise InvariantViolation("steps run in tasks")
    return task
