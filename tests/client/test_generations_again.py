"""Generations asked for again: with another question, after a run that was left, after the buffer is gone;
and while the client closes or its blob store is away. A real broker, a real worker."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from client.generation_process import STORY, story, story_text
from client.worker_process import Worker, refold, worker
from refold.client import Frame, Generation, Refold, Refused, Session
from refold.client.generations import run as run_module
from refold.client.generations.metering import Meter
from refold.errors import UnavailableError, UsageError
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

END_S_MAX = 60.0

#: Content that goes to the blob store.
INLINE_BYTES_MAX = 1_024


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"again-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "1")
    return name


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "blobs"


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker, blobs: Path) -> AsyncIterator[Refold]:
    async with client(kafka, prefix, blobs) as made:
        yield made


def client(kafka: Kafka, prefix: str, blobs: Path) -> Refold:
    store = {"url": blobs.as_uri(), "inline_bytes_max": INLINE_BYTES_MAX}
    rf = Refold(Settings(topic_prefix=prefix, blobs=store), bootstrap=kafka.bootstrap)
    rf.generator(STORY, overlap=False)(story)
    return rf


def new_session(rf: Refold, name: str) -> Session:
    return rf.session(f"{name}-{uuid.uuid4().hex[:6]}")


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)


def joined(frames: list[Frame], text: str = "") -> str:
    for frame in frames:
        text = "" if frame.kind == "reset" else text + frame.text
    return text


async def states(session: Session) -> dict[str, str]:
    found = await session.state(min_seq=0)
    assert found is not None
    return {row["generation_id"]: row["state"] for row in found.generations}


async def push_out(session: Session) -> None:
    """So many later ones that the session keeps neither row nor record of those before."""
    for _ in range(9):
        await (await session.generate(STORY, params={"words": 1, "pace": 0})).result(END_S_MAX)


async def test_other_arguments_under_a_key_are_refused_while_the_first_runs_here(rf: Refold) -> None:
    """Goal: as in any other process: nobody gets the answer to another question."""
    s = new_session(rf, "conflict")
    params = {"words": 2_000, "pace": 0.01}
    starting = asyncio.create_task(s.generate(story, key="k", params=params))
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="conflict"):
        await s.generate(story, key="k", params={"words": 1, "pace": 0})
    g = await starting
    with pytest.raises(Refused, match="conflict"):
        await s.generate(story, key="k", params={"words": 1, "pace": 0})
    assert await s.generate(story, key="k", params=params) is g
    await g.stop()
    assert (await g.result(END_S_MAX)).state == "stopped"


async def test_a_run_that_was_left_is_gone_on_with_and_not_begun_again(
    rf: Refold, running: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the same key in the same process, after its run could not be ended for want of a worker: the text
    that is on the topic stays, no batch of a second text follows it."""
    monkeypatch.setattr(run_module, "RULING_WAIT_S", 0.3)
    s = new_session(rf, "left")
    answered: list[int] = []

    async def answer(g: Generation) -> None:
        answered.append(g.attempt)
        async for _ in g.record(iter([f"attempt {g.attempt};"] * 20), format="text"):
            pass
        if len(answered) == 1:
            running.signal(signal.SIGSTOP)

    options = {"key": "k", "lease": 20.0, "meter": Meter("ada", "m")}
    try:
        g = await s.generate(answer, **options)  # type: ignore[arg-type]
        await rf.generations.ran(s, g.id)
    finally:
        running.signal(signal.SIGCONT)
    assert g.outcome is None
    monkeypatch.undo()
    again = await s.generate(answer, **options)  # type: ignore[arg-type]
    outcome = await again.result(END_S_MAX)
    assert (outcome.state, outcome.text) == ("finished", "attempt 1;" * 20)
    assert joined([frame async for frame in rf.follow(s, g.id)]) == outcome.text
    assert answered == [1]


async def test_a_client_that_closes_leaves_its_answers_to_others(
    kafka: Kafka, prefix: str, running: Worker, blobs: Path, rf: Refold
) -> None:
    """Goal: also one that was being started when closing began: it is left open, not ended as failed."""
    other = client(kafka, prefix, blobs)
    name = f"closing-{uuid.uuid4().hex[:6]}"
    params = {"words": 5_000, "pace": 0.01}
    async with other:
        s = other.session(name)
        first = await s.generate(story, params=params)
        starting = asyncio.create_task(s.generate(story, params=params))
        await asyncio.sleep(0)
        closing = asyncio.create_task(other.generations.close(1.5))
        second = await starting
        with pytest.raises(UnavailableError, match="closing"):
            await s.generate(story, params=params)
        await closing
        assert other.generations.running == 0
    assert await states(rf.session(name)) == {first.id: "started", second.id: "started"}
    for g in (first, second):
        await rf.stop(name, g.id)


async def test_a_place_in_another_text_is_told_to_forget_it(rf: Refold) -> None:
    """Goal: a follower with a place that this text never had (its session was deleted and begun anew) waits
    for nothing that cannot come, while it runs and afterwards."""
    s = new_session(rf, "elsewhere")
    g = await s.generate(story, params={"words": 5_000, "pace": 0.01})

    async def all_of() -> list[Frame]:
        follow = rf.follow(s, g.id)
        assert follow.seek(f"{g.id}:9:3")
        return [frame async for frame in follow]

    following = asyncio.create_task(all_of())
    await until(lambda: g.produced > 3)
    await g.stop()
    outcome = await g.result(END_S_MAX)
    for frames in (await asyncio.wait_for(following, 20), await asyncio.wait_for(all_of(), 20)):
        assert frames[0].kind == "reset"
        assert (joined(frames), frames[-1].state) == (outcome.text, "stopped")


async def test_a_client_is_opened_once(rf: Refold) -> None:
    """Goal: no second connection is left behind that nobody closes."""
    with pytest.raises(UsageError, match="open already"):
        await rf.__aenter__()
    assert (await new_session(rf, "once").append("hi")).offset >= 0


async def test_a_blob_store_that_is_away_does_not_fail_an_answer(
    kafka: Kafka, prefix: str, running: Worker, tmp_path: Path
) -> None:
    """Goal: the answer is all there; it ends when the store is back. And it is shown whole afterwards, when
    only its message is left, of which the session has a reference."""
    blobs = tmp_path / "blobs"
    blobs.write_bytes(b"no directory")
    options = {"key": "k", "params": {"words": 200, "pace": 0}}
    async with client(kafka, prefix, blobs) as rf:
        s = new_session(rf, "blobs")
        g = await s.generate(story, **options)  # type: ignore[arg-type]
        ending = asyncio.create_task(g.result(END_S_MAX))
        found = [frame async for frame in _until_said(rf, s, g.id, story_text(200))]
        await asyncio.sleep(0.1)
        assert (await states(s))[g.id] == "started"
        blobs.unlink()
        outcome = await ending
        assert (outcome.state, outcome.text) == ("finished", story_text(200))
        assert joined(found) == story_text(200)
        await push_out(s)
        again = await s.generate(story, **options)  # type: ignore[arg-type]
        assert (await again.result(END_S_MAX)).text == story_text(200)


async def _until_said(rf: Refold, s: Session, generation: str, text: str) -> AsyncIterator[Frame]:
    said = ""
    async with contextlib.aclosing(rf.follow(s, generation).events(None)) as events:
        async for frame in events:
            if frame is not None:
                said += frame.text
                yield frame
            if said == text:
                return


async def test_who_comes_back_to_an_archived_answer_gets_no_word_twice(rf: Refold) -> None:
    """Goal: with a part of the text, when newer generations have pushed its batches out of reach."""
    s = new_session(rf, "archived")
    g = await s.generate(story, key="k", params={"words": 40, "pace": 0.003})
    seen = [frame async for frame in g.follow()]
    await g.result(END_S_MAX)
    await push_out(s)
    for count in (0, 2, len(seen) - 1):
        follow = rf.follow(s, g.id)
        follow.seek(seen[count - 1].id if count else None)
        frames = [frame async for frame in follow]
        assert joined(frames, joined(seen[:count])) == story_text(40)
        assert frames[-1].state == "finished"
