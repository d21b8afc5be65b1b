"""One run: topics of its own, a gateway, workers, agents, deaths, then the comparison.

Own topics under a unique prefix, deleted at the end; workers and agents are started here and write to a
temporary directory, so a run touches nothing of the user's. Every process is given back whatever happens.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from refold.client import Refold
from refold.demo.dataset import data_directory, load
from refold.demo.uninterrupted import uninterrupted
from refold.errors import RefoldError, UnavailableError
from refold.ops.effects import ledger
from refold.ops.effects.crew import Crew
from refold.ops.effects.gatewayclient import GatewayClient
from refold.ops.effects.gatewayprocess import GatewayProcess
from refold.ops.effects.judge import judge
from refold.ops.effects.killer import Killer
from refold.ops.effects.operator import Operator
from refold.ops.effects.outcome import Outcome
from refold.ops.effects.plan import EffectsPlan
from refold.ops.effects.protocol import load_agent
from refold.ops.effects.sabotage import check
from refold.ops.fleet import Death, DeathKind, Fleet, JournalWatch, Reaper, owned_by, owners
from refold.ops.fleet.environment import pace_of_workers, place_of
from refold.ops.verify.beside import with_beside
from refold.ops.verify.folded import all_folded
from refold.ops.verify.own import leave, own_settings
from refold.ops.verify.readback import read_topic
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.names import TopicNames

Say = Callable[[str], None]

#: After the deaths: the last lease, a review and the rest of 24 conversations take about 20 s. Longer while
#: turns end.
FINISH_S_MAX: Final = 60.0
#: As a supervisor would look.
SUPERVISE_S: Final = 0.5
#: A worker is only killed when it is ready, or a run would only measure starts.
WORKER_READY_S_MAX: Final = 60.0


def check_plan(plan: EffectsPlan) -> None:
    """Raises :class:`UsageError` or :class:`ConfigError` for an agent or a sabotage that is none, and for
    data that is not installed.
    """
    check(plan.sabotage)
    if plan.agent is not None:
        load_agent(plan.agent)
    data_directory()


def run_effects(plan: EffectsPlan, settings: Settings, say: Say, *, keep: bool = False) -> Outcome:
    """Blocks for at most ``plan.seconds`` and about a minute and a half more (on a busy machine as long as
    conversations go on, five minutes at most). Raises what the cluster refuses and what :func:`check_plan`
    does.
    """
    check_plan(plan)
    return asyncio.run(_Run(plan, settings, say, keep).go())


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a task group failed with: the error a person can act on, if there is one."""
    refolds, _ = group.split(RefoldError)
    found: BaseException = group if refolds is None else refolds
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class _Run:
    def __init__(self, plan: EffectsPlan, settings: Settings, say: Say, keep: bool) -> None:
        self.plan = plan
        self.say = say
        self.keep = keep
        self.settings = own_settings(settings, "effects", plan.seed, plan.partitions)
        self.names = TopicNames(self.settings.topic_prefix)
        self.kafka: Mapping[str, Any] = settings.kafka_config("reader")
        self.admin = AdminClient({"log_level": 2, **settings.kafka_config("admin")})
        self.began = time.monotonic()

    async def go(self) -> Outcome:
        plan = self.plan
        conversations = load(plan.conversations)
        await asyncio.to_thread(Topology.of(self.settings).apply, self.settings)
        directory = Path(tempfile.mkdtemp(prefix="refold-effects-"))
        pace = pace_of_workers(plan.session_timeout_ms, plan.seed)
        fleet = Fleet(plan.workers, directory, {**place_of(self.settings), **pace})
        gateway = GatewayProcess(plan, directory)
        watch = JournalWatch(self.kafka, self.names.journal, plan.partitions)
        try:
            calls = sum(len(c.calls) for c in conversations)
            self.say(
                f"seed {plan.seed}: {len(conversations)} conversations, {calls} calls, {plan.agents} agent "
                f"processes, {plan.workers} workers, {self.names.prefix}.*"
            )
            fleet.start()
            await asyncio.to_thread(gateway.start)
            await fleet.wait_ready()
            return await self._play(directory, fleet, gateway, watch)
        finally:
            watch.close()
            fleet.kill()
            gateway.stop()
            await leave(self.settings, directory, self.say, keep=self.keep, kept="ledger, data and logs")

    async def _play(
        self, directory: Path, fleet: Fleet, gateway: GatewayProcess, watch: JournalWatch
    ) -> Outcome:
        plan = self.plan
        sessions = [c.session for c in load(plan.conversations)]
        async with GatewayClient(gateway.url) as books, Refold(settings=self.settings) as client:
            crew = Crew(plan, directory, gateway.url, place_of(self.settings), sessions, self.say)
            try:
                await crew.start()
                killer = Killer(plan, crew, client, self.say)
                operator = Operator(client, books, killer.held)
                reaper = Reaper(
                    watch,
                    self._owned,
                    fleet,
                    session_timeout_s=plan.session_timeout_ms / 1000,
                    started=time.monotonic(),
                )
                over = await self._until_over(crew, killer, operator, reaper, fleet)
            finally:
                await crew.stop()
            self.say(f"{len(crew.progress.ended)} conversations ended; comparing ledger, journal and state")
            counters = await books.counters()
        return await self._compare(fleet, gateway, crew, killer, operator, reaper, counters, over=over)

    async def _until_over(
        self, crew: Crew, killer: Killer, operator: Operator, reaper: Reaper, fleet: Fleet
    ) -> bool:
        """Deaths, then the rest of the conversations. Whatever fails beside it ends the run at once."""

        async def play() -> bool:
            try:
                await self._let_die(killer, reaper, fleet)
            except BaseExceptionGroup as group:
                raise first_of(group) from group
            return await crew.finish(FINISH_S_MAX)

        return await with_beside(play(), operator.watch(), self._supervise(fleet))

    async def _supervise(self, fleet: Fleet) -> None:
        """What any supervisor of workers does: start again who says so. Another end is a fault: it raises."""
        while True:
            for worker in fleet.workers:
                code = worker.process.poll() if worker.process is not None else None
                if code is not None and code >= 0 and worker.revive() is None:
                    raise UnavailableError(
                        f"worker {worker.name} ended by itself (exit {code}). The end of its log:\n"
                        f"{worker.log_tail()}"
                    )
            await asyncio.sleep(SUPERVISE_S)

    async def _let_die(self, killer: Killer, reaper: Reaper, fleet: Fleet) -> None:
        """Agents die by the plan; a worker dies every so many of their deaths."""
        points = iter(self.plan.worker_deaths())
        every = max(1, len(self.plan.deaths()) // (self.plan.worker_kills + 1))
        due: asyncio.Queue[str | None] = asyncio.Queue()

        def after_each(done: int, of: int) -> None:
            if done % every == 0 and (point := next(points, None)) is not None:
                due.put_nowait(point)
            if done % 10 == 0:
                self.say(f"  {done} of {of} agent deaths")

        async def workers() -> None:
            number = 0
            while (point := await due.get()) is not None:
                worker = fleet.workers[number % len(fleet.workers)]
                number += 1
                deadline = time.monotonic() + WORKER_READY_S_MAX
                while not await worker.ready() and time.monotonic() < deadline:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                death = await reaper.carry_out(worker, Death(worker.name, DeathKind.KILL, point=point))
                self.say(f"  {death.at_s:6.1f} s  SIGKILL worker {worker.name} {death.point or 'outside'}")

        async with asyncio.TaskGroup() as group:
            group.create_task(workers())
            await killer.run(after_each)
            for point in points:  # a plan that went by faster than its spacing still has its worker deaths
                due.put_nowait(point)
            due.put_nowait(None)

    async def _compare(
        self,
        fleet: Fleet,
        gateway: GatewayProcess,
        crew: Crew,
        killer: Killer,
        operator: Operator,
        reaper: Reaper,
        counters: Mapping[str, int],
        *,
        over: bool,
    ) -> Outcome:
        plan, names, partitions = self.plan, self.names, self.plan.partitions
        conversations = load(plan.conversations)
        unfinished = [] if over else ["not every conversation ended in time"]
        offsets = GroupOffsets(self.kafka, names.group)
        folded = await all_folded(fleet, self.kafka, self.admin, offsets, names, partitions)
        if folded.unfinished is not None:
            unfinished.append(folded.unfinished)
        reaper.settle()
        journal, state, review = await asyncio.gather(
            *(
                asyncio.to_thread(read_topic, self.kafka, topic, partitions)
                for topic in (names.journal, names.state, names.review)
            )
        )
        verdict = await asyncio.to_thread(
            judge,
            self.settings.tenant,
            conversations,
            ledger.read(gateway.ledger),
            journal,
            state,
            review,
            None if plan.agent is not None else await uninterrupted(self.settings.tenant, conversations),
        )
        for session, error in crew.progress.given_up.items():
            unfinished.append(f"{session} was given up: {error}")
        return Outcome(
            plan=plan,
            verdict=verdict,
            ends=killer.ends,
            worker_deaths=reaper.deaths,
            counters=counters,
            reviews=operator.rulings,
            ended=len(crew.progress.ended),
            unfinished=unfinished,
            seconds=time.monotonic() - self.began,
        )

    def _owned(self, worker: str) -> tuple[int, ...]:
        return owned_by(worker, owners(self.admin, self.names.group, self.names.inbox))
