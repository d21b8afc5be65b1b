"""The demo's opening: three things a user would see at once, each shown with a real kill.

1. One chat on two devices. The process that generates the answer is killed in mid-sentence; another one goes
   on, and both devices finish the same sentence.
2. A refund. Its process is killed between the effect and the record; the next one asks the bank: done, not
   repeated.
3. A letter, which nobody can be asked about. The same death: the call waits in the review queue until a
   person, who looked into the books, rules.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from refold.cli.review_items import waiting_items
from refold.cli.review_ruling import Ruling, resolve
from refold.client import Refold
from refold.demo.actors import ANSWER
from refold.demo.bank import Bank
from refold.demo.panes import make_panes
from refold.errors import UnavailableError
from refold.ops.fleet.environment import place_of
from refold.settings import Settings

Say = Callable[[str], None]

PANES: Final = ("phone", "laptop")
#: Part of the answer that is out when its process dies: in the middle of a clause.
KILL_FRACTION: Final = 0.45
#: A process' start on a busy machine, and its whole work after it.
ACTOR_S_MAX: Final = 120.0
LOG_TAIL_CHARS: Final = 1_000


@dataclass(slots=True)
class Opening:
    """What was seen. ``wrong``: what did not come out as promised; empty when all did."""

    chat: dict[str, Any] = field(default_factory=dict)
    refund: dict[str, Any] = field(default_factory=dict)
    letter: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"chat": self.chat, "refund": self.refund, "letter": self.letter, "wrong": self.wrong}

    def expect(self, what: str, holds: bool) -> None:
        if not holds:
            self.wrong.append(what)


async def run_opening(settings: Settings, directory: Path, say: Say) -> Opening:
    """Play the three scenes on running workers. Blocks for about a minute; raises what the parts raise."""
    seen = Opening()
    name = f"opening-{uuid.uuid4().hex[:8]}"
    async with Bank() as bank, Refold(settings=settings) as phone, Refold(settings=settings) as laptop:
        stage = _Stage(settings, directory)
        try:
            await _chat(seen, stage, (phone, laptop), name, say)
            await _refund(seen, stage, phone, bank, name, say)
            await _letter(seen, stage, phone, bank, name, say)
        finally:
            await stage.clear()
    return seen


class _Stage:
    """The actors' processes; none outlives it."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._log = directory / "opening.log"
        self._environment = {
            **os.environ,
            **place_of(settings),
        }
        self._actors: list[asyncio.subprocess.Process] = []

    async def enter(self, role: str, *options: str, dies: str | None = None) -> asyncio.subprocess.Process:
        """Start an actor. ``dies``: a named point of a tool call."""
        environment = self._environment
        if dies is not None:
            environment = {**environment, "REFOLD_TOOL_POINT": dies}
        with self._log.open("ab") as log:
            actor = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "refold.demo.actors", role, *options,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self._actors.append(actor)
        return actor

    async def hear(self, actor: asyncio.subprocess.Process, word: str) -> Any:
        """What the actor says under ``word``. Raises :class:`UnavailableError` when it ends without."""
        try:
            async with asyncio.timeout(ACTOR_S_MAX):
                while actor.stdout is not None and (line := await actor.stdout.readline()):
                    row: Mapping[str, Any] = json.loads(line)
                    if word in row:
                        return row[word]
        except TimeoutError:
            pass
        tail = self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:]
        raise UnavailableError(f"a process of the opening did not do its part. The end of its log:\n{tail}")

    async def dead(self, actor: asyncio.subprocess.Process) -> bool:
        """Wait until it ended; whether SIGKILL was it."""
        async with asyncio.timeout(ACTOR_S_MAX):
            return await actor.wait() == -signal.SIGKILL

    async def clear(self) -> None:
        for actor in self._actors:
            if actor.returncode is None:
                actor.kill()
                await actor.wait()


async def _chat(seen: Opening, stage: _Stage, devices: tuple[Refold, Refold], name: str, say: Say) -> None:
    say("")
    say("1. One chat on two devices; the process that writes the answer is killed in mid-sentence")
    session = f"{name}-chat"
    standby = await stage.enter("standby", f"--session={session}")
    await stage.hear(standby, "ready")
    writer = await stage.enter("writer", f"--session={session}", f"--key={name}")
    generation = await stage.hear(writer, "generation")
    texts = dict.fromkeys(PANES, "")
    resets = 0
    killed_at = went_on_at = 0.0
    killed_chars = 0
    message_id: str | None = None
    ended_seq = 0
    dying = asyncio.Event()
    with make_panes(PANES, say) as panes:

        async def watch(pane: str, device: Refold) -> None:
            nonlocal resets, went_on_at, message_id, ended_seq
            async for frame in device.follow(session, generation, client=pane):
                resets += frame.kind == "reset"
                texts[pane] += frame.text
                if killed_at and not went_on_at and frame.kind == "delta" and frame.text:
                    went_on_at = time.monotonic()
                    panes.note(f"another process goes on after {went_on_at - killed_at:.1f} s")
                panes.show(pane, texts[pane])
                message_id = frame.message_id or message_id
                ended_seq = max(ended_seq, frame.journal_seq)
                if min(map(len, texts.values())) >= KILL_FRACTION * len(ANSWER):
                    dying.set()

        async def kill() -> None:
            nonlocal killed_at, killed_chars
            await dying.wait()
            writer.kill()
            killed_chars = len(texts[PANES[0]])
            killed_at = time.monotonic()
            panes.note(
                f"kill -9 {writer.pid}: the process that writes is gone, after {killed_chars} characters"
            )

        async with asyncio.timeout(ACTOR_S_MAX), asyncio.TaskGroup() as group:
            group.create_task(kill())
            for pane, device in zip(PANES, devices, strict=True):
                group.create_task(watch(pane, device))
    context = await devices[0].session(session).context(min_seq=ended_seq)
    stored = [_text(m["content"]) for m in context.messages if m["role"] == "assistant"]
    same = texts[PANES[0]] == texts[PANES[1]] == ANSWER
    seen.chat = {
        "same_sentence": same,
        "characters": len(ANSWER),
        "killed_after_characters": killed_chars,
        "went_on_after_ms": round((went_on_at - killed_at) * 1000, 1),
        "resets": resets,
        "message_id": message_id,
    }
    seen.expect("both devices show the whole sentence", same)
    seen.expect("the sentence was cut before its end", 0 < killed_chars < len(ANSWER))
    seen.expect("nothing was shown twice or taken back", resets == 0)
    seen.expect("the session holds the same message once", stored == [ANSWER])
    say("  both finished the same sentence, and the session holds it once" if same else "  NOT the same")


def _text(content: Any) -> str:
    """Of a message as a provider takes it: a text, or parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


async def _refund(seen: Opening, stage: _Stage, rf: Refold, bank: Bank, name: str, say: Say) -> None:
    say("")
    say("2. A refund; its process is killed after the bank has paid and before that is recorded")
    result = await _twice(seen, stage, bank, f"{name}-refund", "refund", say)
    paid = bank.happened("refund")
    done = len(paid) == 1 and result == f"{paid[0]}: booked as number 1"
    seen.refund = {"effects": len(paid), "result": result}
    seen.expect("the refund was paid once and its result is the bank's", done)
    say("  the next process asked the bank by its key: done, not repeated" if done else "  NOT as promised")


async def _letter(seen: Opening, stage: _Stage, rf: Refold, bank: Bank, name: str, say: Say) -> None:
    from refold.formats.markers import NOT_KNOWN

    say("")
    say("3. A letter, and nobody who could be asked whether it was sent; the same death")
    session_id = f"{name}-letter"
    told = await _twice(seen, stage, bank, session_id, "letter", say)
    say(f"  the next process does not send it again; the model is told: {told}")
    session = rf.session(session_id)
    waiting = [item for item in await waiting_items(rf) if item.session == session_id]
    unknown = told == NOT_KNOWN and [item.kind for item in waiting] == ["unknown"]
    seen.expect("the letter's outcome is unknown, and waits in the review queue", unknown)
    sent = bank.happened("letter")
    for item in waiting:
        say(f"  refold review list: {item.tool}, {item.reason}")
        ruling = Ruling("done", f"{sent[0]}: sent", "ada", "the post book has it")
        ruled = await resolve(session, item.operation_id, ruling)
        say(f"  refold review resolve: {ruled['ruling']}, by {ruled['by']}: {ruled['reason']}")
    view = await session.state()
    left = 0 if view is None else len(view.open_calls)
    seen.letter = {"effects": len(sent), "reviewed": len(waiting), "open": left}
    seen.expect("the letter was sent once", len(sent) == 1)
    seen.expect("the review settled it", left == 0)


async def _twice(seen: Opening, stage: _Stage, bank: Bank, session: str, tool: str, say: Say) -> str:
    """Run a call in a process that dies behind the effect, then in another one; the second one's result."""
    options = (f"--session={session}", f"--bank={bank.url}", f"--tool={tool}")
    first = await stage.enter("runner", *options, dies=f"after_effect:kill:1:{tool}")
    seen.expect(f"the process of the {tool} was killed behind the effect", await stage.dead(first))
    say(f"  kill -9 {first.pid}: the outside world's book says: {', '.join(bank.happened(tool))}")
    second = await stage.enter("runner", *options)
    return str(await stage.hear(second, "result"))
