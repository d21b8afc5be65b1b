"""Rulings: one NDJSON stream per owner, direct look-ups for what a stream cannot have said, topics last.

How a ruling is found, in this order:

1. it has come through the owner's stream already (kept, bounded),
2. it comes through the stream: every ruling on this producer's records committed while the stream is open,
3. the owner is asked directly: for a record sent before its stream was open, and every ``RULING_RECHECK_S``
   in case the partition moved to another owner,
4. no owner answers, or the owner no longer remembers: the committed offsets say whether it was ruled on, the
   journal and the rejected topic say how.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from refold.client.limits import (
    RETRY_PAUSE_S,
    RULING_LONG_POLLS_MAX,
    RULING_LOOKUPS_MAX,
    RULING_RECHECK_S,
    RULINGS_KEPT_MAX,
    STREAM_SILENCE_S,
)
from refold.client.owners import NoOwnerAnswers, Owners, RulingForgotten
from refold.client.sender import Delivery
from refold.client.watch import Because, as_it_is
from refold.errors import TransientError, UnavailableError
from refold.wire.owner import RulingLine, RulingStatus

Position = tuple[int, int]
TopicLookup = Callable[[Delivery], Awaitable[RulingLine | None]]
Observer = Callable[[RulingLine], None]
_Said = tuple[RulingStatus, int | None, str | None, str | None, str | None]

#: A direct look-up gives up after this long and the loop looks the owner up again.
LOOKUP_TIMEOUT_S: Final = 2.0

#: Longest ruling line; reasons are cut by the fold well below it.
LINE_BYTES_MAX: Final = 64 * 1024


class _Waited:
    """A ruling somebody waits for. Several may, each with a timeout of its own. ``hearing``: those who only
    listen to the stream, which is nearly everybody: one future each, and one timer."""

    __slots__ = ("future", "hearing", "waiters")

    def __init__(self) -> None:
        self.future: asyncio.Future[RulingLine] = asyncio.get_running_loop().create_future()
        self.hearing: list[asyncio.Future[RulingLine | None]] = []
        self.waiters = 0

    async def hear(self, seconds: float) -> RulingLine | None:
        """The ruling if it comes within ``seconds``."""
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[RulingLine | None] = loop.create_future()
        self.hearing.append(heard)
        timer = loop.call_later(seconds, _unheard, heard)
        try:
            return await heard
        finally:
            timer.cancel()
            self.hearing.remove(heard)

    def ruled(self, line: RulingLine) -> None:
        if not self.future.done():
            self.future.set_result(line)
        for heard in self.hearing:
            if not heard.done():
                heard.set_result(line)

    def fail(self, error: Exception) -> None:
        """They may be gone: nothing is said of an error that nobody looks at."""
        futures: list[asyncio.Future[Any]] = [self.future, *self.hearing]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()


def _unheard(heard: asyncio.Future[RulingLine | None]) -> None:
    if not heard.done():
        heard.set_result(None)


class _Stream:
    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.open_since: float | None = None
        self.task: asyncio.Task[None] | None = None


class Rulings:
    """All rulings of one client. Use from one event loop."""

    def __init__(
        self, owners: Owners, producer_id: str, from_topics: TopicLookup, because: Because = as_it_is
    ) -> None:
        self._owners = owners
        self._producer_id = producer_id
        self._from_topics = from_topics
        self._because = because
        # Exact tuples of plain values: the garbage collector forgets those, and 32 000 objects that it looks
        # through again and again cost every caller pauses of 20 to 50 ms.
        self._kept: OrderedDict[Position, _Said] = OrderedDict()
        self._waiting: dict[Position, _Waited] = {}
        self._observers: OrderedDict[Position, Observer] = OrderedDict()
        self._streams: dict[str, _Stream] = {}
        self._lookups = asyncio.Semaphore(RULING_LOOKUPS_MAX)
        self._long_polls = asyncio.Semaphore(RULING_LONG_POLLS_MAX)
        self._closed = False

    async def close(self) -> None:
        """Whoever waits is told at once: nobody would be asked for them any more."""
        self._closed = True
        for position, waited in self._waiting.items():
            waited.fail(_closed(*position))
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def observe(self, delivery: Delivery, observer: Observer) -> None:
        """Call ``observer`` once when the ruling on this record becomes known, by whatever way."""
        position = (delivery.partition, delivery.offset)
        if (said := self._kept.get(position)) is not None:
            observer(_line(position, said))
            return
        self._observers[position] = observer
        if len(self._observers) > RULINGS_KEPT_MAX:
            self._observers.popitem(last=False)

    async def wait(
        self, delivery: Delivery, sent_at: float, timeout_s: float, *, streamed: bool = True
    ) -> RulingLine:
        """The ruling; raises :class:`TransientError` saying what is known when time runs out.

        ``sent_at``: ``time.monotonic()`` before the record was handed to Kafka. ``streamed``: the record
        bears this producer's stamp, so its ruling comes through the stream; others are long-polled.
        """
        position = (delivery.partition, delivery.offset)
        if (said := self._kept.get(position)) is not None:
            return _line(position, said)
        if self._closed:
            raise _closed(*position)
        waited = self._waiting.get(position)
        if waited is None:
            waited = self._waiting[position] = _Waited()
        waited.waiters += 1
        future, asked = waited.future, set[float | None]()
        end = time.monotonic() + timeout_s
        try:
            if streamed and (since := self._heard_since(delivery.partition, sent_at)) is not None:
                if (line := await waited.hear(min(timeout_s, RULING_RECHECK_S))) is not None:
                    return line
                asked.add(since)
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                if streamed:
                    return await self._pursue(delivery, sent_at, future, asked)
                return await self._poll_owner(delivery, future)
        except TimeoutError:
            pass
        finally:
            waited.waiters -= 1
            if not waited.waiters and self._waiting.get(position) is waited:
                del self._waiting[position]
        with contextlib.suppress(UnavailableError, TransientError, TimeoutError):
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                if (line := await self._from_topics(delivery)) is not None:
                    return self._known(line)
        late = TransientError(
            f"the event is durable (inbox partition {delivery.partition}, offset {delivery.offset}) but "
            f"was not ruled on within {timeout_s:g} s: no worker runs for its partition, or it is behind. "
            "It is not lost: await receipt.ruling() again"
        )
        raise self._because(late)

    async def _pursue(
        self,
        delivery: Delivery,
        sent_at: float,
        future: asyncio.Future[RulingLine],
        asked: set[float | None],
    ) -> RulingLine:
        """``asked``: since when the streams have been open that need not be waited for any more."""
        while not future.done():
            pause = RULING_RECHECK_S
            stream = await self._stream_for(delivery.partition)
            if stream is None or stream.open_since is None:
                pause = RETRY_PAUSE_S
            heard_all = stream is not None and stream.open_since is not None and stream.open_since < sent_at
            first_time = stream is not None and stream.open_since not in asked
            if heard_all and first_time:
                # Sent after the stream was open: its ruling comes through it, no need to ask now.
                asked.add(stream.open_since if stream is not None else None)
            else:
                if stream is not None:
                    asked.add(stream.open_since)
                if not await self._ask(delivery, future):
                    pause = RETRY_PAUSE_S
            await asyncio.wait([future], timeout=pause)
        return future.result()

    async def _poll_owner(self, delivery: Delivery, future: asyncio.Future[RulingLine]) -> RulingLine:
        while not future.done():
            if not await self._ask(delivery, future, wait_s=RULING_RECHECK_S):
                await asyncio.wait([future], timeout=RETRY_PAUSE_S)
        return future.result()

    async def _ask(self, delivery: Delivery, future: asyncio.Future[RulingLine], wait_s: float = 0.0) -> bool:
        """Direct look-up, then topics where owners cannot tell. False when nobody could be asked."""
        async with self._lookups if not wait_s else self._long_polls:
            if future.done():
                return True
            try:
                line = await self._owners.ruling(
                    delivery.partition, delivery.offset, LOOKUP_TIMEOUT_S, wait_s=wait_s
                )
            except (RulingForgotten, NoOwnerAnswers) as error:
                try:
                    line = await self._from_topics(delivery)
                except (UnavailableError, TransientError):
                    return False
                if line is None and isinstance(error, NoOwnerAnswers):
                    return False
        if line is not None:
            self._known(line)
        return True

    # Streams

    def _heard_since(self, partition: int, sent_at: float) -> float | None:
        """Since when the stream is open through which the ruling on what was sent then comes; ``None`` where
        that has to be looked up."""
        owner = self._owners.router.known(partition)
        stream = None if owner is None else self._streams.get(owner.url)
        since = None if stream is None else stream.open_since
        return since if since is not None and since < sent_at else None

    async def _stream_for(self, partition: int) -> _Stream | None:
        """The open stream of the partition's owner, opened if need be; ``None`` without an owner."""
        try:
            owner = await self._owners.router.owner(partition)
        except UnavailableError:
            return None
        if owner is None:
            return None
        stream = self._streams.get(owner.url)
        if stream is None:
            stream = self._streams[owner.url] = _Stream()
            stream.task = asyncio.get_running_loop().create_task(
                self._read_stream(owner.url, stream), name="refold-rulings"
            )
        await stream.ready.wait()
        return stream

    async def _read_stream(self, url: str, stream: _Stream) -> None:
        target = URL(f"{url}/v1/rulings/stream?producer={quote(self._producer_id, safe='')}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=LOOKUP_TIMEOUT_S, sock_read=STREAM_SILENCE_S)
        rest = b""
        try:
            async with self._owners.http.get(target, timeout=timeout, allow_redirects=False) as response:
                if response.status != 200:
                    raise UnavailableError(f"{url} refused the ruling stream: {response.status}")
                async for chunk in response.content.iter_any():
                    if stream.open_since is None:
                        # The server subscribes before it writes its first byte.
                        stream.open_since = time.monotonic()
                        stream.ready.set()
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > LINE_BYTES_MAX:
                        raise UnavailableError(f"{url} sent a ruling line above {LINE_BYTES_MAX} bytes")
                    for line in lines:
                        if line:
                            self._known(RulingLine.from_bytes(line))
        except (aiohttp.ClientError, TimeoutError, OSError, UnavailableError):
            pass  # Waiters notice by the missing stream.
        finally:
            if self._streams.get(url) is stream:
                del self._streams[url]
            stream.open_since = None
            stream.ready.set()
        # The owner may have changed; whoever waits looks it up in what this finds.
        with contextlib.suppress(UnavailableError):
            await self._owners.router.refresh()

    def _known(self, line: RulingLine) -> RulingLine:
        position = (line.partition, line.offset)
        self._kept[position] = (line.status, line.seq, line.code, line.reason, line.note)
        if len(self._kept) > RULINGS_KEPT_MAX:
            self._kept.popitem(last=False)
        if (observer := self._observers.pop(position, None)) is not None:
            observer(line)
        if (waited := self._waiting.pop(position, None)) is not None:
            waited.ruled(line)
        return line


def _closed(partition: int, offset: int) -> TransientError:
    return TransientError(
        "the client was closed before the ruling was known. The event is durable (inbox partition "
        f"{partition}, offset {offset}) and not lost: the session's state says what became of it"
    )


def _line(position: Position, said: _Said) -> RulingLine:
    status, seq, code, reason, note = said
    return RulingLine(position[0], position[1], status, seq, code, reason, note)
