"""Summaries and child sessions on a real broker and worker: asked for by the fold, written by two clients
and a process; and children that follow their parent across partitions."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from client.worker_process import REFOLD, Worker, refold, worker
from refold.client import Refold, Session
from refold.formats.parts import tool_call
from refold.formats.validate import problems
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PATIENCE_S = 120.0
SESSIONS = 6


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"summaries-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "4")
    return name


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker) -> AsyncIterator[Refold]:
    async with Refold(bootstrap=kafka.bootstrap, topic_prefix=prefix) as made:
        yield made


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - what a worker and other processes do
            await asyncio.sleep(0.05)


async def talk(chat: Session, turns: int) -> None:
    """All of it is folded when this returns."""
    for at in range(turns):
        await chat.append(f"Question {at}. And more.", role="user")
        wait: Literal["durable", "accepted"] = "accepted" if at == turns - 1 else "durable"
        await chat.append(f"Answer {at}.", role="assistant", wait=wait)


async def summarised(chat: Session) -> bool:
    view = await chat.state()
    return view is not None and view.data["context"]["summary_active"]


async def test_long_sessions_get_their_summary(kafka: Kafka, prefix: str, rf: Refold, tmp_path: Path) -> None:
    """Two clients serve: each session has one summary, no message is lost or doubled. The next part of the
    conversation is summarised by a process of its own, which drains on SIGTERM. A session without a policy is
    left alone."""
    chats = [rf.session(f"long-{at}-{uuid.uuid4().hex[:6]}") for at in range(SESSIONS)]
    plain = rf.session(f"plain-{uuid.uuid4().hex[:6]}")
    for chat in chats:
        await chat.open(policy={"summary_messages": 6})
    await asyncio.gather(*[talk(chat, 4) for chat in (*chats, plain)])
    stop = asyncio.Event()
    async with Refold(bootstrap=kafka.bootstrap, topic_prefix=prefix) as other:
        serving = [
            asyncio.create_task(client.summarize_forever(stop=stop, drain_s=PATIENCE_S))
            for client in (rf, other)
        ]

        async def all_summarised() -> bool:
            return all([await summarised(chat) for chat in chats])

        await until(all_summarised)
        stop.set()
        assert await asyncio.gather(*serving) == [True, True]
    for chat in chats:
        types = [event.type async for event in chat.events()]
        assert types.count("ContextSummarized") == 1
        context = await chat.context("openai")
        assert problems(context.request, "openai") == []
        assert "Question 0. And more." in str(context.messages[0])
        assert [m["content"] for m in context.messages[1:]] == ["Question 3. And more.", "Answer 3."]
        assert context.uncovered == 0
    assert not await summarised(plain)
    chat = chats[0]
    await talk(chat, 4)
    code, out, err = await asyncio.to_thread(serve_one, kafka.bootstrap, prefix, tmp_path / "told")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == {"made": 1, "superseded": 0, "nothing": 0, "failed": 0}
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines] == [
        "summarizer_started",
        "summary_made",
        "summarizer_draining",
        "summarizer_stopped",
    ]
    assert lines[1]["session"] == chat.id
    assert "Question" not in err
    assert await summarised(chat)


def serve_one(bootstrap: str, prefix: str, told: Path) -> tuple[int, str, str]:
    """``refold summarizer run`` as a process, told to stop when it has said that it made a summary."""
    with told.open("wb") as err:
        process = subprocess.Popen(
            [*REFOLD, "summarizer", "run", "--json", "--bootstrap", bootstrap, "--prefix", prefix],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "summary_made" not in told.read_text() and process.poll() is None:
            assert time.monotonic() < deadline, told.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, told.read_text()


async def test_children_follow_their_parent(rf: Refold) -> None:
    """A result comes back once; closing and deleting reach the children of other partitions."""
    parent = rf.session(f"parent-{uuid.uuid4().hex[:6]}")
    calls = [f"call-{at}" for at in range(5)]
    await parent.append("Compare five towns.", role="user")
    asks = [tool_call(call, "research", "{}") for call in calls]
    await parent.append(asks, role="assistant", wait="accepted")
    children = [await parent.child(call) for call in calls]
    assert len({child.partition for child in children}) > 1
    done = await children[0].finish("Rome has hills.")
    assert done.accepted
    again = await rf.session(children[0].id).finish("Rome has hills.")
    assert again.status == "duplicate"
    view = await parent.state()
    assert view is not None
    assert [row["state"] for row in view.data["tools"]] == ["done", *["intended"] * 4]
    await parent.close(wait="accepted")

    async def all_closed() -> bool:
        views = [await child.state() for child in children]
        return all(view is not None and view.status == "closed" for view in views)

    await until(all_closed)
    assert [event.type async for event in children[1].events()] == ["SessionOpened", "SessionClosed"]
    await parent.delete(wait="accepted")

    async def all_gone() -> bool:
        return [await child.state(min_seq=0) for child in children] == [None] * len(children)

    await until(all_gone)
