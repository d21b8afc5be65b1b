"""The recorder on fakes: batches in order, strict and relaxed, back-pressure, stop, lost lease."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from client.generation_items import G, begin
from refold.client.generations.batcher import Batcher
from refold.client.generations.journalling import LOST
from refold.client.generations.lease import Lease, LeaseLost
from refold.client.generations.limits import (
    BATCH_BYTES_MAX,
    BATCH_DELTAS_MAX,
    CHUNKS_WAITING_MAX,
    UNSENT_BYTES_MAX,
)
from refold.client.generations.prefix import COMPLETE, NO_PREFIX, Prefix
from refold.client.generations.recording import Chunk, ProviderFailed, Recording
from refold.client.receipts import Ruling
from refold.client.sender import Delivery
from refold.core.progress import Batch, Delta, Progress, TokenUsage, advance
from refold.errors import PermissionDenied, TransientError
from refold.wire.batches import decode_item


class Topic:
    """Takes records as the sender does; may fail, and may be held."""

    def __init__(self) -> None:
        self.records: list[Batch] = []
        self.failures = 0
        self.open = asyncio.Event()
        self.open.set()
        self.in_flight = 0
        self.in_flight_most = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, value: bytes, tell: Any) -> None:
        self.in_flight += 1
        self.in_flight_most = max(self.in_flight_most, self.in_flight)
        task = asyncio.get_running_loop().create_task(self._take(value, tell))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, value: bytes, tell: Any) -> None:
        await self.open.wait()
        self.in_flight -= 1
        if self.failures:
            self.failures -= 1
            tell(TransientError("not acknowledged"))
            return
        item = decode_item(value)
        assert isinstance(item, Batch)
        self.records.append(item)
        tell(Delivery(0, len(self.records), 0))

    @property
    def text(self) -> str:
        data = b"".join(d.data for b in self.records for d in b.deltas if d.kind == "text")
        return data.decode()

    def progress(self) -> Progress:
        """What the fold makes of it."""
        found, _ = advance(None, begin(), 0, 0)
        for offset, item in enumerate(self.records, 1):
            found, _ = advance(found, item, offset, 0)
        assert found is not None
        return found


def recording(
    topic: Topic, *, strict: bool = True, seconds: float = 60.0, prefix: Prefix = NO_PREFIX
) -> Recording:
    lease = Lease(G, 1, seconds, asyncio.get_running_loop().time())
    return Recording(G, 1, topic.start, lease, strict=strict, prefix=prefix)


async def words(*said: str, wait: asyncio.Event | None = None) -> AsyncIterator[str]:
    for one in said:
        yield one
    if wait is not None:
        await wait.wait()


async def collected(made: Recording, stream: Any, format: str = "text") -> list[Chunk]:
    async with aclosing(made.record(stream, format)) as chunks:
        return [chunk async for chunk in chunks]


async def test_chunks_are_the_stream_and_the_digest_is_the_folds() -> None:
    """Goal: what is yielded, what is on the topic and what the fold counts are the same text."""
    topic = Topic()
    made = recording(topic)
    chunks = await collected(made, words("Hello", ", ", "wörld", " \U0001f600"))
    text = "Hello, wörld \U0001f600"
    assert "".join(chunk.text for chunk in chunks) == topic.text == text
    progress = topic.progress()
    assert (made.produced, made.length, made.chain) == (progress.produced, progress.length, progress.chain)
    assert made.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert [batch.seq for batch in topic.records] == list(range(1, made.produced + 1))
    assert made.content("m")["content"][0].text == text


async def test_strict_chunks_wait_for_the_topic_and_relaxed_ones_do_not() -> None:
    for strict in (True, False):
        topic = Topic()
        topic.open.clear()
        made = recording(topic, strict=strict)
        chunks = made.record(words("a"), "text")
        first = asyncio.ensure_future(anext(chunks))
        # What must not come has a moment to come; what must has all the time of a busy machine.
        done, _ = await asyncio.wait({first}, timeout=0.1 if strict else 60.0)
        assert bool(done) is not strict
        topic.open.set()
        assert (await first).text == "a"
        await chunks.aclose()
        assert topic.text == "a"


async def test_a_failed_batch_is_sent_again_and_never_overtaken() -> None:
    topic = Topic()
    topic.failures = 2
    made = recording(topic)
    chunks = await collected(made, words(*"abcdefgh"))
    assert "".join(chunk.text for chunk in chunks) == topic.text == "abcdefgh"
    assert [batch.seq for batch in topic.records] == list(range(1, len(topic.records) + 1))
    assert topic.in_flight_most == 1


async def test_the_provider_waits_while_the_topic_does() -> None:
    """Goal: bounded memory: with Kafka away, only so much is read from the provider."""
    topic = Topic()
    topic.open.clear()
    taken = 0

    async def endless() -> AsyncIterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "x" * 10_000

    made = recording(topic)
    chunks = made.record(endless(), "text")
    first = asyncio.ensure_future(anext(chunks))
    await asyncio.wait({first}, timeout=0.2)
    assert taken * 10_000 <= UNSENT_BYTES_MAX + BATCH_BYTES_MAX + 20_000
    topic.open.set()
    await first
    await chunks.aclose()


async def test_a_caller_that_leaves_takes_the_provider_with_it() -> None:
    closed = asyncio.Event()

    async def provider() -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    topic = Topic()
    made = recording(topic)
    async with aclosing(made.record(provider(), "text")) as chunks:
        async for _ in chunks:
            break
    assert closed.is_set()
    assert made.produced == topic.progress().produced
    assert made.content("m")["content"][0].text == topic.text


async def test_a_stop_ends_the_stream_with_what_is_there() -> None:
    topic = Topic()
    made = recording(topic)
    held = asyncio.Event()
    chunks = made.record(words("so far", wait=held), "text")
    assert (await anext(chunks)).text == "so far"
    made.stop()
    assert [chunk async for chunk in chunks] == []
    assert topic.text == "so far"
    assert await collected(made, words("more")) == []


async def test_a_stop_in_the_moment_a_stream_is_taken_up_ends_it_at_once() -> None:
    """Goal: a task cancelled before its first step runs no code of its own; whoever waits is told all the
    same."""
    made, asked = recording(Topic()), 0

    async def provider() -> AsyncIterator[str]:
        nonlocal asked
        asked += 1
        yield "a"

    task = asyncio.create_task(collected(made, provider()))
    # The task has taken the stream up and waits; nothing of the stream has been read.
    await asyncio.sleep(0)
    made.stop()
    assert await asyncio.wait_for(task, 10) == []
    assert asked == 0


class Clinging:
    """A provider's stream of one word whose connection does not let itself be closed."""

    def __init__(self) -> None:
        self.said = self.closing = False

    def __aiter__(self) -> Clinging:
        return self

    async def __anext__(self) -> str:
        if self.said:
            raise StopAsyncIteration
        self.said = True
        return "a"

    async def aclose(self) -> None:
        self.closing = True
        await asyncio.Event().wait()


async def test_a_cancelled_answer_is_cancelled_while_its_provider_hangs_up() -> None:
    topic, stream = Topic(), Clinging()
    task = asyncio.create_task(collected(recording(topic), stream))
    async with asyncio.timeout(10):
        while not (topic.records and stream.closing):  # noqa: ASYNC110 - conditions of two parts
            await asyncio.sleep(0.001)
        # The chunk is taken; what is waited for is the stream's end.
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def test_who_ends_an_answer_may_be_cancelled_before_it_is_told() -> None:
    tells: list[Any] = []
    made = recording(Topic())
    made.start = lambda value, tell: tells.append(tell)
    task = asyncio.create_task(made.complete())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (tell,) = tells
    tell(None)
    assert task.cancelled()


async def test_a_renewal_that_is_refused_by_kafka_is_not_the_last() -> None:
    """Goal: who waits for the lease is not left waiting because nobody asks for it any more."""
    lease = Lease(G, 1, 0.5, asyncio.get_running_loop().time() - 1.0)
    answers: list[Any] = [PermissionDenied("no right to write"), Ruling("accepted", 3)]

    async def renew(timeout_s: float) -> Ruling:
        answer = answers.pop(0) if answers else Ruling("accepted", 4)
        if isinstance(answer, Exception):
            raise answer
        return Ruling(answer.status, answer.seq)

    keeping = asyncio.create_task(lease.keep(renew))
    await asyncio.wait_for(lease.valid(), 10)
    keeping.cancel()


async def test_a_lost_lease_stops_recording_with_a_clear_error() -> None:
    topic = Topic()
    made = recording(topic)
    held = asyncio.Event()
    chunks = made.record(words("so far", wait=held), "text")
    await anext(chunks)
    made.lease.lose("attempt 2 has begun")
    with pytest.raises(LeaseLost, match="attempt 2 has begun"):
        await anext(chunks)
    with pytest.raises(LeaseLost):
        await collected(made, words("more"))
    assert topic.text == "so far"


async def test_a_process_that_slept_past_its_lease_hands_nothing_out_before_it_has_asked() -> None:
    """Goal: the lease is over by this side's clock; a chunk waits for the fold's word, and never comes out
    when that is no."""
    topic = Topic()
    made = recording(topic, seconds=0.0)
    chunks = made.record(words("zombie"), "text")
    first = asyncio.ensure_future(anext(chunks))
    done, _ = await asyncio.wait({first}, timeout=0.1)
    assert not done
    made.lease.lose("stale_holder")
    with pytest.raises(LeaseLost):
        await first


async def test_a_providers_exception_comes_after_what_it_said() -> None:
    async def broken() -> AsyncIterator[str]:
        yield "half"
        raise ConnectionError("reset by peer")

    topic = Topic()
    made = recording(topic)
    got = []
    with pytest.raises(ConnectionError):
        async for chunk in made.record(broken(), "text"):
            got.append(chunk.text)
    assert got == ["half"]
    assert topic.text == "half"


async def test_an_error_event_of_the_provider_is_raised_after_what_it_said() -> None:
    stream = [
        {"choices": [{"index": 0, "delta": {"content": "half"}}], "object": "chat.completion.chunk"},
        {"error": {"code": "overloaded", "message": "try later"}},
    ]
    topic = Topic()
    made = recording(topic)
    with pytest.raises(ProviderFailed, match="overloaded"):
        await collected(made, stream, "auto")
    assert topic.text == "half"


def openai(text: str, usage: int) -> list[dict[str, Any]]:
    chunk = {"object": "chat.completion.chunk", "id": "r1"}
    return [
        {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {
            **chunk,
            "choices": [],
            "usage": {"prompt_tokens": 10, "completion_tokens": usage, "total_tokens": 1},
        },
    ]


async def test_two_streams_of_one_attempt_add_up() -> None:
    """Goal: parts are numbered on, running totals of the second stream do not replace the first one's."""
    topic = Topic()
    made = recording(topic)
    await collected(made, openai("Hello", 3), "auto")
    await collected(made, openai(" again", 4), "auto")
    progress = topic.progress()
    assert progress.usage == TokenUsage(20, 7, 0, 0) == made.usage
    assert progress.finish == "stop"
    assert progress.finishes == 1
    assert [part.text for part in made.content("m")["content"]] == ["Hello", " again"]


async def test_the_providers_own_composition_is_the_message_where_it_can_be() -> None:
    made = recording(Topic())
    await collected(made, openai("Hello", 3), "auto")
    body = made.content("m")
    assert (body["finish_reason"], body["usage"]["output"]) == ("stop", 3)
    assert made.provider_response_id == "r1"


async def test_an_attempt_goes_on_counting_where_the_prefix_ends() -> None:
    topic = Topic()
    first = recording(topic)
    await collected(first, words("Hello "))
    prefix = Prefix(tuple(first.deltas), first.produced, first.length, first.chain)
    second = recording(topic, prefix=prefix)
    await collected(second, words("world"))
    assert topic.progress().chain == second.chain
    assert second.sha256 == hashlib.sha256(b"Hello world").hexdigest()


# Batches


def test_a_long_delta_is_cut_and_told_its_name_once() -> None:
    batcher = Batcher()
    batcher.add([Delta("tool_call", 0, b"x" * (2 * BATCH_BYTES_MAX + 5), "c", "n")], "stop")
    made = []
    while not batcher.empty:
        made.append(batcher.take(0.0))
    sizes = [sum(len(d.data) for d in content.deltas) for content in made]
    assert sizes == [BATCH_BYTES_MAX, BATCH_BYTES_MAX, 5]
    assert [d.name for content in made for d in content.deltas] == ["n", None, None]
    assert [content.finish for content in made] == [None, None, "stop"]


def test_the_first_delta_goes_at_once_and_the_rest_by_time() -> None:
    batcher = Batcher(interval_s=0.025)
    batcher.add([Delta("text", 0, b"a")])
    assert batcher.due() <= 10.0
    batcher.take(10.0)
    batcher.add([Delta("text", 0, b"b")])
    batcher.add([Delta("text", 0, b"c")])
    assert batcher.due() == 10.025
    assert [delta.data for delta in batcher.take(10.025).deltas] == [b"b", b"c"]
    batcher.add([Delta("text", 0, b"x" * BATCH_BYTES_MAX)])
    assert batcher.due() <= 10.025
    batcher.take(10.03)
    batcher.add([Delta("text", 0, b"d")])
    batcher.closed = True
    assert batcher.due() <= 10.03


async def test_an_answer_that_has_returned_says_so_once() -> None:
    """Goal: who takes over after that writes the end and asks no model."""
    topic = Topic()
    made = recording(topic)
    topic.failures = 1
    await collected(made, words("a"))
    topic.failures = 1
    await made.complete()
    assert [batch.extra for batch in topic.records] == [None, COMPLETE]
    again = recording(topic, prefix=Prefix(tuple(made.deltas), made.produced, made.length, complete=True))
    await again.complete()
    assert len(topic.records) == 2


async def test_a_caller_that_takes_nothing_is_waited_for() -> None:
    """Goal: chunks do not pile up: beyond the limit nothing is sent until the caller takes some."""
    topic = Topic()
    made = recording(topic)
    many = [f"{n} " for n in range(3 * CHUNKS_WAITING_MAX)]
    chunks = made.record(many, "text")
    got = [(await anext(chunks)).text]
    waiting = len(made._open._chunks) if made._open is not None else 0
    assert waiting <= CHUNKS_WAITING_MAX + BATCH_DELTAS_MAX
    got += [chunk.text async for chunk in chunks]
    assert got == many


# Leases


async def test_a_lease_is_renewed_and_lost_by_the_folds_word() -> None:
    """Goal: renewals move it; a refusal ends it; no answer does not."""
    loop = asyncio.get_running_loop()
    lease = Lease(G, 1, 0.3, loop.time())
    answers: list[Any] = [
        Ruling("accepted", 2),
        TransientError("no worker"),
        Ruling("accepted", 3),
        Ruling("rejected", None, "stale_holder", "attempt 2 is another holder's"),
    ]
    untils = []

    async def renew(timeout_s: float) -> Ruling:
        untils.append(lease.until)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    await asyncio.wait_for(lease.keep(renew), 60)
    assert answers == []
    assert untils == sorted(untils)
    assert lease.lost is not None
    assert "stale_holder" in LOST
    with pytest.raises(LeaseLost):
        await lease.valid()
