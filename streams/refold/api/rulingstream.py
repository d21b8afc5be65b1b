"""One NDJSON ruling stream: the sink side is called by the fold, the writing side is this request's task.

The sink must cost the fold nothing and may never block or raise: it appends to a list and sets an event. A
reader too slow for its buffer loses the *stream*, never a ruling: it is closed, and the client asks for what
it misses one by one (``GET /v1/rulings/{partition}/{offset}``).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from refold.api.limits import STREAM_BUFFER_BYTES_MAX, STREAM_HEARTBEAT_S, STREAM_WRITE_TIMEOUT_S
from refold.api.view import OwnerView


class RulingStream:
    """State of one open stream. Everything happens on the event loop, so nothing needs a lock."""

    def __init__(self, buffer_bytes_max: int = STREAM_BUFFER_BYTES_MAX) -> None:
        self._lines: list[bytes] = []
        self._queued_bytes = 0
        self._buffer_bytes_max = buffer_bytes_max
        self._wake = asyncio.Event()
        self.ended = False

    def sink(self, lines: bytes) -> None:
        """Take one or more complete lines; called by the fold after a commit."""
        if self.ended:
            return
        self._queued_bytes += len(lines)
        if self._queued_bytes > self._buffer_bytes_max:
            self.end()
            return
        self._lines.append(lines)
        self._wake.set()

    def end(self) -> None:
        """Close as soon as the writer looks: the reader is too slow, or the server stops."""
        self.ended = True
        self._lines.clear()
        self._wake.set()

    async def run(self, request: web.Request, view: OwnerView, producer_id: str) -> web.StreamResponse:
        """Subscribe, then write until the peer or the server goes away."""
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        unsubscribe = view.subscribe_rulings(producer_id, self.sink)
        try:
            await response.prepare(request)
            # The first line says "subscribed": whatever is ruled from here on comes through this stream.
            await self._write(response, b"\n")
            while not self.ended:
                await self._write(response, await self._next_chunk())
        except (ConnectionError, TimeoutError):
            # The peer is gone or stuck; there is nobody to tell. A stuck one would hold the connection, and
            # the end of the response behind all that is queued for it, for as long as it likes.
            if request.transport is not None:
                request.transport.abort()
        finally:
            unsubscribe()
            self.ended = True
        return response

    async def _next_chunk(self) -> bytes:
        try:
            # Not `wait_for`, which makes a task for each block.
            async with asyncio.timeout(STREAM_HEARTBEAT_S):
                await self._wake.wait()
        except TimeoutError:
            return b"\n"
        self._wake.clear()
        chunk = b"".join(self._lines)
        self._lines.clear()
        self._queued_bytes = 0
        return chunk

    @staticmethod
    async def _write(response: web.StreamResponse, chunk: bytes) -> None:
        if chunk:
            async with asyncio.timeout(STREAM_WRITE_TIMEOUT_S):
                await response.write(chunk)
