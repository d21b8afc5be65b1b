"""One run of ``refold verify runs``: own topics, a world, workers, agents, deaths, then the comparison.

Own topics under a unique prefix, deleted at the end; every process is started here and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.client import Refold
from refold.client.agents.starting import start as start_run
from refold.errors import RefoldError, UnavailableError
from refold.ops.fleet import Fleet
from refold.ops.runs.crew import AgentProcess, Crew
from refold.ops.runs.judge import judge
from refold.ops.runs.outcome import AgentDeath, Outcome
from refold.ops.runs.plan import VERSIONS, RunsPlan
from refold.ops.runs.worldclient import WorldClient, WorldProcess
from refold.ops.verify.quiesce import quiesce
from refold.ops.verify.readback import read_topic
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.names import TopicNames

Say = Callable[[str], None]

#: Runs begun and not ended: three processes with four runs each, and some that wait.
OPEN_RUNS_MAX: Final = 24
#: After the last death: its lease, the rest of the runs, reviews none. Longer while runs end.
QUIET_S_MAX: Final = 60.0
#: Deleting groups where no broker answers any more.
DELETE_S_MAX: Final = 15.0
SUPERVISE_S: Final = 0.2
#: The deploy begins when this part of the runs has ended.
DEPLOY_AFTER: Final = 0.4


def run_runs(plan: RunsPlan, settings: Settings, say: Say, *, keep: bool = False) -> Outcome:
    """Blocks until all runs have ended and about half a minute more. Raises what the cluster refuses."""
    return asyncio.run(_Run(plan, settings, say, keep).go())


class _Run:
    def __init__(self, plan: RunsPlan, settings: Settings, say: Say, keep: bool) -> None:
        prefix = f"refold-runs-{plan.seed}-{uuid.uuid4().hex[:8]}"
        self.plan = plan
        self.say = say
        self.keep = keep
        self.settings = settings.model_copy(update={"topic_prefix": prefix, "partitions": plan.partitions})
        self.names = TopicNames(prefix)
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
        fleet = Fleet(plan.workers, directory, {**self._environment(), **self._worker_settings()})
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
                environment = {**self._environment(), "VERIFY_RUNS_WORLD": world.url}
                crew = Crew(plan, directory, environment)
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
            if self.keep:
                self.say(f"kept: topics {self.names.prefix}.*, data and logs in {directory}")
            else:
                await asyncio.to_thread(self._delete)
                shutil.rmtree(directory, ignore_errors=True)

    async def _play(self, crew: Crew, fleet: Fleet, client: Refold) -> list[str]:
        """Begin runs, wait for their ends, let processes die meanwhile; what did not end in time."""
        beside = [
            asyncio.create_task(self._let_die(crew, fleet)),
            asyncio.create_task(self._supervise(crew, fleet)),
        ]
        playing = asyncio.create_task(self._all_runs(client))
        try:
            await asyncio.wait([playing, *beside], return_when=asyncio.FIRST_COMPLETED)
            for task in beside:
                if task.done():
                    task.result()
            return await playing
        finally:
            for each in (playing, *beside):
                each.cancel()
            await asyncio.gather(playing, *beside, return_exceptions=True)
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
        try:
            await fleet.wait_ready()
            await asyncio.to_thread(quiesce, kafka, self.admin, names.group, names.inbox, partitions)
        except UnavailableError as error:
            unfinished.append(str(error))
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

    def _environment(self) -> dict[str, str]:
        return {
            "REFOLD_TOPIC_PREFIX": self.names.prefix,
            "REFOLD_PARTITIONS": str(self.plan.partitions),
            "REFOLD_KAFKA__BOOTSTRAP": self.settings.kafka.bootstrap,
        }

    def _worker_settings(self) -> dict[str, str]:
        return {
            "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(self.plan.session_timeout_ms),
            "REFOLD_WORKER__START_JITTER_MS_MAX": "100",
            "REFOLD_WORKER__RESTORE_JITTER_MS_MAX": "100",
            "REFOLD_WORKER__SEED": str(self.plan.seed),
        }

    def _delete(self) -> None:
        Topology.of(self.settings).delete(self.settings)
        groups = self.admin.delete_consumer_groups([self.names.group], request_timeout=DELETE_S_MAX)
        for future in groups.values():
            with contextlib.suppress(KafkaException):
                future.result()
