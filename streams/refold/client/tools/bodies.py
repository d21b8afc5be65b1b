"""Running a body: on the event loop, or in a thread of its own.

Not in asyncio's default pool: a body that ran into its time-out cannot be stopped and would keep a place
there; a few of them and nothing runs any more. Threads are daemons, so a stuck one does not hold the exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


class CalledOff(Exception):
    """The body has not begun, and does not begin any more."""


class Beginning:
    """One body's way in: it begins, or is called off before it has, and never both.

    A thread that was just started may come to its body after its caller has been cancelled or has run into
    the time-out. What is recorded then (*not done*) must stay true, so the two are decided under one lock.
    ``may``: asked directly before it begins, as the lease is.
    """

    __slots__ = ("_began", "_lock", "_may", "_off")

    def __init__(self, may: Callable[[], bool]) -> None:
        self._may = may
        self._lock = threading.Lock()
        self._began = self._off = False

    def begin(self) -> None:
        """Directly before the body, where it runs. Raises :class:`CalledOff`."""
        with self._lock:
            if self._off or not self._may():
                raise CalledOff
            self._began = True

    def call_off(self) -> bool:
        """Whether it had not begun; it never does then."""
        with self._lock:
            self._off = True
            return not self._began


async def run_body(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    check: Callable[[], None],
    timeout_s: float | None,
) -> Any:
    """Call ``check`` directly before the body, where it runs, then the body. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        if is_async(function):
            check()
            return await function(**arguments)

        def checked() -> Any:
            check()
            return function(**arguments)

        result = await in_thread(checked)
        # A plain function that hands back an awaitable (a partial, a decorator) has not run yet.
        return await result if inspect.isawaitable(result) else result


def is_async(function: Callable[..., Any]) -> bool:
    """An ``async def``, or an object that is called like one."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is one too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def in_thread(function: Callable[[], Any]) -> Any:
    """The function's result. Cancelling gives the wait up, not the function."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            outcome = (future.set_result, context.run(function))
        except BaseException as error:
            if isinstance(error, StopIteration):
                # A future refuses it.
                error = RuntimeError(f"the body raised StopIteration: {error}")
            outcome = (future.set_exception, error)
        try:
            loop.call_soon_threadsafe(tell, *outcome)
        except RuntimeError:
            return  # The loop is closed: nobody waits.

    threading.Thread(target=work, name="refold-tool", daemon=True).start()
    return await future
