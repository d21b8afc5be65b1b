"""Usage on a real broker and a real worker: recorded, read, admitted, metered, shown."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from client.generation_process import STORY, story
from client.worker_process import Worker, refold, worker
from refold.client import Generation, Meter, Overlimit, Refold, Refused
from refold.core.usage import window_ms
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

END_S_MAX = 60.0

#: Longer than a busy machine takes for the test: its leases are released and do not end.
LEASE_S = 3_000.0


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"use-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "2")
    return name


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker) -> AsyncIterator[Refold]:
    async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as made:
        made.generator(STORY)(story)
        yield made


def new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


async def test_usage_of_several_sessions_and_models_adds_up(rf: Refold, kafka: Kafka, prefix: str) -> None:
    """Goal: sums over partitions and models; an event id counts once; a closed session still says what was
    used; late and future ones as the rules say; the command shows the same."""
    ada = new_id("ada/%#ö")
    sessions = [rf.session(new_id("chat")) for _ in range(6)]
    assert {session.partition for session in sessions} == {0, 1}
    for at, session in enumerate(sessions):
        await session.usage(ada, "large").record(input=10**at, output=1, wait="accepted")
    small = rf.usage(ada, "small")
    for _ in range(2):
        await small.record(input=7, event_id="once", wait="accepted")
    await sessions[0].close()
    await sessions[0].usage(ada, "large").record(requests=0, cached=5, wait="accepted")
    with pytest.raises(Refused, match="bad_value"):
        await small.record(input=-1, wait="accepted")
    large = await rf.usage(ada, "large").window("hour")
    assert (large.requests, large.input, large.output, large.cached) == (6, 111_111, 6, 5)
    assert (large.missing, large.stale, large.active) == ((), False, 0)
    every = await rf.usage(ada, "*").window("day")
    assert (every.requests, every.input) == (7, 111_118)

    await small.record(at_ms=large.now_ms - 3 * window_ms("minute"), wait="accepted")
    await small.record(at_ms=large.now_ms + window_ms("day"), wait="accepted")
    assert (await small.window("hour")).requests == 3
    done = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "usage", "show", ada, "--json")
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown["sum"]["windows"]["hour"]["input"] == 111_118
    assert shown["models"]["small"]["future"] == 1
    assert shown["models"]["small"]["late"] == {"minute": 1, "hour": 0, "day": 0}
    assert shown["missing"] == []
    text = (await asyncio.to_thread(refold, kafka.bootstrap, prefix, "usage", "show", ada, "large")).stdout
    assert "111111" in text


async def test_w5_admission_holds_the_limits_and_gives_back_what_is_left(
    rf: Refold, kafka: Kafka, prefix: str
) -> None:
    """Goal: never more under way than allowed, whoever asks; what is released is free at once, what is
    recorded counts; an admission that is refused changes nothing."""
    user = new_id("user")
    usage = rf.usage(user, "m")
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(usage.admit(concurrency=2, limit=3, lease=LEASE_S))
        with pytest.raises(Overlimit) as refused:
            async with usage.admit(concurrency=2):
                raise AssertionError("a third one is under way")
        assert (refused.value.what, refused.value.used) == ("concurrency", 2)
        assert 0 < refused.value.retry_after_s <= LEASE_S
        async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as other:
            with pytest.raises(Overlimit):
                async with other.usage(user, "m").admit(concurrency=2):
                    raise AssertionError("another client sees the leases too")
            assert (await other.usage(user, "m").window("minute")).active == 2
        await usage.record(wait="accepted")
    async with usage.admit(concurrency=1, limit=4):
        await usage.record(wait="accepted")
    await usage.record(input=90, output=10, wait="accepted")
    with pytest.raises(Overlimit) as over:
        async with usage.admit(limit=3):
            raise AssertionError("three requests were made in this hour")
    assert (over.value.what, over.value.used) == ("requests", 3)
    assert 0 < over.value.retry_after_s <= 3_900
    with pytest.raises(Overlimit, match="tokens: 100 of 100"):
        async with usage.admit(tokens=100):
            raise AssertionError("the tokens are used up")
    assert (await usage.window("hour")).active == 0


async def test_a_generation_with_a_meter_counts_once(rf: Refold) -> None:
    """Goal: its tokens are recorded by whoever ends it, also when it fails, once however often it is asked
    for; without a meter nothing is."""
    user = new_id("user")
    chat = rf.session(new_id("chat"))
    await chat.append("Hello", role="user")

    async def answer(g: Generation) -> None:
        stream = [
            {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}},
        ]
        async for _ in g.record(stream, "openai"):
            pass
        if g.key == "broken":
            raise ValueError("after the tokens were used")

    rf.generator("metered")(answer)
    meter = Meter(user, "gpt")
    for key in ("a", "a", "broken"):
        generation = await chat.generate("metered", key=key, meter=meter)
        outcome = await generation.result(END_S_MAX)
        assert outcome.state == ("failed" if key == "broken" else "finished")
    await (await chat.generate("metered", key="b")).result(END_S_MAX)
    await (await chat.generate("metered", key="c", meter=rf.usage(user, "gpt"))).result(END_S_MAX)
    window = await rf.usage(user, "gpt").window("hour")
    assert (window.requests, window.input, window.output) == (3, 33, 9)
