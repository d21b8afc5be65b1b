"""The demo from start to end: stack, conversations, deaths, comparison, report."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from refold.demo.agents import play
from refold.demo.controlled import Control, ControlResult
from refold.demo.dataset import load
from refold.demo.judge import judge
from refold.demo.kills import kill_workers
from refold.demo.model import LocalModel, model_from_environment
from refold.demo.opening import Opening, run_opening
from refold.demo.report import Report
from refold.demo.stack import PARTITIONS, SESSION_TIMEOUT_MS, Stack
from refold.demo.uninterrupted import uninterrupted
from refold.ops.effects.told import Told
from refold.ops.fleet import JournalWatch, Reaper, owned_by, owners
from refold.ops.verify.quiesce import quiesce
from refold.ops.verify.readback import Record, read_topic
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.names import TopicNames

Say = Callable[[str], None]


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
        say(
            f"playing {len(conversations)} conversations for {seconds:.0f} s; "
            "workers (w) and agents (a) are killed"
        )

        def owned(worker: str) -> tuple[int, ...]:
            return owned_by(worker, owners(control.admin, names.group, names.inbox))

        began = time.monotonic()
        reaper = Reaper(watch, owned, stack.fleet, session_timeout_s=SESSION_TIMEOUT_MS / 1000, started=began)
        playing = asyncio.Event()
        playing.set()
        killer = asyncio.create_task(kill_workers(stack.fleet, reaper, control, playing, say))
        try:
            played = await play(settings, stack.directory / "agents", conversations, seconds, say)
        finally:
            playing.clear()
        took = time.monotonic() - began
        await killer
        await stack.fleet.wait_ready()
        stack.remember()
        say("all conversations are over; comparing every session")
        kafka = settings.kafka_config("reader")
        offsets = GroupOffsets(kafka, names.group)
        inbox = await asyncio.to_thread(quiesce, kafka, control.admin, offsets, names.inbox, PARTITIONS)
        journal, state, review, outcome = await asyncio.gather(
            asyncio.to_thread(read_topic, kafka, names.journal, PARTITIONS),
            asyncio.to_thread(read_topic, kafka, names.state, PARTITIONS),
            asyncio.to_thread(read_topic, kafka, names.review, PARTITIONS),
            asyncio.to_thread(control.finish, inbox),
        )
        words = None
        if not isinstance(model, LocalModel):
            words = words_of(journal)
        reference = await uninterrupted(settings.tenant, conversations, words)
        reaper.settle()
        verdict = judge(settings.tenant, conversations, played.entries, journal, state, review, reference)
        return Report(
            verdict=verdict,
            deaths=reaper.deaths,
            control=outcome,
            turns=sum(len(c.turns) for c in conversations),
            seconds=took,
            agent_ends=played.ends,
            waits_ms=played.waits_ms,
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


def words_of(journal: Mapping[int, Sequence[Record]]) -> Mapping[str, Sequence[str]]:
    """session -> what its assistant said: a real model need not answer twice alike."""
    values: dict[str, list[bytes]] = defaultdict(list)
    for records in journal.values():
        for record in records:
            values[(record.key or b"").decode().partition("/")[2]].append(record.value or b"")
    return {session: Told.by(found).words for session, found in values.items()}


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
