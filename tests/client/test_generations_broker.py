"""Generations against a real broker, a real worker, and recording processes that die, sleep and come back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest

from client.generation_process import STORY, LostEarly, Process, provider, story, story_text
from client.worker_process import Worker, refold, worker
from refold.client import Frame, Generation, Refold, Refused
from refold.errors import NotFound
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Between a process that died and the next text: its lease, and this.
TAKEOVER_S_MAX = 2.0

#: A busy machine may stall a process past its lease before the test has done anything to it, or stall whoever
#: takes over. Then nothing was shown, and the scenario is played again.
TRIES_MAX = 4

#: A generation that takes this long to end, or an owner to say so, hangs.
END_S_MAX = 60.0


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"gen-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "2")
    return name


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


def client(kafka: Kafka, prefix: str) -> Refold:
    rf = Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap)
    rf.generator(STORY)(story)
    return rf


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker) -> AsyncIterator[Refold]:
    async with client(kafka, prefix) as made:
        yield made


@pytest.fixture
async def process(kafka: Kafka, prefix: str) -> AsyncIterator[Any]:
    """Start recording processes; all of them are dead afterwards."""
    started: list[Process] = []

    def start(session: str, key: str, **options: Any) -> Process:
        started.append(Process(kafka.bootstrap, prefix, session, key, **options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


async def followed(rf: Refold, session: str, generation: str, **options: Any) -> list[Frame]:
    return [frame async for frame in rf.follow(session, generation, **options)]


def joined(frames: list[Frame]) -> str:
    text = ""
    for frame in frames:
        text = "" if frame.kind == "reset" else text + frame.text
    return text


def sequence(frames: list[Frame]) -> list[tuple[int, int]]:
    return [(frame.attempt, frame.seq) for frame in frames if frame.kind == "delta"]


@contextlib.asynccontextmanager
async def supervising(rf: Refold) -> AsyncIterator[None]:
    task = asyncio.create_task(rf.supervise())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def tried(scenario: Callable[[], Awaitable[bool]]) -> None:
    """Play a scenario until it could be shown; false, or LostEarly: the machine was too busy for it."""
    for _ in range(TRIES_MAX):
        with contextlib.suppress(LostEarly):
            if await scenario():
                return
    pytest.fail(f"not shown in {TRIES_MAX} tries")


async def context_text(rf: Refold, session: str) -> str:
    found = (await rf.session(session).context()).messages[-1]["content"]
    assert isinstance(found, str)
    return found


async def test_a_generation_streams_and_its_message_enters(rf: Refold) -> None:
    """Goal: followers' text, the outcome and the session's message are one text; acks reach the owner."""
    s = rf.session(new_id("plain"))
    question = await s.append("Tell me", message_id="q1", wait="accepted")
    g = await s.generate(story, reply_to=question.message_id, params={"words": 20, "pace": 0.005})
    frames = await followed(rf, s.id, g.id, client="browser")
    assert joined(frames) == story_text(20)
    assert sequence(frames) == [(1, n) for n in range(1, len(frames))]
    outcome = await g.result(END_S_MAX)
    assert (outcome.state, outcome.text, outcome.message_id) == ("finished", story_text(20), g.message_id)
    assert await context_text(rf, s.id) == story_text(20)
    follow = rf.follow(s, g.id, client="browser")
    await follow.ack(frames[3])
    answer = await owner_says(rf, s.id, g.id, lambda p: any(a["seq"] == frames[3].seq for a in p["acks"]))
    assert answer["progress"]["acks"][0]["client"] == "browser"


async def owner_says(rf: Refold, session: str, generation: str, wanted: Any) -> dict[str, Any]:
    """The owner's answer once its progress is as wanted."""
    s = rf.session(session)
    deadline = time.monotonic() + END_S_MAX
    while time.monotonic() < deadline:
        answer = await rf.connection.owners.generation(
            s.partition, s.tenant, s.id, generation, wait_ms=0, timeout_s=5
        )
        if answer is not None and answer["progress"] is not None and wanted(answer["progress"]):
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError(f"the owner never said so: {answer}")


async def test_an_unknown_generation_is_said_so(rf: Refold) -> None:
    session = new_id("none")
    with pytest.raises(NotFound):
        await followed(rf, session, "g-none")
    body = [event async for event in rf.follow(session, "g-none").sse()]
    assert body[-1].startswith(b"event: end")
    assert b'"unknown"' in body[-1]
    for strange in ("g#1", "x" * 300, "../..", "a\nb"):
        with pytest.raises(NotFound):
            await followed(rf, session, strange)


async def test_a_cancelled_request_does_not_end_it(rf: Refold) -> None:
    s = rf.session(new_id("cancelled"))
    params = {"words": 10, "pace": 0.01}

    async def handler() -> None:
        await s.generate(story, key="k", params=params)

    task = asyncio.create_task(handler())
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    g = await s.generate(story, key="k", params=params)
    assert (await g.result(END_S_MAX)).text == story_text(10)


async def test_the_answers_own_error_fails_it_and_what_was_said_stays(rf: Refold) -> None:
    s = rf.session(new_id("fails"))
    g = await s.generate(story, key="k", params={"words": 30, "pace": 0.002, "fail_after": 3})
    outcome = await g.result(END_S_MAX)
    assert outcome.state == "failed"
    assert story_text(30).startswith(outcome.text)
    assert outcome.text
    (row,) = (await s.state(min_seq=outcome.seq)).generations  # type: ignore[union-attr]
    assert (row["state"], row["error_code"]) == ("failed", "answer_error")


async def test_a_stop_keeps_what_is_there(rf: Refold, kafka: Kafka, prefix: str) -> None:
    """Goal: a stop from another client ends the provider's stream; the message is what was said so far."""
    s = rf.session(new_id("stop"))
    g = await s.generate(story, params={"words": 5_000, "pace": 0.01})
    frames: list[Frame] = []
    async with client(kafka, prefix) as other:
        async for frame in rf.follow(s, g.id):
            frames.append(frame)
            if len(frames) == 5:
                assert (await other.stop(s.id, g.id, "enough")).accepted
    assert frames[-1].state == "stopped"
    assert story_text(5_000).startswith(joined(frames))
    assert await context_text(rf, s.id) == joined(frames)


async def test_one_key_from_two_processes_is_one_generation(rf: Refold, process: Any) -> None:
    """Goal: both get accepted handles and the same end; the answer runs in one of them only."""
    session = new_id("twice")
    # A lease that no stall outlasts: the answer must not move here.
    params, lease = {"words": 40, "pace": 0.0}, 20.0
    both = [process(session, "order-1", params=params, lease=lease) for _ in range(2)]
    ends = await asyncio.gather(*(one.line("ended") for one in both))
    assert ends[0] == ends[1] == ends[0].replace("failed", "finished")
    answering = [line for one in both for line in one.seen if line.startswith("answering")]
    assert answering == ["answering 1 restart"]
    g = await rf.session(session).generate(story, key="order-1", params=params, lease=lease)
    assert (await g.result(END_S_MAX)).text == story_text(40)
    assert (await rf.session(session).state()).seq == len([e async for e in rf.session(session).events()])  # type: ignore[union-attr]
    with pytest.raises(Refused, match="conflict"):
        await rf.session(session).generate(story, key="order-1", params={"words": 1, "pace": 0})


async def test_a_killed_process_is_taken_over_with_the_same_sentence(rf: Refold, process: Any) -> None:
    """Goal: two followers, one of which reconnects by Last-Event-ID, see one text, each part once, although
    the process is killed in the middle; text goes on within lease + 2 s."""
    lease, words = 1.5, 80

    async def scenario() -> bool:
        session = new_id("killed")
        async with supervising(rf):
            dying = process(session, "k", params={"words": words, "pace": 0.005, "again": 15}, lease=lease)
            generation = (await dying.line("accepted")).split()[1]
            steady = asyncio.create_task(timed(rf, session, generation))
            browser = asyncio.create_task(reconnecting(rf, session, generation))
            try:
                await dying.line("chunk 20")
                dying.kill()
                killed_at = time.monotonic()
                frames, times = await steady
                got = await browser
            finally:
                steady.cancel()
                browser.cancel()
        assert joined(frames) == got == story_text(words)
        attempts = sorted(set(sequence(frames)))
        assert attempts == [(1, n) for n in range(1, len(attempts) + 1)]
        (row,) = (await rf.session(session).state()).generations  # type: ignore[union-attr]
        assert row["state"] == "finished"
        assert row["attempt"] > 1
        assert await context_text(rf, session) == story_text(words)
        # What was on its way at the kill arrives at once; the next is the other process' text.
        return min(at for at in times if at > killed_at + lease / 2) - killed_at <= lease + TAKEOVER_S_MAX

    await tried(scenario)


async def timed(rf: Refold, session: str, generation: str) -> tuple[list[Frame], list[float]]:
    frames, times = [], []
    async for frame in rf.follow(session, generation):
        frames.append(frame)
        times.append(time.monotonic())
    return frames, times


def parse_sse(event: bytes) -> dict[str, str]:
    lines = (line.partition(": ") for line in event.decode().strip().split("\n"))
    return {name: value for name, _, value in lines if name}


async def reconnecting(rf: Refold, session: str, generation: str, every: int = 7) -> str:
    """A browser whose connection breaks after every few events; comes back with the last id it saw."""
    text, last_id = "", None
    while True:
        count = 0
        follow = rf.follow(session, generation, client="browser")
        async with aclosing(follow.sse(last_event_id=last_id, heartbeat=0.5)) as body:
            async for raw in body:
                event = parse_sse(raw)
                if "event" not in event:
                    continue
                last_id = event["id"]
                text = "" if event["event"] == "reset" else text + orjson.loads(event["data"])["text"]
                if event["event"] == "end":
                    return text
                count += 1
                if count == every:
                    break


async def test_nothing_of_a_process_that_slept_past_its_lease_is_shown(
    kafka: Kafka, prefix: str, rf: Refold, process: Any
) -> None:
    """Goal: stopped in mid-sentence, replaced, woken while its successor still speaks: its late batches are
    fenced, it is told that it lost, and it has handed out nothing but what its successor went on from."""
    words = 80

    async def scenario() -> bool:
        session, woken = new_id("zombie"), asyncio.Event()
        known: list[int] = []

        async def goes_on(g: Generation) -> None:
            known.append(g._prefix.produced)
            async for _ in g.record(provider(words, 0.005, g.prefix), format="text"):
                pass
            await woken.wait()

        async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as other:
            other.generator(STORY)(goes_on)
            async with supervising(other):
                sleeping = process(session, "k", params={"words": words, "pace": 0.0}, lease=1.5)
                generation = (await sleeping.line("accepted")).split()[1]
                watched = asyncio.create_task(followed(rf, session, generation))
                try:
                    await sleeping.line("chunk 10")
                    sleeping.signal(signal.SIGSTOP)
                    await owner_says(
                        rf,
                        session,
                        generation,
                        lambda p: p["attempt"] > 1 and bool(known) and p["produced"] > known[0],
                    )
                    sleeping.signal(signal.SIGCONT)
                    await sleeping.line("lost")
                    woken.set()
                    frames = await watched
                finally:
                    watched.cancel()
        assert joined(frames) == story_text(words)
        numbers = [seq for _, seq in sequence(frames)]
        assert numbers == list(range(1, len(numbers) + 1))
        chunks = [int(line.split()[1]) for line in sleeping.seen if line.startswith("chunk")]
        assert 10 <= max(chunks) <= known[0]
        assert await context_text(rf, session) == story_text(words)
        return True

    await tried(scenario)


async def test_a_restart_tells_followers_to_forget(
    kafka: Kafka, prefix: str, rf: Refold, process: Any
) -> None:
    async def scenario() -> bool:
        session = new_id("restart")
        async with client(kafka, prefix) as other:
            other.generators.resume(STORY, mode="restart")
            async with supervising(other):
                dying = process(session, "k", params={"words": 60, "pace": 0.005}, lease=1.0)
                generation = (await dying.line("accepted")).split()[1]
                watched = asyncio.create_task(followed(rf, session, generation))
                browser = asyncio.create_task(reconnecting(rf, session, generation))
                try:
                    await dying.line("chunk 15")
                    dying.kill()
                    frames = await watched
                    assert await browser == story_text(60)
                finally:
                    watched.cancel()
                    browser.cancel()
        assert [frame.attempt for frame in frames if frame.kind == "reset"] == [2]
        assert joined(frames) == story_text(60)
        assert await context_text(rf, session) == story_text(60)
        return True

    await tried(scenario)


async def test_a_response_the_provider_still_has_is_looked_up(
    kafka: Kafka, prefix: str, running: Worker
) -> None:
    """Goal: the second attempt records the looked-up response, skipping what is known, without a new call;
    where it is another response, the text begins anew."""
    async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as dying:
        answers: list[int] = []

        def chunks(text: str) -> list[dict[str, Any]]:
            pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
            made = [{"index": 0, "delta": {"content": piece}, "finish_reason": None} for piece in pieces]
            made[-1]["finish_reason"] = "stop"
            return [{"object": "chat.completion.chunk", "id": "resp-1", "choices": [one]} for one in made]

        async def answer(g: Generation) -> None:
            answers.append(g.attempt)

            async def stream() -> AsyncIterator[dict[str, Any]]:
                for n, chunk in enumerate(chunks(g.params["text"])):
                    if n == 4 and g.attempt == 1:
                        await asyncio.Event().wait()
                    yield chunk

            async for _ in g.record(stream()):
                pass

        async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as rf:
            for looked_up, expected in (("The very same sentence.", 1), ("Another one altogether.", 3)):

                async def lookup(g: Generation, text: str = looked_up) -> list[dict[str, Any]]:
                    assert g.provider_response_id == "resp-1"
                    return chunks(text)

                name = new_id("ask")
                dying.generator(name)(answer)
                rf.generator(name, lookup=lookup)(answer)
                s = dying.session(new_id("lookup"))
                g = await s.generate(name, params={"text": "The very same sentence."}, lease=0.9)
                text = asyncio.create_task(followed(rf, s.id, g.id))
                await owner_says(rf, s.id, g.id, lambda p: p["provider_response_id"] and p["produced"] > 0)
                await abandon(dying, g)
                async with supervising(rf):
                    frames = await text
                assert joined(frames) == "The very same sentence."
                (row,) = (await rf.session(s.id).state()).generations  # type: ignore[union-attr]
                assert row["attempt"] == (2 if expected == 1 else 3)
                assert answers == ([1] if expected == 1 else [1, 3])
                answers.clear()


async def abandon(rf: Refold, g: Generation) -> None:
    """As if the process died: the run is gone, the generation stays open."""
    ((_, task),) = rf.generations._running.values()
    task.cancel()
    await asyncio.wait({task})


async def test_relaxed_has_the_same_end(rf: Refold) -> None:
    s = rf.session(new_id("relaxed"))
    g = await s.generate(story, params={"words": 30, "pace": 0.002}, durability="relaxed")
    assert (await g.result(END_S_MAX)).text == story_text(30)
    assert await context_text(rf, s.id) == story_text(30)


async def test_many_followers_of_many_generations_lose_nothing(rf: Refold) -> None:
    """Goal: 200 followers of 10 generations on one process, some joining late, some slow: all see all of
    it."""
    sessions = [rf.session(new_id("many")) for _ in range(10)]
    params = {"words": 60, "pace": 0.02}
    running = await asyncio.gather(*(s.generate(story, params=params) for s in sessions))

    async def one(number: int) -> str:
        s, g = sessions[number % 10], running[number % 10]
        for _ in range(number // 10):
            await asyncio.sleep(0.01)
        frames = []
        async for frame in rf.follow(s, g.id):
            frames.append(frame)
            if number % 50 == 0:
                await asyncio.sleep(0.05)
        assert sequence(frames) == [(1, n) for n in range(1, len(frames))]
        assert (frames[-1].state, frames[-1].error) == ("finished", None)
        return joined(frames)

    texts = await asyncio.gather(*(one(number) for number in range(200)))
    assert set(texts) == {story_text(60)}


async def test_a_slow_follower_reads_the_topic_and_holds_nobody_up(
    rf: Refold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: behind by more than the ring holds, it reads the topic, page by page, and misses nothing."""
    monkeypatch.setattr("refold.client.generations.hub.RING_BYTES_MAX", 4096)
    monkeypatch.setattr("refold.client.generations.backfill.BACKFILL_PAGE_BYTES", 8192)
    s = rf.session(new_id("slow"))
    g = await s.generate(story, params={"words": 120, "pace": 0.005})
    quick = asyncio.create_task(followed(rf, s.id, g.id))
    frames: list[Frame] = []
    async for frame in rf.follow(s, g.id):
        frames.append(frame)
        if len(frames) == 1:
            await quick
    assert joined(frames) == joined(await quick) == story_text(120)
    assert sequence(frames) == [(1, n) for n in range(1, len(frames))]


async def test_a_generation_of_long_ago_is_its_message(rf: Refold) -> None:
    """Goal: when newer generations have pushed its row out, the same key still finds what it ended in."""
    s = rf.session(new_id("old"))
    params = {"words": 3, "pace": 0}
    first = await s.generate(story, key="first", params=params)
    await first.result(END_S_MAX)
    for _ in range(9):
        await (await s.generate(story, params=params)).result(END_S_MAX)
    again = await s.generate(story, key="first", params=params)
    outcome = await again.result(END_S_MAX)
    assert (outcome.state, outcome.text) == ("finished", story_text(3))


async def test_followers_outlive_a_worker(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: batches need no worker: with the only one killed, the text goes on; its end comes with the
    next."""
    name = new_id("worker")
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "1")
    with worker(kafka.bootstrap, name, tmp_path, "w-0") as held:
        async with client(kafka, name) as rf:
            s = rf.session("s")
            g = await s.generate(story, params={"words": 200, "pace": 0.01}, lease=2.0)
            frames: list[Frame] = []
            async for frame in rf.follow(s, g.id):
                frames.append(frame)
                if len(frames) == 10:
                    held.kill()
                # A busy machine may say all there is in fewer frames; only the end needs the worker.
                if (
                    len(frames) >= 10
                    and not held.alive
                    and (len(frames) >= 60 or joined(frames) == story_text(200))
                ):
                    held.start()
            assert joined(frames) == story_text(200)
            assert frames[-1].state == "finished"


async def test_the_provider_of_the_tests_goes_on_where_it_was() -> None:
    pieces = [piece async for piece in provider(5, 0, story_text(5)[:20], 4)]
    assert story_text(5)[:16] + "".join(pieces) == story_text(5)
