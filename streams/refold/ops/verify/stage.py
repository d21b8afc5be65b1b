"""What every run on real processes has: topics of its own, workers, traffic, and a comparison at its end.

::

    async with Stage(plan, settings, say, keep=False) as stage:      # topics and workers are there, all ready
        stage.traffic.start()
        ...                                                          # what the run is about
        compared = await stage.compare()                             # stops the traffic, waits, compares

Own topics under a unique prefix, deleted at the end; the workers are started here and use a temporary data
directory, so a run touches nothing of the user's. Workers are given back to the operating system whatever
happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka.admin import AdminClient

from refold.core import reducers
from refold.errors import RefoldError, TransientError, UnavailableError
from refold.ops.fleet import (
    READY_S_MAX,
    Fleet,
    GroupAsker,
    JournalWatch,
    Reaper,
    WorkerProcess,
    owned_by,
)
from refold.ops.fleet.environment import pace_of_workers, place_of
from refold.ops.fleet.worker import CRASHED, RESTARTED
from refold.ops.verify.aborted import aborted_transactions
from refold.ops.verify.folded import all_folded
from refold.ops.verify.judge import Verdict, judge
from refold.ops.verify.oracle import predict
from refold.ops.verify.own import leave, own_settings
from refold.ops.verify.parts import Parts, judge_parts
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.quiesce import QUIESCE_S_MAX
from refold.ops.verify.readback import Record, read_topic
from refold.ops.verify.served import served_differences
from refold.ops.verify.traffic import Traffic
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.lasting import lasting
from refold.topology.names import TopicNames

Say = Callable[[str], None]
Topic = Mapping[int, Sequence[Record]]

#: With several copies of each topic: as many as a cluster of three nodes has, and one may be down.
COPIES: Final = 3
IN_SYNC_MIN: Final = 2
#: Where brokers go away. Each time takes every worker's session and open commit with it, and may take some
#: starts besides: they meet the next leader's move.
REVIVALS_MAX: Final = 40
#: Until every partition has an owner again, after everything was folded.
OWNERS_S_MAX: Final = 90.0
CREATE_S_MAX: Final = 60.0
POLL_S: Final = 0.25

#: Lost connections are what runs are about: librdkafka's lines of them say nothing. From "critical" on.
QUIET: Final[Mapping[str, Any]] = {"log_level": 2}


@dataclass(frozen=True, slots=True)
class Compared:
    """What the topics hold against what they should. ``events``: records in the inbox, forwards included.

    ``pause_ms_max``: the longest time from an event's append to the inbox to its append to the journal, by
    the broker's clock; ``None`` without events.
    """

    verdict: Verdict
    events: int
    aborted_commits: int
    pause_ms_max: int | None
    parts: Parts = field(default_factory=Parts)


class Stage:
    """``copies``: of each topic. ``bootstrap``: what the workers are told, where it is another address than
    the harness uses. ``extra``: further settings of the workers, as environment variables."""

    def __init__(
        self,
        plan: ChaosPlan,
        settings: Settings,
        say: Say,
        *,
        keep: bool = False,
        copies: int = 1,
        bootstrap: str | None = None,
        extra: Mapping[str, str] | None = None,
        quiesce_s_max: float = QUIESCE_S_MAX,
    ) -> None:
        self.plan = plan
        self.say = say
        self.settings = own_settings(settings, "verify", plan.seed, plan.partitions)
        self.names = TopicNames(self.settings.topic_prefix)
        self.kafka: Mapping[str, Any] = {**QUIET, **settings.kafka_config("reader")}
        self.admin = lasting(lambda: AdminClient({**QUIET, **settings.kafka_config("admin")}))
        self.offsets = GroupOffsets(self.kafka, self.names.group)
        self.directory = Path(tempfile.mkdtemp(prefix="refold-verify-"))
        self.fleet = Fleet(
            plan.workers, self.directory, {**self._worker_settings(bootstrap), **(extra or {})}
        )
        if copies > 1:
            for worker in self.fleet.workers:
                worker.revivals_max = REVIVALS_MAX
                worker.restarted = RESTARTED | CRASHED
        self._asker = GroupAsker(
            {**QUIET, **settings.kafka_config("admin")}, self.names.group, self.names.inbox
        )
        self._keep = keep
        self._copies = copies
        self._quiesce_s_max = quiesce_s_max
        self._watching: JournalWatch | None = None
        self._bump_ms: int | None = None
        self._speaking: Traffic | None = None

    @property
    def watch(self) -> JournalWatch:
        """From the beginning of the stage on."""
        if self._watching is None:
            self._watching = JournalWatch(self.kafka, self.names.journal, self.plan.partitions)
        return self._watching

    @property
    def traffic(self) -> Traffic:
        if self._speaking is None:
            self._speaking = Traffic(
                self.plan, self.names.inbox, {**QUIET, **self.settings.kafka_config("producer")}
            )
        return self._speaking

    async def __aenter__(self) -> Self:
        try:
            await self._create()
            self.watch  # noqa: B018 - it begins to watch
            self.say(
                f"seed {self.plan.seed}: {self.plan.workers} workers, {self.plan.sessions} sessions, "
                f"{self.names.prefix}.*"
            )
            self.fleet.start()
            await self.fleet.wait_ready()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching is not None:
            await asyncio.to_thread(self._watching.close)
        self.fleet.kill()
        self._asker.close()
        if self._speaking is not None:
            self._speaking.abandon()
        with contextlib.suppress(RefoldError):  # brokers may be gone: that is not what the run is about
            await leave(self.settings, self.directory, self.say, keep=self._keep)

    async def compare(self) -> Compared:
        """Stop the traffic, wait until everything is folded, read everything back and compare.

        A run that does not finish is a difference (a sabotage may look like that), not a failure of the tool.
        """
        names = self.names
        await asyncio.to_thread(self.traffic.stop)
        self.say(f"{self.traffic.sent} records sent; waiting until all is folded")
        folded = await all_folded(
            self.fleet,
            self.kafka,
            self.admin,
            self.offsets,
            names,
            self.plan.partitions,
            ready_s_max=max(READY_S_MAX, self._quiesce_s_max),
            quiesce_s_max=self._quiesce_s_max,
        )
        inbox = folded.inbox
        if inbox is None:
            inbox = await self._read_what_there_is(names.inbox)
        journal, state, rejected = await asyncio.gather(
            *(self._read(topic) for topic in (names.journal, names.state, names.rejected))
        )
        everything = await self._read(names.journal, committed=False)
        own = reducers.active
        world = predict(inbox, frozenset() if own is None else frozenset(own.by_type))
        verdict = await asyncio.to_thread(
            judge, world, inbox=inbox, journal=journal, state=state, rejected=rejected
        )
        parts = Parts()
        if own is not None:
            parts = await asyncio.to_thread(judge_parts, verdict, own, world, journal, state, self._bump_ms)
        if folded.unfinished is not None:
            # In front: what is missing below is missing for this reason.
            verdict.mismatches += 1
            verdict.differences.insert(0, f"not finished, compared as it is: {folded.unfinished}")
        for text in await served_differences(self.fleet, await self._all_owners(), state):
            verdict.differ(text)
        if self.traffic.failed:
            verdict.differ(
                f"{self.traffic.failed} records of the harness were not acknowledged: run it again"
            )
        return Compared(
            verdict,
            sum(map(len, inbox.values())),
            aborted_transactions(everything, journal),
            longest_pause_ms(inbox, journal),
            parts,
        )

    async def _read_what_there_is(self, topic: str) -> dict[int, list[Record]]:
        """Committed records; where an open transaction keeps them from readers, all records (a forward that
        was aborted is then taken for one that should count)."""
        try:
            return await self._read(topic)
        except UnavailableError:
            return await self._read(topic, committed=False)

    async def _read(self, topic: str, *, committed: bool = True) -> dict[int, list[Record]]:
        return await asyncio.to_thread(
            read_topic, self.kafka, topic, self.plan.partitions, committed=committed
        )

    async def raise_version(self, module: str) -> None:
        """Stop all workers, then start them with this module of reducers instead: how a version is raised."""
        await asyncio.to_thread(self.fleet.stop)
        self._bump_ms = time.time_ns() // 1_000_000
        for worker in self.fleet.workers:
            worker.configure({"REFOLD_WORKER__REDUCERS": module})
        self.fleet.start()
        await self.fleet.wait_ready()

    # -- who owns what ------------------------------------------------------------------------------

    def owners(self) -> Mapping[int, str]:
        """partition -> worker name; empty while the coordinator cannot say. Blocks up to 10 s."""
        return self._asker.owners()

    def owned(self, worker: str) -> tuple[int, ...]:
        return owned_by(worker, self.owners())

    def reaper(self, started: float) -> Reaper:
        """For this fleet; ``started``: what deaths count their seconds from (monotonic)."""
        timeout_s = self.plan.session_timeout_ms / 1000
        return Reaper(self.watch, self.owned, self.fleet, session_timeout_s=timeout_s, started=started)

    def revive(self) -> None:
        """Start again, and say so, what a supervisor would."""
        for worker in self.fleet.workers:
            if (code := worker.revive()) is not None:
                self.say(f"            {worker.name} ended with exit code {code}; started again")

    def worker(self, name: str) -> WorkerProcess:
        return next(worker for worker in self.fleet.workers if worker.name == name)

    # -- inside -------------------------------------------------------------------------------------

    async def _create(self) -> None:
        """The topics; leaders of a cluster that has just started settle first. Raises what it refuses."""
        deadline = time.monotonic() + CREATE_S_MAX
        while True:
            try:
                await asyncio.to_thread(self._topology().apply, self.settings)
            except TransientError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)
            else:
                return

    async def _all_owners(self) -> Mapping[int, str]:
        """Asked again while the coordinator cannot say: it may have moved a moment ago."""
        deadline = time.monotonic() + OWNERS_S_MAX
        while len(found := await asyncio.to_thread(self.owners)) < self.plan.partitions:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        return found

    def _topology(self) -> Topology:
        topology = Topology.of(self.settings)
        if self._copies == 1:
            return topology
        copied = {"replication_factor": COPIES, "min_insync_replicas": IN_SYNC_MIN}
        return replace(topology, environment=topology.environment.model_copy(update=copied))

    def _worker_settings(self, bootstrap: str | None) -> dict[str, str]:
        changes = {
            **place_of(self.settings, bootstrap),
            **pace_of_workers(self.plan.session_timeout_ms, self.plan.seed),
        }
        if self.plan.reducers is not None:
            changes["REFOLD_WORKER__REDUCERS"] = self.plan.reducers
        if self.plan.sabotage is not None:
            changes["REFOLD_WORKER__SABOTAGE"] = self.plan.sabotage
        return changes


def longest_pause_ms(inbox: Topic, journal: Topic) -> int | None:
    """The longest way of an event from its append to the inbox to its append to the journal."""
    from refold.wire.journal import decode_journal

    came = {(p, record.offset): record.time_ms for p, records in inbox.items() for record in records}
    longest: int | None = None
    for records in journal.values():
        for record in records:
            entry = decode_journal(record.value or b"")
            since = came.get((entry.partition, entry.offset))
            if since is not None:
                longest = max(longest or 0, record.time_ms - since)
    return longest
