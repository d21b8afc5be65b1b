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
import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, NamedTuple

from refold.client.generations.batcher import Content
from refold.client.generations.composing import compose, name_calls
from refold.client.generations.courier import Strokes
from refold.client.generations.frames import UNDECODABLE, Decoders
from refold.client.generations.join import Join, Numbered
from refold.client.generations.lease import Lease
from refold.client.generations.limits import (
    GENERATION_BYTES_MAX,
    RESEND_PAUSE_S,
    RESEND_PAUSE_S_MAX,
)
from refold.client.generations.pipe import Pipe
from refold.client.generations.prefix import COMPLETE, Prefix
from refold.client.generations.registry import Provider
from refold.core.progress import NO_USAGE, Batch, Delta, next_chain
from refold.errors import RefoldError, TransientError, UnavailableError, UsageError
from refold.formats.streams import StreamParser, parser_for
from refold.wire.batches import BatchWriter, encode_item

Tell = Callable[[Any], None]
Start = Callable[[bytes, Tell], None]
"""Append one record to the generation's partition: raises, or tells later where it lies or why nobody
knows."""


class Chunk(NamedTuple):
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
        self,
        generation: str,
        attempt: int,
        start: Start,
        lease: Lease,
        *,
        strict: bool,
        prefix: Prefix,
        strokes: Strokes | None = None,
    ) -> None:
        self.generation = generation
        self.attempt = attempt
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
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
        self._writer = BatchWriter(generation, attempt)
        self.start = start
        #: Calls back once, when it is time to send: together with the client's other generations.
        self.soon = (strokes or Strokes()).soon
        self._lease = lease
        self._strict = strict
        self._overlooked = False
        self._decoders = Decoders()
        self._streams: list[tuple[StreamParser, Join]] = []
        self.next_part = 1 + max((delta.part for delta in prefix.deltas), default=-1)
        self._open: Pipe | None = None
        self._sent_at = self._loop.time()

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
        if self.produced == self._prefix.produced and self._prefix.complete:
            return
        content = Content()
        value = self.encode(content, self.provider_response_id, COMPLETE)
        pause = RESEND_PAUSE_S
        while True:
            self._lease.check()
            told: asyncio.Future[Any] = self._loop.create_future()
            try:
                self.start(value, partial(_settle, told))
                outcome = await told
                if isinstance(outcome, BaseException):
                    raise outcome
                break
            except (TransientError, UnavailableError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, RESEND_PAUSE_S_MAX)
        self.account(content, self.provider_response_id)

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
        join: Callable[[], Join | None] = lambda: None,
    ) -> AsyncGenerator[Chunk, None]:
        """Chunks of a provider's stream; ends with it, or when the generation is stopped. ``join`` is asked
        when the stream before it is settled.

        Raises what the stream raises (what came before is recorded), ProviderFailed, LeaseLost.
        """
        await self.settle()
        if self.stopped.is_set():
            return
        self._lease.check()
        parser = parser_for(format)
        joined = join() or Numbered(self.next_part)
        self._streams.append((parser, joined))
        pipe = self._open = Pipe(self, parser, stream, joined)
        try:
            while await pipe.ready():
                while (chunk := pipe.next()) is not None:
                    yield chunk
            if parser.error is not None:
                raise ProviderFailed(parser.error.code, parser.error.message)
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
        now = self._loop.time()
        if now - self._sent_at < quiet_s:
            return None
        self._sent_at = now
        return encode_item(Batch(self.generation, self.attempt, 0, sent_ms=_now_ms()))

    def stop(self) -> None:
        """End the provider's stream; what it has said is still recorded, nothing more is begun."""
        self.stopped.set()
        if self._open is not None:
            self._open.let_go()

    # For the pipe

    def encode(self, content: Content, response_id: str | None, extra: bytes | None = None) -> bytes:
        """The record of the next batch."""
        self._sent_at = self._loop.time()
        return self._writer.encode(
            self.produced + 1,
            tuple(content.deltas),
            content.finish,
            content.usage,
            content.usage_mode,
            response_id if response_id != self.provider_response_id else None,
            _now_ms(),
            extra,
        )

    def account(self, content: Content, response_id: str | None) -> int:
        """The batch is durable; returns its seq. Raises UsageError when it is too much for one message."""
        self.produced += 1
        self.chain = next_chain(self.chain, content.deltas)
        self.deltas += content.deltas
        self.provider_response_id = response_id
        self.finish_reason = self.finish_reason or content.finish
        if content.usage is not None:
            self.usage = self.usage.plus(content.usage) if content.usage_mode == "delta" else content.usage
        for delta in content.deltas:
            self._bytes += len(delta.data)
            if delta.kind == "text":
                self.length += len(delta.data)
                self._sha.update(delta.data)
        if self._bytes > GENERATION_BYTES_MAX:
            raise UsageError(
                f"the generation has more than {GENERATION_BYTES_MAX} bytes, too many for one message"
            )
        return self.produced

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


def _settle(told: asyncio.Future[Any], outcome: Any) -> None:
    if not told.done():  # Who waited may have been cancelled.
        told.set_result(outcome)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
