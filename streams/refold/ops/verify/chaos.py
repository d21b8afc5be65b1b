"""One chaos run: traffic, deaths of workers (and restarts of brokers), then the comparison (:mod:`stage`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from refold.errors import UnavailableError, UsageError
from refold.ops.fleet import Death, Reaper, WorkerProcess
from refold.ops.verify.brokers import BrokerChaos
from refold.ops.verify.judge import Verdict
from refold.ops.verify.nodes import Nodes
from refold.ops.verify.parts import Parts
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.quiesce import QUIESCE_S_MAX
from refold.ops.verify.stage import COPIES, Say, Stage
from refold.ops.verify.victim import find_victim
from refold.settings import Settings

#: A worker is only killed when it is ready, or a run would only measure starts. Longer than this: go on
#: anyway.
READY_WAIT_S_MAX: Final = 20.0
#: A worker that waits for a broker's partitions to move ends (30 s for a commit) and starts again before.
QUIESCE_BROKERS_S_MAX: Final = 120.0
#: Sabotages the command offers: each must be found within a minute.
SABOTAGES: Final = ("skip-dedup", "disk-before-commit", "offsets-before-produce", "fold-misrouted")


@dataclass(slots=True)
class Outcome:
    """The result object of ``refold verify chaos`` plus what a person wants to read."""

    plan: ChaosPlan
    verdict: Verdict
    deaths: Sequence[Death]
    events: int
    aborted_commits: int
    broker_restarts: int = 0
    leader_moves: int = 0
    not_shown: Sequence[str] = field(default=())
    parts: Parts = field(default_factory=Parts)

    @property
    def clean(self) -> bool:
        return self.verdict.clean and not self.not_shown

    def as_json(self) -> dict[str, Any]:
        """Exactly the documented keys."""
        row = {
            "events": self.events,
            "kills": len(self.deaths),
            "kills_in_flight": sum(d.in_flight for d in self.deaths),
            "aborted_commits": self.aborted_commits,
            "fenced_zombies": sum(d.fenced for d in self.deaths),
            "broker_restarts": self.broker_restarts,
            "leader_moves": self.leader_moves,
            "mismatches": self.verdict.mismatches,
            "regressions": self.verdict.regressions,
            "rpo_events": self.verdict.rpo_events,
            "rto_ms": percentiles([d.recovered_ms for d in self.deaths if d.recovered_ms is not None]),
            "not_shown": list(self.not_shown),
            "seed": self.plan.seed,
        }
        if self.plan.reducers is not None:
            row |= {"parts": self.parts.compared, "parts_upcast": self.parts.upcast}
        return row


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p99 and max, nearest rank; ``None`` without values."""
    if not values:
        return {"p50": None, "p99": None, "max": None}
    ordered = sorted(values)

    def rank(q: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1)

    return {"p50": rank(0.5), "p99": rank(0.99), "max": round(ordered[-1], 1)}


def run_chaos(
    plan: ChaosPlan, settings: Settings, say: Say, *, keep: bool = False, nodes: Nodes | None = None
) -> Outcome:
    """Blocks for ``plan.seconds`` and about half a minute more. Raises what the cluster refuses.

    ``nodes``: restarted during the run; topics have three copies then.
    """
    if plan.sabotage is not None and plan.sabotage not in SABOTAGES:
        raise UsageError(f"unknown sabotage {plan.sabotage!r}; there are: {', '.join(SABOTAGES)}")
    stage = Stage(
        plan,
        settings,
        say,
        keep=keep,
        copies=1 if nodes is None else COPIES,
        quiesce_s_max=QUIESCE_S_MAX if nodes is None else QUIESCE_BROKERS_S_MAX,
    )
    return asyncio.run(_Run(plan, stage, say, nodes).go())


class _Run:
    def __init__(self, plan: ChaosPlan, stage: Stage, say: Say, nodes: Nodes | None) -> None:
        self.plan = plan
        self.stage = stage
        self.say = say
        self._raised = False
        self.brokers = None if nodes is None else BrokerChaos(plan, nodes, stage.admin, say)

    async def go(self) -> Outcome:
        plan = self.plan
        async with self.stage as stage:
            started = time.monotonic()
            reaper = stage.reaper(started)
            stage.traffic.start()
            tasks = [asyncio.create_task(self._let_die(reaper, started))]
            if self.brokers is not None:
                tasks.append(asyncio.create_task(self.brokers.run(started)))
            try:
                await asyncio.gather(*tasks)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise
            self.say(f"{len(reaper.deaths)} deaths")
            compared = await stage.compare()
            reaper.settle()
            brokers = self.brokers
            return Outcome(
                plan,
                compared.verdict,
                reaper.deaths,
                compared.events,
                compared.aborted_commits,
                0 if brokers is None else brokers.restarts.total(),
                0 if brokers is None else brokers.leader_moves,
                (*(() if brokers is None else brokers.not_shown), *self._not_shown(compared.parts)),
                compared.parts,
            )

    def _not_shown(self, parts: Parts) -> list[str]:
        plan, missing = self.plan, []
        if plan.reducers is not None and not parts.compared:
            missing.append("a part of a reducer")
        if plan.reducers_then is not None and not parts.upcast:
            missing.append("a part with events of both versions")
        return missing

    async def _raise_version(self, started: float) -> None:
        """Once, at half time, when no worker is dying."""
        then = self.plan.reducers_then
        if then is None or self._raised or time.monotonic() - started < self.plan.seconds / 2:
            return
        self._raised = True
        self.say(f"  {time.monotonic() - started:6.1f} s  all workers stop, and start with {then}")
        await self.stage.raise_version(then)

    async def _let_die(self, reaper: Reaper, started: float) -> None:
        chance, fleet = self.plan.random("victims"), self.stage.fleet
        for when, death in self.plan.deaths():
            wait = when - (time.monotonic() - started)
            if wait > 0:
                await asyncio.sleep(wait)
            if time.monotonic() - started > self.plan.seconds:
                break
            await self._raise_version(started)
            victim = await self._victim(chance.randrange(len(fleet.workers)), death)
            if time.monotonic() - started > self.plan.seconds:
                break
            death.worker = victim.name
            await reaper.carry_out(victim, death)
            for line in death.lines:
                self.say(line)
        for end in (self.plan.seconds / 2, self.plan.seconds):
            rest = end - (time.monotonic() - started)
            if rest > 0:
                await asyncio.sleep(rest)
            await self._raise_version(started)

    async def _victim(self, first: int, death: Death) -> WorkerProcess:
        """Raises :class:`UnavailableError` where none is ready because one ended by itself, and not in a way
        that a supervisor answers by starting it again."""
        if (found := await find_victim(self.stage, first, death, READY_WAIT_S_MAX)) is not None:
            return found
        self.stage.revive()
        workers = self.stage.fleet.workers
        for worker in (*workers[first:], *workers[:first]):
            if not worker.alive:
                code = worker.wait_end(0)
                raise UnavailableError(
                    f"worker {worker.name} ended by itself with exit code {code}. The end of its log:\n"
                    f"{worker.log_tail()}"
                )
        return workers[first]
