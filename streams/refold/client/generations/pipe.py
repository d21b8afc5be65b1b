"""One provider's stream on its way: read by a task, sent and handed out by plain calls.

There is one task per stream, which reads the provider. Everything behind it happens in the strokes of the
client (see ``courier``), by plain calls: no task, timer or queue per batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any

from refold.client.generations.batcher import Batcher, Content
from refold.client.generations.join import Join
from refold.client.generations.limits import (
    CHUNKS_WAITING_MAX,
    RESEND_PAUSE_S,
    RESEND_PAUSE_S_MAX,
    SAID_MAX,
)
from refold.client.generations.registry import Provider
from refold.core.progress import Delta, TokenUsage
from refold.errors import RefoldError, TransientError, UnavailableError
from refold.formats.streams import StreamParser, chunks_of

if TYPE_CHECKING:
    from refold.client.generations.recording import Chunk, Recording


class Pipe:
    """Made by :meth:`Recording.record`. Use from one event loop."""

    def __init__(self, recording: Recording, parser: StreamParser, stream: Provider, join: Join) -> None:
        self._recording = recording
        self._lease = recording.lease
        self._parser = parser
        self._stream = stream
        self._join = join
        self._batcher = Batcher()
        #: Chunks of the provider, not looked at yet.
        self._said: deque[Any] = deque()
        self._misread: Exception | None = None
        # Usage of earlier streams of this attempt: totals count per stream, the fold's replaces per attempt.
        self._usage_from = recording.usage
        self._told_finish: str | None = None
        self._told_usage: TokenUsage | None = None
        self._chunks: deque[Chunk] = deque()
        self._abandoned = False
        self._loop = asyncio.get_running_loop()
        self._in_flight: tuple[Content, bytes] | None = None
        self._asked = False
        self._pause = RESEND_PAUSE_S
        #: Until the batch that was not acknowledged is sent again.
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        #: Wakes the loop over the chunks, the pump that waits for room, and who waits for the last batch.
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._quiet: asyncio.Future[None] | None = None
        #: A task that is cancelled before it has begun runs none of its code: it is told to leave instead.
        self._begun = self._left = False
        self._pump = self._loop.create_task(self._read(), name="refold-record")
        recording.lease.when_lost(self.let_go)

    def let_go(self) -> None:
        """Close the provider's stream; what it has said is still sent."""
        self._left = True
        if self._begun:
            self._pump.cancel()
        self._wake()

    async def ready(self) -> bool:
        """Wait for chunks; false when there are no more. Raises what ended the stream, LeaseLost."""
        lease, strict = self._lease, self._recording.strict
        while True:
            if self._chunks:
                if strict and (lease.lost is not None or self._loop.time() >= lease.until):
                    # Here, not where batches are sent: they go on while no worker is there to renew the
                    # lease.
                    await lease.valid()
                return True
            lease.check()
            if self._error is not None:
                raise self._error
            if self._done:
                break
            self._reader = self._loop.create_future()
            await self._reader
        # Not awaited itself: who waits here may be cancelled, and that is another matter than the pump's end.
        await asyncio.wait({self._pump})
        if not self._pump.cancelled():
            self._pump.result()
        return False

    def next(self) -> Chunk | None:
        """The next chunk that may be handed out now; after ``None`` ask :meth:`ready`."""
        chunks, lease = self._chunks, self._lease
        if not chunks:
            return None
        if self._recording.strict and (lease.lost is not None or self._loop.time() >= lease.until):
            return None
        chunk = chunks.popleft()
        if len(chunks) == CHUNKS_WAITING_MAX - 1:
            self._ask()
        return chunk

    async def close(self) -> None:
        """Let go, and wait for the batch on the way; what is not on the way yet is dropped where nobody
        reads."""
        if not self._done:
            self._abandoned = True
            if self._batcher.discard() or self._in_flight is not None or not self._pump.done():
                self._recording.dropped()
            self._chunks.clear()
            self._said.clear()
        self.let_go()
        await asyncio.gather(self._pump, return_exceptions=True)
        while self._in_flight is not None and self._error is None and self._lease.lost is None:
            self._quiet = self._loop.create_future()
            await self._quiet
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _done(self) -> bool:
        return self._batcher.closed and self._batcher.empty and self._in_flight is None

    # The provider

    async def _read(self) -> None:
        self._begun = True
        source = self._stream if isinstance(self._stream, AsyncIterable) else chunks_of(self._stream)
        try:
            if self._left:
                return
            async for event in source:
                self._said.append(event)
                if len(self._said) >= SAID_MAX:
                    self._parse()
                else:
                    self._ask()
                while self._batcher.full and self._error is None:
                    self._room = self._loop.create_future()
                    await self._room
                if self._parser.error is not None or self._error is not None:
                    break
            self._parse()
            self._add(self._join.finish())
        finally:
            try:
                # After a stop too: what was said is still sent.
                self._parse()
                if self._misread is not None:
                    raise self._misread
            finally:
                self._batcher.closed = True
                self._ask()
                self._wake()
                await _close(*([source] if source is self._stream else [source, self._stream]))

    def _parse(self) -> None:
        """Understand what was said since. In a stroke where possible: a dozen chunks one after the other cost
        a fraction of each by itself, whose code and data are in no cache any more."""
        said = self._said
        while said:
            self._add(self._join.feed(self._parser.feed(said.popleft())))

    def _parse_in_stroke(self) -> None:
        try:
            self._parse()
            if self._parser.error is not None and not self._pump.done():
                self._add(self._join.finish())
                self._pump.cancel()
        except Exception as error:
            self._said.clear()
            self._misread = error
            self._pump.cancel()

    def _add(self, deltas: list[Delta]) -> None:
        recording, parser = self._recording, self._parser
        for delta in deltas:
            if delta.part >= recording.next_part:
                recording.next_part = delta.part + 1
        finish, usage = parser.finish_reason, parser.usage
        news = finish if finish != self._told_finish else None
        told = None
        if usage is not None:
            if parser.usage_mode == "total":
                usage = self._usage_from.plus(usage)
            told = usage if usage != self._told_usage else None
            self._told_usage = usage
        self._told_finish = finish
        self._batcher.add(deltas, news, told, parser.usage_mode)
        self._ask()

    # Batches

    def _ask(self) -> None:
        """Look at the next stroke whether a batch can be sent."""
        if not self._asked and self._in_flight is None and (self._said or not self._batcher.empty):
            self._asked = True
            self._recording.soon(self._send)

    def _send(self) -> None:
        """Send the next batch if there is one, it is time, and none is on the way."""
        self._asked = False
        self._parse_in_stroke()
        batcher = self._batcher
        if self._in_flight is not None or self._error is not None or batcher.empty:
            return
        if self._lease.lost is not None or len(self._chunks) >= CHUNKS_WAITING_MAX:
            return
        now = self._loop.time()
        if batcher.due() > now:
            self._ask()
            return
        content = batcher.take(now)
        value = self._recording.encode(content, self._parser.provider_response_id)
        self._in_flight = (content, value)
        if not self._recording.strict:
            self._hand_out(self._recording.produced + 1, content)
            self._wake()
        self._start(value)

    def _start(self, value: bytes) -> None:
        try:
            self._recording.start(value, self._told)
        except RefoldError as error:
            self._told(error)

    def _told(self, outcome: object) -> None:
        """The batch on the way is durable, or it is not known to be."""
        if self._in_flight is None:
            return
        content, value = self._in_flight
        if isinstance(outcome, TransientError | UnavailableError):
            if self._lease.lost is None:
                # The same bytes again, and nothing overtakes them.
                self._timer = self._loop.call_later(self._pause, self._again, value)
                self._pause = min(2 * self._pause, RESEND_PAUSE_S_MAX)
            self._wake()
            return
        if isinstance(outcome, BaseException):
            self._fail(outcome)
            return
        self._in_flight = None
        self._pause = RESEND_PAUSE_S
        try:
            seq = self._recording.account(content, self._parser.provider_response_id)
        except RefoldError as error:
            self._fail(error)
            return
        if self._recording.strict:
            self._hand_out(seq, content)
        self._ask()
        self._wake()

    def _again(self, value: bytes) -> None:
        self._timer = None
        if self._lease.lost is None:
            self._start(value)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._in_flight = None
        self._pump.cancel()
        self._wake()

    def _hand_out(self, seq: int, content: Content) -> None:
        if not self._abandoned:
            self._chunks.extend(self._recording.chunks_of(seq, content.deltas))

    def _wake(self) -> None:
        if self._reader is not None and (self._chunks or self._done or self._error or self._lease.lost):
            waiter, self._reader = self._reader, None
            _resolve(waiter)
        if self._room is not None and (not self._batcher.full or self._error is not None):
            waiter, self._room = self._room, None
            _resolve(waiter)
        if self._quiet is not None:
            waiter, self._quiet = self._quiet, None
            _resolve(waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _close(*streams: Any) -> None:
    """Let the provider's connection go; what it says to that is nobody's concern any more."""
    for stream in streams:
        for name in ("aclose", "close"):
            if (close := getattr(stream, name, None)) is not None:
                with contextlib.suppress(Exception):
                    answer = close()
                    if hasattr(answer, "__await__"):
                        await answer
                break
