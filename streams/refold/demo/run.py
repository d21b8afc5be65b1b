"""The demo from start to end: stack, conversations, deaths, comparison, report."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from refold.client import Refold
from refold.demo.controlled import Control, ControlResult
from refold.demo.dataset import Conversation, load
from refold.demo.judge import judge
from refold.demo.kills import kill_workers
from refold.demo.model import EndpointModel, LocalModel, Model, SpokenWords
from refold.demo.opening import Opening, run_opening
from refold.demo.player import Played, Player, paced
from refold.demo.reference import MemorySession
from refold.demo.report import Report
from refold.demo.stack import PARTITIONS, SESSION_TIMEOUT_MS, Stack
from refold.ops.fleet import JournalWatch, Reaper, owners
from refold.ops.verify.quiesce import quiesce
from refold.ops.verify.readback import read_topic
from refold.settings import Settings
from refold.topology.names import TopicNames

Say = Callable[[str], None]

#: Conversations begin within this part of the run and take the rest, so the load is about even.
STARTS_FRACTION: Final = 0.25
LENGTH_FRACTION: Final = 0.72


def model_from_environment() -> Model:
    """``REFOLD_DEMO_MODEL_URL`` (+ ``_NAME``, ``_KEY``) names a real endpoint; unset means the local
    model.
    """
    url = os.environ.get("REFOLD_DEMO_MODEL_URL")
    if not url:
        return LocalModel()
    name = os.environ.get("REFOLD_DEMO_MODEL_NAME", "gpt-4o-mini")
    return EndpointModel(url, name, os.environ.get("REFOLD_DEMO_MODEL_KEY"))


async def run_demo(
    stack: Stack, *, sessions: int | None, seconds: float, say: Say, opening: Opening | None = None
) -> Report:
    """Play, kill, compare, on workers that may run already. Leaves the stack running; raises what the parts
    raise.
    """
    conversations = load(sessions)
    model = model_from_environment()
    settings, names = stack.settings, TopicNames(stack.settings.topic_prefix)
    control = Control(settings, names.inbox, stack.directory, SESSION_TIMEOUT_MS)
    await ensure_workers(stack)
    watch = JournalWatch(settings.kafka_config("reader"), names.journal, PARTITIONS)
    try:
        await asyncio.to_thread(control.start)
        say(f"playing {len(conversations)} conversations for {seconds:.0f} s; workers are killed meanwhile")

        def owned(worker: str) -> tuple[int, ...]:
            found = owners(control.admin, names.group, names.inbox)
            return tuple(sorted(p for p, name in found.items() if name == worker))

        began = time.monotonic()
        reaper = Reaper(watch, owned, stack.fleet, session_timeout_s=SESSION_TIMEOUT_MS / 1000, started=began)
        playing = asyncio.Event()
        playing.set()
        killer = asyncio.create_task(kill_workers(stack.fleet, reaper, control, playing, say))
        try:
            played = await _play_all(settings, conversations, model, began, seconds)
        finally:
            playing.clear()
        took = time.monotonic() - began
        await killer
        await stack.fleet.wait_ready()
        stack.remember()
        say("all conversations are over; comparing every session")
        inbox = await asyncio.to_thread(
            quiesce, settings.kafka_config("reader"), control.admin, names.group, names.inbox, PARTITIONS
        )
        journal, state, outcome, reference = await asyncio.gather(
            asyncio.to_thread(read_topic, settings.kafka_config("reader"), names.journal, PARTITIONS),
            asyncio.to_thread(read_topic, settings.kafka_config("reader"), names.state, PARTITIONS),
            asyncio.to_thread(control.finish, inbox),
            _uninterrupted(settings.tenant, conversations, model, played),
        )
        reaper.settle()
        verdict = judge(settings.tenant, conversations, played, reference, journal, state)
        waits = [wait for run in played.values() for wait in run.waits_ms]
        return Report(
            verdict=verdict,
            deaths=reaper.deaths,
            control=outcome,
            turns=sum(len(c.turns) for c in conversations),
            seconds=took,
            waits_ms=waits,
            model=model.name,
            bootstrap=settings.kafka.bootstrap,
            prefix=settings.topic_prefix,
            workers=len(stack.fleet.workers),
            opening=opening,
        )
    finally:
        watch.close()
        control.close()


async def ensure_workers(stack: Stack) -> None:
    """Return when all workers serve; they are started when they do not run yet."""
    if not any(worker.alive for worker in stack.fleet.workers):
        stack.fleet.start()
    await stack.fleet.wait_ready()
    stack.remember()


async def show_opening(stack: Stack, say: Say) -> Opening:
    """The readable part before the conversations (:mod:`refold.demo.opening`)."""
    await ensure_workers(stack)
    return await run_opening(stack.settings, stack.directory, say)


async def _play_all(
    settings: Settings,
    conversations: Sequence[Conversation],
    model: Model,
    began: float,
    seconds: float,
) -> Mapping[str, Played]:
    async with Refold(settings=settings) as rf:

        async def one(index: int, conversation: Conversation) -> Played:
            start = seconds * STARTS_FRACTION * index / len(conversations)
            pace = paced(start, seconds * LENGTH_FRACTION, len(conversation.turns), began)
            run = await Player(conversation, rf.session(conversation.session), model).play(pace)
            # The session ends when its last event is ruled on, not merely durable.
            await run.receipts[-1].accepted()
            return run

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(i, c)) for i, c in enumerate(conversations)]
    return {task.result().session: task.result() for task in tasks}


async def _uninterrupted(
    tenant: str, conversations: Sequence[Conversation], model: Model, played: Mapping[str, Played]
) -> Mapping[str, bytes]:
    """session -> snapshot of the run without Kafka and without crashes."""
    values = {}
    for conversation in conversations:
        session = MemorySession(tenant, conversation.session)
        again = model if isinstance(model, LocalModel) else SpokenWords(played[conversation.session].words)
        await Player(conversation, session, again).play()
        values[conversation.session] = session.value
        await asyncio.sleep(0)
    return values


def commands_to_try(stack: Stack, executable: Path) -> list[str]:
    """Three commands on the stack that stays up, complete as printed."""
    where = "" if stack.usual else f" --bootstrap {stack.settings.kafka.bootstrap}"
    if stack.settings.topic_prefix != "refold":
        where += f" --prefix {stack.settings.topic_prefix}"
    return [
        f"{executable} session show multi_turn_base_0{where}",
        f"{executable} session export multi_turn_base_0 --format openai{where}",
        f"{executable} session fold --all{where}",
    ]


__all__ = ["ControlResult", "commands_to_try", "model_from_environment", "run_demo", "show_opening"]
