"""A step's signs of life, as events: asked for as often as the step likes, sent a few times per heartbeat.

A process that lives is no sign: it may wait for an answer that never comes. What counts is what the step
itself says (``step.heartbeat()``), a model's next piece of text, a tool's result.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from refold.client.agents.limits import BEATS_PER_HEARTBEAT
from refold.client.agents.outcomes import RunLeft
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.client.agents.writer import Writer


class Beats:
    """Of one attempt of one step; :meth:`stop` it when the body has ended."""

    def __init__(self, writer: Writer, step_id: str, attempt: int, heartbeat_s: float) -> None:
        self._writer = writer
        self._step_id = step_id
        self._attempt = attempt
        self._pause_s = heartbeat_s / BEATS_PER_HEARTBEAT
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.time() + self._pause_s
        self._sending: asyncio.Task[None] | None = None

    def beat(self) -> None:
        """Any thread."""
        if self._loop.time() >= self._next:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody is left to be told.
                self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._loop.time() >= self._next and (self._sending is None or self._sending.done()):
            self._next = self._loop.time() + self._pause_s
            self._sending = self._loop.create_task(self._send(), name="refold-step-heartbeat")

    async def _send(self) -> None:
        payload = {"step_id": self._step_id, "attempt": self._attempt}
        # What a refusal means for the run is the lease's to find out.
        with contextlib.suppress(RefoldError, RunLeft):
            await self._writer.write("StepHeartbeat", payload, step=self._step_id, attempt=self._attempt)

    async def stop(self) -> None:
        """Nothing is sent after this: a heartbeat behind the step's end would be refused."""
        self._next = float("inf")
        if self._sending is not None and not self._sending.done():
            await asyncio.wait({self._sending})
