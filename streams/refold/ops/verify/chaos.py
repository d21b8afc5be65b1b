"""One chaos run: topics of its own, traffic, deaths, then the comparison.

Own topics under a unique prefix, deleted at the end; the workers are started here and use a temporary data
directory, so a run touches nothing of the user's. Workers are given back to the operating system whatever
happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.errors import UnavailableError, UsageError
from refold.ops.fleet import Death, DeathKind, Fleet, JournalWatch, Reaper, WorkerProcess, owners
from refold.ops.verify.aborted import aborted_transactions
from refold.ops.verify.judge import Verdict, judge
from refold.ops.verify.oracle import predict
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.quiesce import quiesce
from refold.ops.verify.readback import read_topic
from refold.ops.verify.served import served_differences
from refold.ops.verify.traffic import Traffic
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.names import TopicNames
from refold.topology.spec import TopicKind

Say = Callable[[str], None]

#: A worker is only killed when it is ready, or a run would only measure starts. Longer than this: go on
#: anyway.
READY_WAIT_S_MAX: Final = 20.0
POLL_S: Final = 0.1
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

    @property
    def clean(self) -> bool:
        return self.verdict.clean

    def as_json(self) -> dict[str, Any]:
        """Exactly the documented keys."""
        return {
            "events": self.events,
            "kills": len(self.deaths),
            "kills_in_flight": sum(d.in_flight for d in self.deaths),
            "aborted_commits": self.aborted_commits,
            "fenced_zombies": sum(d.fenced for d in self.deaths),
            "mismatches": self.verdict.mismatches,
            "regressions": self.verdict.regressions,
            "rpo_events": self.verdict.rpo_events,
            "rto_ms": percentiles([d.recovered_ms for d in self.deaths if d.recovered_ms is not None]),
            "seed": self.plan.seed,
        }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p99 and max, nearest rank; ``None`` without values."""
    if not values:
        return {"p50": None, "p99": None, "max": None}
    ordered = sorted(values)

    def rank(q: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1)

    return {"p50": rank(0.5), "p99": rank(0.99), "max": round(ordered[-1], 1)}


def run_chaos(plan: ChaosPlan, settings: Settings, say: Say, *, keep: bool = False) -> Outcome:
    """Blocks for ``plan.seconds`` and about half a minute more. Raises what the cluster refuses."""
    if plan.sabotage is not None and plan.sabotage not in SABOTAGES:
        raise UsageError(f"unknown sabotage {plan.sabotage!r}; there are: {', '.join(SABOTAGES)}")
    return asyncio.run(_Run(plan, settings, say, keep).go())


class _Run:
    def __init__(self, plan: ChaosPlan, settings: Settings, say: Say, keep: bool) -> None:
        prefix = f"refold-verify-{plan.seed}-{uuid.uuid4().hex[:8]}"
        self.plan = plan
        self.say = say
        self.keep = keep
        self.settings = settings.model_copy(update={"topic_prefix": prefix, "partitions": plan.partitions})
        self.names = TopicNames(prefix)
        self.kafka: Mapping[str, Any] = settings.kafka_config("reader")
        self.admin = AdminClient({"log_level": 2, **settings.kafka_config("admin")})

    async def go(self) -> Outcome:
        plan = self.plan
        await asyncio.to_thread(Topology.of(self.settings).apply, self.settings)
        directory = Path(tempfile.mkdtemp(prefix="refold-verify-"))
        fleet = Fleet(plan.workers, directory, self._worker_settings())
        watch = JournalWatch(self.kafka, self.names.journal, plan.partitions)
        traffic = Traffic(plan, self.names.inbox, self.settings.kafka_config("producer"))
        try:
            self.say(
                f"seed {plan.seed}: {plan.workers} workers, {plan.sessions} sessions, {self.names.prefix}.*"
            )
            fleet.start()
            await fleet.wait_ready()
            started = time.monotonic()
            reaper = Reaper(
                watch, self._owned, fleet, session_timeout_s=plan.session_timeout_ms / 1000, started=started
            )
            traffic.start()
            await self._let_die(fleet, reaper, started)
            await asyncio.to_thread(traffic.stop)
            self.say(f"{traffic.sent} records sent, {len(reaper.deaths)} deaths; waiting until all is folded")
            return await self._finish(fleet, reaper, traffic)
        finally:
            watch.close()
            fleet.kill()
            if self.keep:
                self.say(f"kept: topics {self.names.prefix}.*, data and logs in {directory}")
            else:
                await asyncio.to_thread(self._delete)
                _remove(directory)

    async def _let_die(self, fleet: Fleet, reaper: Reaper, started: float) -> None:
        chance = self.plan.random("victims")
        for when, death in self.plan.deaths():
            wait = when - (time.monotonic() - started)
            if wait > 0:
                await asyncio.sleep(wait)
            if time.monotonic() - started > self.plan.seconds:
                break
            victim = await self._victim(fleet, chance.randrange(len(fleet.workers)), death)
            if time.monotonic() - started > self.plan.seconds:
                break
            death.worker = victim.name
            await reaper.carry_out(victim, death)
            step = f" at {death.point} holding {death.events} events" if death.point else ""
            self.say(f"  {death.at_s:6.1f} s  {death.kind} {death.worker}{step}{'; fenced' * death.fenced}")
            for note in death.notes:
                self.say(f"            {note}")
        rest = self.plan.seconds - (time.monotonic() - started)
        if rest > 0:
            await asyncio.sleep(rest)

    async def _victim(self, fleet: Fleet, first: int, death: Death) -> WorkerProcess:
        """A worker that owns something and is ready; for a zombie or a takeover the others must be up too."""
        alone = death.kind is DeathKind.ZOMBIE or death.takeover
        deadline = time.monotonic() + READY_WAIT_S_MAX
        order = fleet.workers[first:] + fleet.workers[:first]
        while time.monotonic() < deadline:
            for worker in order:
                if (code := worker.revive()) is not None:
                    self.say(f"            {worker.name} ended with exit code {code}; started again")
            ready = [worker for worker in order if await worker.ready()]
            owning = set((await asyncio.to_thread(self._owners)).values())
            candidates = [worker for worker in ready if worker.name in owning]
            if candidates and (not alone or len(ready) == len(order)):
                return candidates[0]
            await asyncio.sleep(POLL_S)
        for worker in order:
            if not worker.alive:
                raise UnavailableError(
                    f"worker {worker.name} ended by itself. The end of its log:\n{worker.log_tail()}"
                )
        return order[0]

    async def _finish(self, fleet: Fleet, reaper: Reaper, traffic: Traffic) -> Outcome:
        names, partitions = self.names, self.plan.partitions
        verdict = Verdict()
        try:
            await fleet.wait_ready()
            inbox = await asyncio.to_thread(
                quiesce, self.kafka, self.admin, names.group, names.inbox, partitions
            )
        except UnavailableError as err:
            # Not finishing is a difference too (a sabotage may look like that), not a failure of the tool.
            verdict.differ(str(err))
            inbox = await asyncio.to_thread(read_topic, self.kafka, names.inbox, partitions, committed=False)
        reaper.settle()
        read = [
            asyncio.to_thread(read_topic, self.kafka, topic, partitions)
            for topic in (names.journal, names.state, names.rejected)
        ]
        journal, state, rejected = await asyncio.gather(*read)
        everything = await asyncio.to_thread(
            read_topic, self.kafka, names.journal, partitions, committed=False
        )
        judged = await asyncio.to_thread(
            judge, predict(inbox), inbox=inbox, journal=journal, state=state, rejected=rejected
        )
        for text in (*verdict.differences, *await served_differences(fleet, self._owners(), state)):
            judged.differ(text)
        if traffic.failed:
            judged.differ(f"{traffic.failed} records of the harness were not acknowledged: run it again")
        return Outcome(
            self.plan,
            judged,
            reaper.deaths,
            sum(map(len, inbox.values())),
            aborted_transactions(everything, journal),
        )

    def _owners(self) -> Mapping[int, str]:
        return owners(self.admin, self.names.group, self.names.inbox)

    def _owned(self, worker: str) -> tuple[int, ...]:
        return tuple(sorted(p for p, name in self._owners().items() if name == worker))

    def _worker_settings(self) -> dict[str, str]:
        """What a run needs; everything else comes from the user's own environment and file."""
        changes = {
            "REFOLD_TOPIC_PREFIX": self.names.prefix,
            "REFOLD_KAFKA__BOOTSTRAP": self.settings.kafka.bootstrap,
            "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(self.plan.session_timeout_ms),
            "REFOLD_WORKER__START_JITTER_MS_MAX": "100",
            "REFOLD_WORKER__RESTORE_JITTER_MS_MAX": "100",
            "REFOLD_WORKER__SEED": str(self.plan.seed),
        }
        if self.plan.sabotage is not None:
            changes["REFOLD_WORKER__SABOTAGE"] = self.plan.sabotage
        return changes

    def _delete(self) -> None:
        topics = [getattr(self.names, n) for n in get_args(TopicKind)]
        for future in (
            *self.admin.delete_topics(topics).values(),
            *self.admin.delete_consumer_groups([self.names.group]).values(),
        ):
            with contextlib.suppress(KafkaException):
                future.result()


def _remove(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
