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
