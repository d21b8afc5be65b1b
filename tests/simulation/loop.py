"""An event loop, executor and threads on the kernel: what the engine's asyncio and threading run on here.

The loop is asyncio's own; only its selector is ours, which waits on virtual time. A stopped or killed process
stops or dies inside of ``select`` like anywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading as real_threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final

from .kernel import Fiber, Kernel, Killed, Process

#: One in so many turns of a busy loop hands the baton on: others run between two callbacks, not only between
#: waits.
BUSY_TURNS: Final = 3


class _Selector:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.woken = False

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            self._kernel.alive()
            if self._kernel.chance.randrange(BUSY_TURNS) == 0:
                self._kernel.pause()
        else:
            wait_us = None if timeout is None else int(timeout * 1_000_000) + 1
            self._kernel.wait(lambda: self.woken, wait_us)
        self.woken = False
        return []

    def close(self) -> None:
        return None


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        self._selector = _Selector(kernel)
        self._default_executor = Executor(kernel, 4, "default")
        self.set_exception_handler(lambda loop, context: self.unhandled.append(context))
        self.unhandled: list[dict[str, Any]] = []
        #: Coroutines handed over by other threads, so that none is left un-awaited by a death.
        self.handed: list[Coroutine[Any, Any, Any]] = []

    def time(self) -> float:
        return self._kernel.monotonic()

    def _process_events(self, event_list: list[Any]) -> None:
        return None

    def _write_to_self(self) -> None:
        self._selector.woken = True

    def bury(self) -> None:
        """The process is dead: its coroutines end without running anything that has an effect."""
        with warnings.catch_warnings():
            # A coroutine that a task never got round to start is not awaited: so it is with the dead.
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
            for work in self.handed:
                with contextlib.suppress(BaseException):
                    work.close()
            self.handed.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]


class Executor:
    """``ThreadPoolExecutor`` on simulated threads."""

    def __init__(self, kernel: Kernel, workers_max: int, name: str) -> None:
        self._kernel = kernel
        self._workers_max = workers_max
        self._name = name
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._workers = 0

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._kernel.alive()
        future: Future[Any] = Future()
        self._jobs.append((future, lambda: call(*args, **kwargs)))
        if self._workers < self._workers_max:
            self._workers += 1
            fiber = self._kernel.current
            assert fiber is not None
            self._kernel.spawn(fiber.process, self._name, self._work)
        return future

    def _work(self) -> None:
        while self._jobs:
            future, job = self._jobs.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job()
            except Killed:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        self._workers -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        return None


class Crossing:
    """A coroutine's future seen from another simulated thread."""

    def __init__(self, kernel: Kernel, inner: Future[Any]) -> None:
        self._kernel = kernel
        self._inner = inner

    def done(self) -> bool:
        return self._inner.done()

    def result(self, timeout: float | None = None) -> Any:
        if not self._kernel.wait(self._inner.done, None if timeout is None else int(timeout * 1_000_000)):
            raise TimeoutError
        return self._inner.result(0)


class Asyncio:
    """``asyncio``, except for the one call that blocks a thread."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def run_coroutine_threadsafe(
        self, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
    ) -> Crossing:
        self._kernel.alive()
        if isinstance(loop, SimLoop):
            loop.handed.append(work)
        return Crossing(self._kernel, asyncio.run_coroutine_threadsafe(work, loop))


class Thread:
    def __init__(self, kernel: Kernel, target: Callable[[], Any], name: str) -> None:
        self._kernel = kernel
        self._target = target
        self._name = name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        current = self._kernel.current
        assert current is not None
        self._fiber = self._kernel.spawn(current.process, self._name, self._target)

    def join(self, timeout: float | None = None) -> None:
        fiber = self._fiber
        if fiber is not None:
            self._kernel.wait(lambda: fiber.done, None if timeout is None else int(timeout * 1_000_000))

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.done


class Event:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._kernel.wait(self.is_set, None if timeout is None else int(timeout * 1_000_000))


class Condition:
    """Only one simulated thread runs at a time and none is interrupted between two of our calls: no lock is
    needed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._notified = 0

    def __enter__(self) -> Condition:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        return None

    def notify(self, n: int = 1) -> None:
        self._notified += 1

    notify_all = notify

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notified
        return self._kernel.wait(
            lambda: self._notified != before, None if timeout is None else int(timeout * 1_000_000)
        )

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._kernel.wait(predicate, None if timeout is None else int(timeout * 1_000_000))


class Threading:
    """The names of ``threading`` the engine uses."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(real_threading, name)

    def Thread(self, *, target: Callable[[], Any], name: str = "thread", daemon: bool = True) -> Thread:
        return Thread(self._kernel, target, name)

    def Event(self) -> Event:
        return Event(self._kernel)

    def Condition(self) -> Condition:
        return Condition(self._kernel)


def run(kernel: Kernel, process: Process, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """As ``asyncio.run``, in the calling simulated thread."""
    loop = SimLoop(kernel)
    try:
        return loop.run_until_complete(main())
    finally:
        loop.bury()
        loop.close()
