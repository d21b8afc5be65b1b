"""The agent under test, as a process of its own: ``python -m refold.ops.runs.agent``.

Four steps: one without an effect, an external one, an idempotent one, another external one. What the harness
wants of it comes in ``VERIFY_RUNS_*`` of the environment; everything else is what a user's agent is.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from typing import Any

import refold
from refold.client.agents.process import run_process
from refold.client.ids import new_id
from refold.errors import RefoldError
from refold.ops.runs.plan import VERSIONS, fails_at_first, pause_s
from refold.ops.runs.worldclient import WorldClient


class Work:
    """The body. ``process``: this process's name in the world's book."""

    def __init__(self, world: WorldClient, seed: int, process: str, sabotage: str) -> None:
        self.world = world
        self.seed = seed
        self.process = process
        self.sabotage = sabotage

    async def body(self, run: refold.Run) -> Any:
        turn = Turn(self, run.input["run"], new_id())
        await turn.mark("body")
        await run.plan(["gather", "charge", "draft", "publish"])
        found = await run.step("gather", turn.gather)
        if self.sabotage == "effect-outside-step":
            await self.world.execute(turn.run, "outside", new_id(), keyed=False)
        lookup = self.world.lookup
        paid = await run.step("charge", turn.charge, found, effect="external", lookup=lookup)
        text = await run.step("draft", turn.draft, paid, effect="idempotent")
        return await run.step("publish", turn.publish, text, effect="external", lookup=lookup)

    async def pause(self, run: str, step: str) -> None:
        await asyncio.sleep(pause_s(self.seed, run, step) / 2)


class Turn:
    """One execution of the body. The steps return what the world says."""

    def __init__(self, work: Work, run: str, turn: str) -> None:
        self.run = run
        self._turn = turn
        self._work = work

    async def mark(self, what: str) -> None:
        await self._work.world.mark(self.run, self._turn, self._work.process, what)

    async def gather(self, step: refold.Step) -> str:
        await self.mark("gather")
        await self._work.pause(self.run, "gather")
        if step.attempt == 1 and fails_at_first(self._work.seed, self.run):
            raise ConnectionError("the first try of this step fails by plan")
        return f"sources of {self.run}"

    async def charge(self, found: str, step: refold.Step) -> str:
        return await self._act("charge", step, keyed=False)

    async def draft(self, paid: str, step: refold.Step) -> str:
        return await self._act("draft", step, keyed=True)

    async def publish(self, text: str, step: refold.Step) -> str:
        return await self._act("publish", step, keyed=False)

    async def _act(self, name: str, step: refold.Step, *, keyed: bool) -> str:
        work = self._work
        await self.mark(name)
        key = new_id() if work.sabotage == "unstable-key" else step.key
        # Half of the time passes before the effect and half after it, so that deaths fall on either side.
        await work.pause(self.run, name)
        result = await work.world.execute(self.run, name, key, keyed=keyed)
        await work.pause(self.run, f"{name} after")
        return result


def take_refused() -> None:
    """The planted fault of ``take-refused``: a run is executed although the fold did not grant it."""
    from refold.client.agents.taking import Grant, take
    from refold.client.tools.clocks import lease_clock

    async def careless(agent: Any, session: Any, item: Any, process: str) -> Any:
        granted = await take(agent, session, item, process)
        if isinstance(granted, Grant):
            return granted
        return Grant(item.run or "", process, item.epoch + 1, lease_clock(), 0)

    # A name that module has only imported.
    importlib.import_module("refold.client.agents.holding").__dict__["take"] = careless


def agent_of(work: Work, version: str, lease_s: float) -> refold.Agent:
    """The agent in one of its versions; the newer one goes on with runs of the older."""
    older = tuple(v for v in VERSIONS if v < version)
    agent = refold.Agent("verified", version=version, lease=lease_s, accepts=older)
    agent.run(work.body)
    return agent


def main() -> None:
    given = os.environ
    sabotage = given.get("VERIFY_RUNS_SABOTAGE", "")
    if sabotage == "take-refused":
        take_refused()
    world = WorldClient(given["VERIFY_RUNS_WORLD"])
    work = Work(world, int(given["VERIFY_RUNS_SEED"]), given["VERIFY_RUNS_PROCESS"], sabotage)
    agent = agent_of(work, given["VERIFY_RUNS_VERSION"], float(given["VERIFY_RUNS_LEASE_S"]))
    try:
        code = run_process(agent, concurrency=int(given["VERIFY_RUNS_CONCURRENCY"]), max_seconds=30.0)
    except RefoldError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
