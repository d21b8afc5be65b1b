"""Deaths of agent processes, one after the other, each at the boundary the plan names.

A *kill* is armed in a process that is playing, seen by its line in the hit file, and the process is started
again; its conversations went back to the queue. A *freeze* stops the process in front of an effect; others
take its conversations over; when the frozen call has been taken over (its row changed hands or state, read
from the session itself), the process is woken, runs into the effect, plays on for a moment as a second runner
of all its conversations, and is killed. Freezes run beside the kills, one at a time.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from refold.broker.process import Identity
from refold.broker.watchdog import Watchdog
from refold.client import Refold
from refold.errors import TransientError, UnavailableError
from refold.ops.effects.boundaries import arm, disarm, hits
from refold.ops.effects.crew import AgentProcess, Crew
from refold.ops.effects.plan import AgentDeath, EffectsPlan

POLL_S: Final = 0.02
#: A boundary is reached with the next call, in well under a second; calls of one kind take longer.
POINT_S_MAX: Final = 6.0
#: A process that has taken the spec acts at once, if it gets a core.
ACT_S_MAX: Final = 60.0
#: Lease over, taken over, looked up, perhaps while a worker restarts: 6 s. Ten times that on a busy machine.
TAKEOVER_S_MAX: Final = 60.0
#: Also when the run's time is nearly over.
TAKEOVER_S_MIN: Final = 15.0
#: A woken process needs one request to the gateway.
WOKEN_S_MAX: Final = 30.0
#: How long a woken process plays on as the second runner of its conversations.
SECOND_RUNNER_S: Final = 1.5
#: Part of the conversations begun ahead of the deaths (as far as the processes have room), so that every
#: process has something in hand and the last death still finds something.
AHEAD_FRACTION: Final = 0.25
#: A death whose boundary was not reached, and a freeze that nobody took over from or whose process did not
#: come to its effect, is dealt again this often: nothing was shown. The run's time ends it before that.
REDEALS_MAX: Final = 12


@dataclass(slots=True)
class AgentEnd:
    """What happened. ``then``: of a freeze, what the woken process' effect came to."""

    at_s: float
    agent: str
    death: AgentDeath
    session: str
    operation: str
    taken_over: bool = False
    then: str = ""


class Killer:
    """Carries the plan's deaths out. ``held``: sessions in which a frozen or woken process may still act."""

    def __init__(self, plan: EffectsPlan, crew: Crew, client: Refold, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._crew = crew
        self._client = client
        self._say = say
        self._chance = plan.random("victims")
        self._started = time.monotonic()
        self._freezing = asyncio.Lock()
        self._dealt: list[AgentDeath] = []
        self._redeals: Counter[AgentDeath] = Counter()
        self.ends: list[AgentEnd] = []
        self.held: Counter[str] = Counter()

    @property
    def time_left_s(self) -> float:
        return self._plan.seconds - (time.monotonic() - self._started)

    async def run(self, after_each: Callable[[int, int], None]) -> None:
        """Until all are dealt, the conversations are over, or the time is. ``after_each(done, of)``."""
        self._dealt = self._plan.deaths()
        of, begun = len(self._dealt), 0
        while self._going_on:
            async with asyncio.TaskGroup() as freezes:
                begun = await self._deal(freezes, begun, of, after_each)
            # A freeze that showed nothing is among the dealt again.
        self._crew.allow(self._crew.progress.total)

    @property
    def _going_on(self) -> bool:
        return bool(self._dealt) and self.time_left_s > 0 and not self._crew.progress.over

    async def _deal(
        self, freezes: asyncio.TaskGroup, number: int, of: int, after_each: Callable[[int, int], None]
    ) -> int:
        """One death after the other. ``number`` of them were tried before; returns how many are by now."""
        total = self._crew.progress.total
        share = total / max(1, of)
        room = self._plan.agents * self._plan.per_agent
        ahead = min(room, max(self._plan.agents, round(total * AHEAD_FRACTION)))
        while self._going_on:
            self._crew.allow(round(number * share) + ahead)
            death = self._dealt.pop(0)
            agent = await self._victim()
            if agent is None:
                break
            last = time.monotonic()
            hit = await self._at_boundary(agent, death)
            # Perhaps no conversation in hand has such a call: let more begin.
            number += 1
            if hit is None:
                self._redeal(death)
                continue
            at = round(time.monotonic() - self._started, 1)
            end = AgentEnd(at, agent.name, death, hit["session"], hit["operation"])
            self.ends.append(end)
            if death.action == "stop":
                agent.frozen = True  # before anybody looks for the next victim
                freezes.create_task(self._freeze(agent, end))
            else:
                self._say(f"  {at:6.1f} s  SIGKILL {agent.name} {death.boundary} {hit['kind']}".rstrip())
                await self._crew.restart(agent)
            after_each(len(self.ends), of)
            await self._space(last)
        return number

    def _redeal(self, death: AgentDeath) -> None:
        self._redeals[death] += 1
        if self._redeals[death] <= REDEALS_MAX:
            self._dealt.insert(min(2, len(self._dealt)), death)

    async def _space(self, last: float) -> None:
        """Leave the plan's spacing between one death and the next, while there is something to kill."""
        until = last + self._plan.spacing_s
        while time.monotonic() < until and not self._crew.progress.over:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S * 5)

    async def _victim(self) -> AgentProcess | None:
        """A living process with something in hand; ``None`` when there will be none any more."""
        while not self._crew.progress.over and self.time_left_s > 0:
            self._crew.check()
            able = [agent for agent in self._crew.agents if agent.able and agent.playing]
            if able:
                return able[self._chance.randrange(len(able))]
            if any(agent.able for agent in self._crew.agents):
                # What has begun is over: let more begin, or the deaths would wait for ever.
                self._crew.allow(len(self._crew.progress.begun) + 1)
            await asyncio.sleep(POLL_S)
        return None

    async def _at_boundary(self, agent: AgentProcess, death: AgentDeath) -> Mapping[str, str] | None:
        """Arm it and wait until it was hit; ``None`` (disarmed) when no call came there."""
        if death.action == "stop":
            await self._freezing.acquire()
        arm(agent.point_path, death.spec)
        deadline = time.monotonic() + POINT_S_MAX
        while time.monotonic() < deadline and agent.alive:
            if found := hits(agent.point_path):
                return await self._acted(agent, death, found[0])
            await asyncio.sleep(POLL_S)
        if not disarm(agent.point_path):
            deadline = time.monotonic() + ACT_S_MAX
            while time.monotonic() < deadline:
                if found := hits(agent.point_path):
                    return await self._acted(agent, death, found[0])
                await asyncio.sleep(POLL_S)
        if death.action == "stop":
            self._freezing.release()
        return None

    async def _acted(
        self, agent: AgentProcess, death: AgentDeath, hit: Mapping[str, str]
    ) -> Mapping[str, str]:
        if death.action == "kill" and agent.process is not None:
            try:
                await asyncio.wait_for(agent.process.wait(), ACT_S_MAX)
            except TimeoutError:
                raise UnavailableError(
                    f"agent process {agent.name} was to kill itself at {death.boundary} and lives: "
                    "is something keeping signals from it?"
                ) from None
        return hit

    async def _freeze(self, agent: AgentProcess, end: AgentEnd) -> None:
        held = list(agent.playing)
        self.held.update(held)
        # A frozen process does not see that its pipe closed: it must not outlive a harness that is killed.
        watchdog = await asyncio.to_thread(_watch, agent)
        try:
            self._crew.take_back(agent)
            end.taken_over = await self._taken_over(end)
            agent.signal(signal.SIGCONT)
            deadline = time.monotonic() + WOKEN_S_MAX
            while time.monotonic() < deadline and agent.alive and not end.then:
                end.then = next((row["then"] for row in hits(agent.point_path) if "woken" in row), "")
                await asyncio.sleep(POLL_S)
            await asyncio.sleep(SECOND_RUNNER_S)
            self._say(
                f"  {end.at_s:6.1f} s  SIGSTOP {agent.name} before_effect {end.death.kind}, "
                f"{'taken over' if end.taken_over else 'NOT taken over'}, woken: {end.then or 'nothing'}"
            )
            if not (end.taken_over and end.then):
                self._redeal(end.death)
        finally:
            agent.signal(signal.SIGKILL)
            if agent.process is not None:
                await agent.process.wait()
            if watchdog is not None:
                await asyncio.to_thread(watchdog.stand_down)
            await self._crew.restart(agent)
            self.held.subtract(held)
            self._freezing.release()

    async def _taken_over(self, end: AgentEnd) -> bool:
        """Whether others are through with the frozen attempt, by the session's state: a claim alone is not
        enough, the outside world must have been asked (or the call run again) behind the frozen one's back.
        """
        session = self._client.session(end.session)
        before: Any = None
        patience = min(TAKEOVER_S_MAX, max(TAKEOVER_S_MIN, self.time_left_s))
        deadline = time.monotonic() + self._plan.lease_s + patience
        while time.monotonic() < deadline:
            try:
                view = await session.state(min_seq=0)
            except TransientError:
                view = None
            rows = [] if view is None else view.data["tools"]
            row = next((r for r in rows if r["operation_id"] == end.operation), None)
            if row is not None:
                now = row["state"], row["attempt"]
                if before is not None and now != before:
                    return True
                before = now
            await asyncio.sleep(POLL_S * 5)
        return False


def _watch(agent: AgentProcess) -> Watchdog | None:
    if agent.process is None or not agent.alive:
        return None
    identity = Identity.of(agent.process.pid)
    return Watchdog(identity.pid, identity.created)
