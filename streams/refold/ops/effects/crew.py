"""The agent processes as the harness sees them: start, hand out conversations, take them back from the dead.

A conversation is with at most one *living* process. When a process dies or freezes, its conversations go to
the front of the queue with the turn they were in, and whoever is next plays that turn again: as a user would
who got no answer. A frozen process knows nothing of that, and goes on when it is woken.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from refold.errors import UnavailableError
from refold.ops.effects.plan import EffectsPlan

#: Imports and the first connection take about 3 s, half a minute on a very busy machine. Twice that.
READY_S_MAX: Final = 60.0
#: While conversations go on, the end is waited for this many times the quiet time that may pass.
FINISH_FACTOR_MAX: Final = 5
#: A turn that raises is given out again, as a user would ask again. More often than this, it never ends.
TRIES_MAX: Final = 25
#: Before a failed turn is tried again: nobody presses the button at once.
RETRY_S: Final = 0.3
LOG_TAIL_CHARS: Final = 1_500
#: One line of an agent's pipe is a short JSON object.
LINE_BYTES_MAX: Final = 1 << 16


class AgentProcess:
    """One process of :mod:`refold.ops.effects.host`. ``playing``: session -> turn it is in."""

    def __init__(
        self, name: str, directory: Path, command: list[str], environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self.point_path = directory / f"{name}.point"
        self.playing: dict[str, int] = {}
        self.ready = False
        self.frozen = False
        self.process: asyncio.subprocess.Process | None = None
        self._command = [*command, f"--point-file={self.point_path}"]
        self._environment = {**os.environ, **environment}

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def able(self) -> bool:
        return self.alive and self.ready and not self.frozen

    async def start(self) -> None:
        """Start the process; returns at once. It says itself when it is ready."""
        self.ready = self.frozen = False
        self.point_path.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )

    def give(self, session: str, turn: int) -> None:
        self.playing[session] = turn
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(json.dumps({"play": session, "turn": turn}).encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        if self.alive and self.process is not None:
            self.process.send_signal(number)

    def log_tail(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")[-LOG_TAIL_CHARS:]
        except OSError:
            return "(no log)"


@dataclass(slots=True)
class Progress:
    """What is known of the conversations. ``allowed``: how many may have begun by now."""

    waiting: deque[tuple[str, int]]
    total: int
    allowed: int = 0
    begun: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    tries: Counter[tuple[str, int]] = field(default_factory=collections.Counter)
    given_up: dict[str, str] = field(default_factory=dict)
    #: Turns that ended.
    turns: int = 0
    #: How long each event of the turns that ended waited for refold: at most a few per call.
    waits_ms: list[float] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return len(self.ended) + len(self.given_up) >= self.total

    def next(self) -> tuple[str, int] | None:
        """The next conversation to hand out; one that has begun already never waits for permission."""
        for index, (session, _) in enumerate(self.waiting):
            if session in self.begun or len(self.begun) < self.allowed:
                found = self.waiting[index]
                del self.waiting[index]
                self.begun.add(session)
                return found
        return None


class Crew:
    """All agent processes. ``async with Crew(...)``: none outlives it."""

    def __init__(
        self,
        plan: EffectsPlan,
        directory: Path,
        gateway_url: str,
        environment: Mapping[str, str],
        sessions: list[str],
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._say = say
        self.progress = Progress(deque((session, 0) for session in sessions), len(sessions))
        command = [
            sys.executable,
            "-m",
            "refold.ops.effects.host",
            f"--agent={plan.agent or 'refold.ops.effects.agent:play'}",
            f"--gateway={gateway_url}",
            f"--seed={plan.seed}",
            f"--conversations={plan.conversations}",
            f"--lease-s={plan.lease_s}",
        ]
        if plan.paced_s:
            command += [f"--paced-s={plan.paced_s}", f"--paced-from={time.time()}"]
            self.progress.allowed = len(sessions)
        if plan.sabotage is not None:
            command.append(f"--sabotage={plan.sabotage}")
        self.agents = [
            AgentProcess(f"a{number}", directory, command, environment) for number in range(plan.agents)
        ]
        self._readers: set[asyncio.Task[None]] = set()
        self._failure: UnavailableError | None = None

    async def start(self) -> None:
        """Start all; returns when each is ready. Raises :class:`UnavailableError` quoting a log."""
        for agent in self.agents:
            await self.restart(agent)
        deadline = time.monotonic() + READY_S_MAX
        for agent in self.agents:
            while not agent.ready:
                if not agent.alive or time.monotonic() > deadline:
                    raise UnavailableError(
                        f"agent process {agent.name} did not start. The end of its log:\n{agent.log_tail()}"
                    )
                await asyncio.sleep(0.05)

    async def restart(self, agent: AgentProcess) -> None:
        """Start a process (again): what the dead one played goes back to the queue."""
        self.take_back(agent)
        await agent.start()
        if agent.process is not None:
            task = asyncio.create_task(self._listen(agent, agent.process))
            self._readers.add(task)
            task.add_done_callback(self._readers.discard)

    def take_back(self, agent: AgentProcess) -> None:
        """Its conversations go to the front of the queue, each with the turn it was in."""
        for session, turn in reversed(agent.playing.items()):
            self.progress.waiting.appendleft((session, turn))
        agent.playing.clear()
        self.hand_out()

    def hand_out(self) -> None:
        """Give waiting conversations to whoever has room, evenly."""
        while True:
            free = [a for a in self.agents if a.able and len(a.playing) < self._plan.per_agent]
            if not free:
                return
            found = self.progress.next()
            if found is None:
                return
            min(free, key=lambda a: len(a.playing)).give(*found)

    def allow(self, count: int) -> None:
        """Let ``count`` conversations in all have begun."""
        self.progress.allowed = max(self.progress.allowed, count)
        self.hand_out()

    async def finish(self, seconds: float) -> bool:
        """Wait until every conversation has ended: ``seconds``, and longer while turns end, at most
        ``FINISH_FACTOR_MAX`` times that. Raises what a process failed with."""
        last = time.monotonic() + FINISH_FACTOR_MAX * seconds
        deadline, turns = time.monotonic() + seconds, self.progress.turns
        while not self.progress.over and time.monotonic() < min(deadline, last):
            self.check()
            if self.progress.turns > turns:
                deadline, turns = time.monotonic() + seconds, self.progress.turns
            await asyncio.sleep(0.1)
        return self.progress.over

    def check(self) -> None:
        """Raise if a process ended by itself or a turn fails again and again."""
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        for agent in self.agents:
            agent.signal(signal.SIGKILL)
        for agent in self.agents:
            if agent.process is not None:
                await agent.process.wait()
        for task in list(self._readers):
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _listen(self, agent: AgentProcess, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        while line := await process.stdout.readline():
            if agent.process is process:
                self._heard(agent, json.loads(line))
        code = await process.wait()
        if code != -signal.SIGKILL and self._failure is None:
            self._failure = UnavailableError(
                f"agent process {agent.name} ended by itself (exit {code}). The end of its log:\n"
                f"{agent.log_tail()}"
            )

    def _heard(self, agent: AgentProcess, row: Mapping[str, Any]) -> None:
        if "ready" in row:
            agent.ready = True
            return self.hand_out()
        session = str(row.get("ended") or row.get("failed") or row.get("began") or row.get("of"))
        if session not in agent.playing:
            return None  # a woken process: its conversations are somebody else's by now
        if "began" in row:
            agent.playing[session] = row["turn"]
        elif "of" in row:
            self.progress.turns += 1
            self.progress.waits_ms += row["waits_ms"]
        elif "ended" in row:
            del agent.playing[session]
            self.progress.ended.add(session)
            self.hand_out()
        elif "failed" in row:
            turn = agent.playing.pop(session)
            self._again(session, turn, row["error"])
        return None

    def _again(self, session: str, turn: int, error: str) -> None:
        progress = self.progress
        progress.tries[session, turn] += 1
        if progress.tries[session, turn] >= TRIES_MAX:
            progress.given_up[session] = error
            self._say(f"            {session} turn {turn} failed {TRIES_MAX} times, given up: {error}")
            return
        loop = asyncio.get_running_loop()

        def later() -> None:
            progress.waiting.appendleft((session, turn))
            self.hand_out()

        loop.call_later(RETRY_S, later)
