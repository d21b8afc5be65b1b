"""Results on their way into the sink: collected into chunks, each committed with the cursor that counts it.

A chunk goes when it is full, when its first result has waited ``CHUNK_MS_MAX``, or when nothing runs that
could join it. Who submits a result waits for its commit: so what a crash repeats are the samples in flight,
at most one per slot, and a further attempt begins when the outcome of the one before is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from refold.ops.evals.limits import CHUNK_MS_MAX, CHUNK_RESULTS_MAX
from refold.ops.evals.rules import Tally
from refold.ops.evals.runner import now_ms
from refold.ops.evals.sinks.sink import Sink
from refold.wire.evals import EvalResult


class Committer:
    """``committed`` is told of each result that is."""

    def __init__(self, sink: Sink, tally: Tally, committed: Callable[[EvalResult], None]) -> None:
        self._sink = sink
        self._tally = tally
        self._committed = committed
        self._waiting: list[tuple[EvalResult, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()
        self._active = 0
        self._closing = False

    def begin(self) -> None:
        """A sample begins: a chunk may wait for it."""
        self._active += 1

    def end(self) -> None:
        self._active -= 1
        self._changed.set()

    async def submit(self, row: EvalResult) -> None:
        """Returns when the result is committed. It will be, also where the caller is cancelled meanwhile."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, future))
        self._changed.set()
        await future

    def close(self) -> None:
        """Let :meth:`run` end when everything submitted is committed."""
        self._closing = True
        self._changed.set()

    async def run(self) -> None:
        """Commit until closed. Raises what the sink raises; what waits then is not known to be committed."""
        while True:
            while not self._waiting:
                if self._closing:
                    return
                await self._change()
            await self._gather()
            chunk, self._waiting = self._waiting[:CHUNK_RESULTS_MAX], self._waiting[CHUNK_RESULTS_MAX:]
            rows = [row for row, _ in chunk]
            await self._sink.commit(rows, self._tally.after(rows, now_ms()))
            for row, future in chunk:
                self._committed(row)
                if not future.done():
                    future.set_result(None)

    async def _gather(self) -> None:
        deadline = asyncio.get_running_loop().time() + CHUNK_MS_MAX / 1000
        while self._active and len(self._waiting) < CHUNK_RESULTS_MAX and not self._closing:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._change(), left)
            except TimeoutError:
                return

    async def _change(self) -> None:
        await self._changed.wait()
        self._changed.clear()
