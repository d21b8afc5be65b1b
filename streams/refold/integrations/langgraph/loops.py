"""Calls from any thread and event loop, run on the one that the client lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class ClientLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(self._started(work))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Blocks. Raises InvalidStateError on the client's own thread, where nothing could answer."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            work.close()
            raise asyncio.InvalidStateError(
                "Synchronous calls to RefoldSaver are only allowed from a different thread than its client's"
                " event loop. Use the async interface there: `await graph.ainvoke(...)` or"
                " `await checkpointer.aget_tuple(...)`"
            )
        future = self._started(work)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: do not leave the call running behind the caller's back.
            future.cancel()
            raise

    def _started(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise
