"""What one attempt records: provider stream → batches on the topic → chunks for the caller.

Invariants:

- One batch of a generation is on the way at a time, and the next is sent when it is durable: a failed batch
is
  sent again, byte for byte, and never overtaken. (Sent twice it is a repeat, which the rule ignores.)
- ``strict``: a chunk leaves :meth:`record` after its batch is durable and while the lease holds. ``relaxed``:
  before it is durable.
- :attr:`produced`, :attr:`length` and :attr:`chain` count what is durable, by the fold's rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from refold.client.generations.batcher import Batcher, Content
from refold.client.generations.composing import compose, name_calls
from refold.client.generations.frames import UNDECODABLE, Decoders
from refold.client.generations.join import Join, Numbered
from refold.client.generations.lease import Lease
from refold.client.generations.limits import (
    CHUNKS_WAITING_MAX,
    GENERATION_BYTES_MAX,
    RESEND_PAUSE_S,
    RESEND_PAUSE_S_MAX,
)
from refold.client.generations.prefix import COMPLETE, Prefix
from refold.client.generations.registry import Provider
from refold.core.progress import NO_USAGE, Batch, Delta, TokenUsage, next_chain
from refold.errors import RefoldError, TransientError, UnavailableError, UsageError
from refold.formats.streams import StreamParser, chunks_of, parser_for
from refold.wire.batches import encode_item

Send = Callable[[bytes], Awaitable[Any]]
"""Append one record to the generation's partition; returns when it is durable."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the answer. ``seq``: of its batch. ``kind``: text, reasoning, refusal, tool_call or
    other."""

    seq: int
    kind: str
    text: str
    delta: Delta


class ProviderFailed(RefoldError):
    """The provider said so in its stream. ``code`` is its word; what came before it is recorded."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(
            f"the provider ended its stream with an error ({code or 'no code'}): {message[:300]}"
        )
        self.code = code


class Recording:
    """Use from one event loop; one :meth:`record` at a time."""

    def __init__(
        self, generation: str, attempt: int, send: Send, lease: Lease, *, strict: bool, prefix: Prefix
    ) -> None:
        self.generation = generation
        self.attempt = attempt
        self.stopped = asyncio.Event()
        self.produced = prefix.produced
        self.length = prefix.length
        self.chain = prefix.chain
        self.finish_reason = prefix.finish
        self.provider_response_id: str | None = None
        #: Of this attempt.
        self.usage = NO_USAGE
        self.deltas: list[Delta] = list(prefix.deltas)
        self._prefix = prefix
        self._sha = hashlib.sha256(prefix.text_bytes)
        self._bytes = sum(len(delta.data) for delta in prefix.deltas)
        self._send = send
        self._lease = lease
        self._strict = strict
        self._overlooked = False
        self._decoders = Decoders()
        self._streams: list[tuple[StreamParser, Join]] = []
        self.next_part = 1 + max((delta.part for delta in prefix.deltas), default=-1)
        self._open: _Pipe | None = None
        self._sent_at = asyncio.get_running_loop().time()

    @property
    def sha256(self) -> str:
        """Of the text's bytes, hex."""
        return self._sha.hexdigest()

    @property
    def text(self) -> str:
        """All text so far, as followers have it."""
        data = b"".join(delta.data for delta in self.deltas if delta.kind == "text")
        return data.decode("utf-8", UNDECODABLE)

    async def complete(self) -> None:
        """Record that the answer has come to its end; nothing follows but GenerationFinished."""
        if self.produced > self._prefix.produced or not self._prefix.complete:
            await self.send(Content(), self.provider_response_id, COMPLETE)

    def content(self, message_id: str) -> dict[str, Any]:
        """The message's body: the provider's own composition where there is one."""
        body: dict[str, Any]
        if len(self._streams) == 1:
            parser, join = self._streams[0]
            if join.whole and parser.error is None and not self._overlooked:
                body = parser.finish(message_id=message_id)
                return {**body, "content": name_calls(body["content"], message_id)}
        content = name_calls(compose(self.deltas), message_id)
        body = {"role": "assistant", "content": content, "finish_reason": self.finish_reason}
        if self._streams and (model := self._streams[-1][0].model) is not None:
            body["model"] = model
        return body

    async def record(
        self,
        stream: Provider,
        format: str = "auto",  # noqa: A002 - the word of the whole SDK
        join: Join | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Chunks of a provider's stream; ends with it, or when the generation is stopped.

        Raises what the stream raises (what came before is recorded), ProviderFailed, LeaseLost.
        """
        await self.settle()
        if self.stopped.is_set():
            return
        self._lease.check()
        parser = parser_for(format)
        joined = join or Numbered(self.next_part)
        self._streams.append((parser, joined))
        pipe = self._open = _Pipe(self, parser, stream, joined)
        try:
            async for chunk in pipe.chunks():
                yield chunk
        finally:
            await self.settle()

    async def settle(self) -> None:
        """Wait for the batch on the way, and let go of a stream the caller has left."""
        if (pipe := self._open) is not None:
            await pipe.close()
            if self._open is pipe:
                self._open = None

    def heartbeat(self, quiet_s: float) -> bytes | None:
        """A record that says "still here", where nothing was sent for ``quiet_s``."""
        now = asyncio.get_running_loop().time()
        if now - self._sent_at < quiet_s:
            return None
        self._sent_at = now
        return encode_item(Batch(self.generation, self.attempt, 0, sent_ms=_now_ms()))

    # For the pipe

    async def send(self, content: Content, response_id: str | None, extra: bytes | None = None) -> int:
        """Make the next batch durable; returns its seq. Raises LeaseLost, or what time does not mend."""
        seq = self.produced + 1
        deltas = tuple(content.deltas)
        news = response_id if response_id != self.provider_response_id else None
        batch = Batch(
            self.generation,
            self.attempt,
            seq,
            deltas,
            content.finish,
            content.usage,
            content.usage_mode,
            news,
            _now_ms(),
            extra,
        )
        value = encode_item(batch)
        pause = RESEND_PAUSE_S
        while True:
            self._lease.check()
            self._sent_at = asyncio.get_running_loop().time()
            try:
                await self._send(value)
                break
            except (TransientError, UnavailableError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, RESEND_PAUSE_S_MAX)
        self.produced = seq
        self.chain = next_chain(self.chain, deltas)
        self.deltas += deltas
        self.provider_response_id = response_id
        self.finish_reason = self.finish_reason or content.finish
        if content.usage is not None:
            self.usage = self.usage.plus(content.usage) if content.usage_mode == "delta" else content.usage
        for delta in deltas:
            self._bytes += len(delta.data)
            if delta.kind == "text":
                self.length += len(delta.data)
                self._sha.update(delta.data)
        if self._bytes > GENERATION_BYTES_MAX:
            raise UsageError(
                f"the generation has more than {GENERATION_BYTES_MAX} bytes of content: no message can hold "
                "it"
            )
        return seq

    def chunks_of(self, seq: int, deltas: list[Delta]) -> list[Chunk]:
        return [Chunk(seq, delta.kind, self._decoders.text(delta), delta) for delta in deltas]

    @property
    def strict(self) -> bool:
        return self._strict

    @property
    def lease(self) -> Lease:
        return self._lease

    def dropped(self) -> None:
        """Some of what the parser saw was not recorded, so the parser cannot compose the message."""
        self._overlooked = True

    @property
    def seq_next(self) -> int:
        return self.produced + 1


class _Pipe:
    """One stream on its way: a pump that reads the provider, a sender that writes batches."""

    def __init__(self, recording: Recording, parser: StreamParser, stream: Provider, join: Join) -> None:
        self._recording = recording
        self._parser = parser
        self._stream = stream
        self._join = join
        self._batcher = Batcher()
        # Usage of earlier streams of this attempt: totals count per stream, the fold's replaces per attempt.
        self._usage_from = recording.usage
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue(CHUNKS_WAITING_MAX)
        self._abandoned = False
        self._told: tuple[str | None, TokenUsage | None] = (None, None)
        self._pump = asyncio.create_task(self._read(), name="refold-record")
        self._sender = asyncio.create_task(self._write(), name="refold-batches")
        self._watch = asyncio.create_task(self._until_stopped())
        recording.lease.when_lost(self._let_go)

    def _let_go(self) -> None:
        self._pump.cancel()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        recording = self._recording
        while (chunk := await self._chunks.get()) is not None:
            if recording.strict:
                # Here, not where batches are sent: they go on while no worker is there to renew the lease.
                await recording.lease.valid()
            yield chunk
        # Both tasks are done, or about to be: their errors are the caller's.
        await self._sender
        with contextlib.suppress(asyncio.CancelledError):
            await self._pump
        recording.lease.check()
        if self._parser.error is not None:
            raise ProviderFailed(self._parser.error.code, self._parser.error.message)

    async def close(self) -> None:
        """Let go: the provider's stream is closed, what is not on the way yet is dropped if nobody reads."""
        if not self._sender.done():
            self._abandoned = True
            self._recording.dropped()
            self._batcher.close(discard=True)
            while not self._chunks.empty():
                self._chunks.get_nowait()
        self._watch.cancel()
        self._pump.cancel()
        await asyncio.gather(self._pump, self._sender, self._watch, return_exceptions=True)

    async def _until_stopped(self) -> None:
        await self._recording.stopped.wait()
        self._pump.cancel()

    async def _read(self) -> None:
        source = chunks_of(self._stream)
        try:
            async for event in source:
                self._add(self._join.feed(self._parser.feed(event)))
                await self._batcher.room()
                if self._parser.error is not None:
                    break
            self._add(self._join.finish())
        finally:
            self._batcher.close()
            await _close(source, self._stream)

    def _add(self, deltas: list[Delta]) -> None:
        recording = self._recording
        recording.next_part = max([recording.next_part, *(delta.part + 1 for delta in deltas)])
        finish = self._parser.finish_reason
        usage = self._parser.usage
        if usage is not None and self._parser.usage_mode == "total":
            usage = self._usage_from.plus(usage)
        told_finish, told_usage = self._told
        self._batcher.add(
            deltas,
            finish if finish != told_finish else None,
            usage if usage != told_usage else None,
            self._parser.usage_mode,
        )
        self._told = (finish, usage)

    async def _write(self) -> None:
        try:
            while (content := await self._batcher.next()) is not None:
                recording = self._recording
                if not recording.strict:
                    await self._hand_out(recording.seq_next, content)
                seq = await recording.send(content, self._parser.provider_response_id)
                if recording.strict:
                    await self._hand_out(seq, content)
        finally:
            self._pump.cancel()
            if not self._abandoned:
                with contextlib.suppress(asyncio.CancelledError):
                    await self._chunks.put(None)

    async def _hand_out(self, seq: int, content: Content) -> None:
        for chunk in self._recording.chunks_of(seq, content.deltas):
            if self._abandoned:
                return
            await self._chunks.put(chunk)


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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
