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
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, get_args

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.core import reducers
from refold.errors import TransientError, UnavailableError
from refold.ops.fleet import READY_S_MAX, Fleet, GroupAsker, JournalWatch, WorkerProcess
from refold.ops.fleet.worker import CRASHED, RESTARTED
from refold.ops.verify.aborted import aborted_transactions
from refold.ops.verify.judge import Verdict, judge
from refold.ops.verify.oracle import predict
from refold.ops.verify.parts import Parts, judge_parts
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.quiesce import QUIESCE_S_MAX, quiesce
from refold.ops.verify.readback import Record, read_topic
from refold.ops.verify.served import served_differences
from refold.ops.verify.traffic import Traffic
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.lasting import lasting
from refold.topology.names import TopicNames
from refold.topology.spec import TopicKind

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
#: Of topics and group at the end; where nobody answers, librdkafka's own default would add a minute.
DELETE_S_MAX: Final = 10.0
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
        prefix = f"refold-verify-{plan.seed}-{uuid.uuid4().hex[:8]}"
        self.plan = plan
        self.say = say
        self.settings = settings.model_copy(update={"topic_prefix": prefix, "partitions": plan.partitions})
        self.names = TopicNames(prefix)
        self.kafka: Mapping[str, Any] = {**QUIET, **settings.kafka_config("reader")}
        self.admin = lasting(lambda: AdminClient({**QUIET, **settings.kafka_config("admin")}))
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
        if self._keep:
            self.say(f"kept: topics {self.names.prefix}.*, data and logs in {self.directory}")
        else:
            await asyncio.to_thread(self._delete)
            shutil.rmtree(self.directory, ignore_errors=True)

    async def compare(self) -> Compared:
        """Stop the traffic, wait until everything is folded, read everything back and compare.

        A run that does not finish is a difference (a sabotage may look like that), not a failure of the tool.
        """
        names, partitions = self.names, self.plan.partitions
        await asyncio.to_thread(self.traffic.stop)
        self.say(f"{self.traffic.sent} records sent; waiting until all is folded")
        unfinished = None
        try:
            await self.fleet.wait_ready(max(READY_S_MAX, self._quiesce_s_max))
            inbox = await asyncio.to_thread(
                quiesce, self.kafka, self.admin, names.group, names.inbox, partitions, self._quiesce_s_max
            )
        except UnavailableError as err:
            unfinished = str(err)
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
        if unfinished is not None:
            # In front: what is missing below is missing for this reason.
            verdict.mismatches += 1
            verdict.differences.insert(0, f"not finished, compared as it is: {unfinished}")
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
        return tuple(sorted(p for p, name in self.owners().items() if name == worker))

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
        """What a run needs; everything else comes from the user's own environment and file."""
        changes = {
            "REFOLD_TOPIC_PREFIX": self.names.prefix,
            "REFOLD_KAFKA__BOOTSTRAP": bootstrap or self.settings.kafka.bootstrap,
            "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(self.plan.session_timeout_ms),
            "REFOLD_WORKER__START_JITTER_MS_MAX": "100",
            "REFOLD_WORKER__RESTORE_JITTER_MS_MAX": "100",
            "REFOLD_WORKER__SEED": str(self.plan.seed),
        }
        if self.plan.reducers is not None:
            changes["REFOLD_WORKER__REDUCERS"] = self.plan.reducers
        if self.plan.sabotage is not None:
            changes["REFOLD_WORKER__SABOTAGE"] = self.plan.sabotage
        return changes

    def _delete(self) -> None:
        topics = [getattr(self.names, name) for name in get_args(TopicKind)]
        for future in (
            *self.admin.delete_topics(topics, request_timeout=DELETE_S_MAX).values(),
            *self.admin.delete_consumer_groups([self.names.group], request_timeout=DELETE_S_MAX).values(),
        ):
            with contextlib.suppress(KafkaException):
                future.result()


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
