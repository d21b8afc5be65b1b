"""One run of ``refold verify runs``: own topics, a world, workers, agents, deaths, then the comparison.

Own topics under a unique prefix, deleted at the end; every process is started here and ends with it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from refold.client import Refold
from refold.client.agents.starting import start as start_run
from refold.errors import RefoldError, UnavailableError
from refold.ops.fleet import Fleet
from refold.ops.fleet.environment import pace_of_workers, place_of
from refold.ops.runs.crew import AgentProcess, Crew
from refold.ops.runs.judge import judge
from refold.ops.runs.outcome import AgentDeath, Outcome
from refold.ops.runs.plan import VERSIONS, RunsPlan
from refold.ops.runs.worldclient import WorldClient, WorldProcess
from refold.ops.verify.beside import with_beside
from refold.ops.verify.folded import all_folded
from refold.ops.verify.own import leave, own_settings
from refold.ops.verify.readback import read_topic
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.names import TopicNames

Say = Callable[[str], None]

#: Runs begun and not ended: three processes with four runs each, and some that wait.
OPEN_RUNS_MAX: Final = 24
#: After the last death: its lease, the rest of the runs, reviews none. Longer while runs end.
QUIET_S_MAX: Final = 60.0
SUPERVISE_S: Final = 0.2
#: The deploy begins when this part of the runs has ended.
DEPLOY_AFTER: Final = 0.4


def run_runs(plan: RunsPlan, settings: Settings, say: Say, *, keep: bool = False) -> Outcome:
    """Blocks until all runs have ended and about half a minute more. Raises what the cluster refuses."""
    return asyncio.run(_Run(plan, settings, say, keep).go())


class _Run:
    def __init__(self, plan: RunsPlan, settings: Settings, say: Say, keep: bool) -> None:
        self.plan = plan
        self.say = say
        self.keep = keep
        self.settings = own_settings(settings, "runs", plan.seed, plan.partitions)
        self.names = TopicNames(self.settings.topic_prefix)
        self.admin = AdminClient({"log_level": 2, **settings.kafka_config("admin")})
        self.chance = random.Random(f"{plan.seed}/deaths")
        self.deaths: list[AgentDeath] = []
        self.worker_kills = 0
        self.ended: set[str] = set()
        self.began = time.monotonic()
        self.deployed = asyncio.Event()
        if not plan.deploy:
            self.deployed.set()

    async def go(self) -> Outcome:
        plan = self.plan
        await asyncio.to_thread(Topology.of(self.settings).apply, self.settings)
        directory = Path(tempfile.mkdtemp(prefix="refold-runs-"))
        place = place_of(self.settings)
        pace = pace_of_workers(plan.session_timeout_ms, plan.seed)
        fleet = Fleet(plan.workers, directory, {**place, **pace})
        world = WorldProcess(directory, keeps_keys_open=plan.sabotage == "lookup-not-authoritative")
        try:
            self.say(
                f"seed {plan.seed}: {plan.runs} runs, {plan.agents} agent processes, {plan.workers} workers, "
                f"{self.names.prefix}.*"
            )
            fleet.start()
            await asyncio.to_thread(world.start)
            await fleet.wait_ready()
            async with WorldClient(world.url) as books, Refold(settings=self.settings) as client:
                crew = Crew(plan, directory, {**place, "VERIFY_RUNS_WORLD": world.url})
                try:
                    await crew.start()
                    unfinished = await self._play(crew, fleet, client)
                finally:
                    await asyncio.to_thread(crew.stop)
                self.say(f"{len(self.ended)} runs ended; comparing book, journal, state and work")
                return await self._compare(fleet, crew, dict(await books.book()), unfinished)
        finally:
            fleet.kill()
            world.stop()
            await leave(self.settings, directory, self.say, keep=self.keep)

    async def _play(self, crew: Crew, fleet: Fleet, client: Refold) -> list[str]:
        """Begin runs, wait for their ends, let processes die meanwhile; what did not end in time."""
        try:
            return await with_beside(
                self._all_runs(client), self._let_die(crew, fleet), self._supervise(crew, fleet)
            )
        finally:
            for agent in crew.agents:
                crew.wake(agent)

    async def _all_runs(self, client: Refold) -> list[str]:
        room = asyncio.Semaphore(OPEN_RUNS_MAX)
        failures: list[str] = []

        async def one(number: int) -> None:
            run = self.plan.run_id(number)
            async with room:
                handle = await start_run(
                    "verified", client.session(self.plan.session_of(number)), input={"run": run}, run_id=run,
                    pin=None, title=None, retries=2,
                )  # fmt: skip
                try:
                    await handle.result()
                except RefoldError as error:
                    failures.append(f"run {run}: {type(error).__name__}: {error}")
                self.ended.add(run)

        tasks = [asyncio.create_task(one(number)) for number in range(self.plan.runs)]
        known, quiet_since = 0, time.monotonic()
        try:
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=1.0)
                for task in tasks:
                    if task.done():
                        task.result()
                if len(self.ended) > known:
                    known, quiet_since = len(self.ended), time.monotonic()
                elif time.monotonic() - quiet_since > QUIET_S_MAX:
                    failures.append(
                        f"{self.plan.runs - known} runs have not ended, none for {QUIET_S_MAX:g} s"
                    )
                    return failures
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # Few runs on a fast machine: the deploy is part of what is shown.
        await self.deployed.wait()
        return failures

    async def _let_die(self, crew: Crew, fleet: Fleet) -> None:
        """A death every so often; the rolling deploy once, between two of them."""
        number = 0
        waking: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(self.plan.every_s)
            if not self.deployed.is_set() and len(self.ended) >= DEPLOY_AFTER * self.plan.runs:
                await asyncio.gather(*waking)
                self.say(f"  {self._at():6.1f} s  rolling deploy to version {VERSIONS[1]}")
                await crew.deploy(VERSIONS[1])
                self.deployed.set()
                continue
            blow = self.plan.blow(number)
            number += 1
            if blow == "worker":
                await self._kill_worker(fleet)
                continue
            agent = await self._victim(crew)
            if blow == "freeze":
                task = asyncio.create_task(self._freeze(crew, agent))
                waking.add(task)
                task.add_done_callback(waking.discard)
            else:
                died_ms = await crew.kill(agent)
                self.deaths.append(AgentDeath("kill", agent.name, died_ms))
                self.say(f"  {self._at():6.1f} s  SIGKILL {agent.name}, {len(self.ended)} runs ended")

    async def _victim(self, crew: Crew) -> AgentProcess:
        """Somebody who serves while another one does too: else a busy machine would only see starts."""
        while True:
            able = [agent for agent in crew.agents if not agent.frozen and agent.alive and agent.ready]
            if len(able) > 1:
                return self.chance.choice(able)
            await asyncio.sleep(SUPERVISE_S)

    async def _freeze(self, crew: Crew, agent: AgentProcess) -> None:
        """Frozen until its leases are over and others had two seconds to take its runs, then woken."""
        stopped_ms = await crew.freeze(agent)
        self.deaths.append(AgentDeath("freeze", agent.name, stopped_ms))
        self.say(f"  {self._at():6.1f} s  SIGSTOP {agent.name}")
        await asyncio.sleep(self.plan.lease_s + 2.0)
        crew.wake(agent)
        self.say(f"  {self._at():6.1f} s  SIGCONT {agent.name}")

    async def _kill_worker(self, fleet: Fleet) -> None:
        worker = self.chance.choice(fleet.workers)
        if await worker.ready():
            await asyncio.to_thread(worker.kill)
            worker.start()
            self.worker_kills += 1
            self.say(f"  {self._at():6.1f} s  SIGKILL worker {worker.name}")

    async def _supervise(self, crew: Crew, fleet: Fleet) -> None:
        """What a supervisor does; an end that none would hide raises."""
        while True:
            if self.deployed.is_set():
                crew.check()
            for worker in fleet.workers:
                code = worker.process.poll() if worker.process is not None else None
                if code not in (None, -signal.SIGKILL) and worker.revive() is None:
                    raise UnavailableError(
                        f"worker {worker.name} ended by itself (exit {code}). The end of its log:\n"
                        f"{worker.log_tail()}"
                    )
            await asyncio.sleep(SUPERVISE_S)

    async def _compare(
        self, fleet: Fleet, crew: Crew, book: dict[str, Any], unfinished: list[str]
    ) -> Outcome:
        names, partitions = self.names, self.plan.partitions
        kafka = self.settings.kafka_config("reader")
        offsets = GroupOffsets(kafka, names.group)
        folded = await all_folded(fleet, kafka, self.admin, offsets, names, partitions)
        if folded.unfinished is not None:
            unfinished.append(folded.unfinished)
        journal, state, work, review = await asyncio.gather(
            *(
                asyncio.to_thread(read_topic, kafka, topic, partitions)
                for topic in (names.journal, names.state, names.work, names.review)
            )
        )
        verdict = await asyncio.to_thread(judge, self.plan.run_ids, book, journal, state, work, review)
        return Outcome(
            self.plan,
            verdict,
            book,
            self.deaths,
            self.worker_kills,
            crew.drained,
            unfinished,
            time.monotonic() - self.began,
        )

    def _at(self) -> float:
        return time.monotonic() - self.began
