"""The agent processes as the harness sees them: started as a user's are, killed, frozen, replaced."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from refold.errors import UnavailableError
from refold.ops.fleet.logged import LoggedProcess
from refold.ops.runs.plan import VERSIONS, RunsPlan

#: Imports and the first connection: 2 s, ten times that on a very busy machine, and again as much.
READY_S_MAX: Final = 45.0
#: A drain: steps of 0.6 s, then one event per run; the agent itself gives up after 30 s and 10.
DRAIN_S_MAX: Final = 60.0
POLL_S: Final = 0.05

STARTED: Final = b"agent_started"


class AgentProcess(LoggedProcess):
    """One place in the crew; every start is another process, with a name of its own in the world's book."""

    def __init__(self, name: str, directory: Path, plan: RunsPlan, environment: Mapping[str, str]) -> None:
        super().__init__(name, directory)
        self.starts = 0
        self.version = VERSIONS[0]
        self.frozen = False
        self._plan = plan
        self._environment = environment

    @property
    def process_name(self) -> str:
        return f"{self.name}.{self.starts}"

    @property
    def ready(self) -> bool:
        """Its log says that it serves."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_from)
            return STARTED in log.read()

    def start(self) -> None:
        self.starts += 1
        self.frozen = False
        plan = self._plan
        given = {
            **self._environment,
            "REFOLD_CLIENT__PRODUCER_ID": self.name,
            "VERIFY_RUNS_PROCESS": self.process_name,
            "VERIFY_RUNS_VERSION": self.version,
            "VERIFY_RUNS_SEED": str(plan.seed),
            "VERIFY_RUNS_LEASE_S": str(plan.lease_s),
            "VERIFY_RUNS_CONCURRENCY": str(plan.concurrency),
            "VERIFY_RUNS_SABOTAGE": plan.sabotage or "",
        }
        self._launch([sys.executable, "-m", "refold.ops.runs.agent"], given)

    async def wait_ready(self) -> None:
        """Raises :class:`UnavailableError` quoting its log."""
        deadline = time.monotonic() + READY_S_MAX
        while not self.ready:
            if not self.alive or time.monotonic() > deadline:
                raise UnavailableError(
                    f"agent process {self.name} did not start. The end of its log:\n{self.log_tail()}"
                )
            await asyncio.sleep(POLL_S)

    def check(self) -> None:
        """Raises :class:`UnavailableError` where it ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            raise UnavailableError(
                f"agent process {self.name} ended by itself (exit {self.process.returncode}). "
                f"The end of its log:\n{self.log_tail()}"
            )

    async def drain(self) -> int | None:
        """SIGTERM; its exit status, ``None`` where it did not end (it is killed then)."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + DRAIN_S_MAX
        while self.alive:
            if time.monotonic() > deadline:
                self.kill()
                return None
            await asyncio.sleep(POLL_S)
        self._stand_down()
        return None if self.process is None else self.process.returncode


class Crew:
    """All agent processes of a run."""

    def __init__(self, plan: RunsPlan, directory: Path, environment: Mapping[str, str]) -> None:
        self.agents = [AgentProcess(f"a{n}", directory, plan, environment) for n in range(plan.agents)]
        self.drained: list[int | None] = []

    async def start(self) -> None:
        for agent in self.agents:
            agent.start()
        for agent in self.agents:
            await agent.wait_ready()

    async def kill(self, agent: AgentProcess) -> int:
        """Kill it and start it again; the wall clock of its death, ms."""
        at = time.time()
        agent.kill()
        agent.start()
        return int(at * 1000)

    async def freeze(self, agent: AgentProcess) -> int:
        """Stop it in the middle of whatever it does; the wall clock, ms."""
        at = time.time()
        agent.signal(signal.SIGSTOP)
        agent.frozen = True
        return int(at * 1000)

    def wake(self, agent: AgentProcess) -> None:
        agent.signal(signal.SIGCONT)
        agent.frozen = False

    async def deploy(self, version: str) -> None:
        """One after the other: drained, then the new version, which serves before the next one goes."""
        for agent in self.agents:
            # One that has not come up yet does not know what a signal means.
            await agent.wait_ready()
            self.drained.append(await agent.drain())
            agent.version = version
            agent.start()
            await agent.wait_ready()

    def check(self) -> None:
        for agent in self.agents:
            if not agent.frozen:
                agent.check()

    def stop(self) -> None:
        for agent in self.agents:
            agent.kill()
