"""One run on real workers: fill, then restart the whole fleet with cold disks once per arm, then compare.

Topics, group and disks are the run's own and are gone afterwards. Between two arms all workers are stopped as
an operator would (SIGTERM) and their data directories deleted; they come back under their names and URLs, so
the group gives them their partitions back.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from refold.client import Refold
from refold.core.slots import SlotMap
from refold.errors import RefoldError, UnavailableError
from refold.ops.fleet import Fleet, owners
from refold.ops.fleet.environment import place_of
from refold.ops.storm.arms import Arm
from refold.ops.storm.curves import Live
from refold.ops.storm.fill import Filler
from refold.ops.storm.grouplog import GroupLog
from refold.ops.storm.livewatch import LiveWatch
from refold.ops.storm.load import Hot, Load
from refold.ops.storm.plan import LOSE_STATE, SKIP_DEDUP, StormPlan
from refold.ops.storm.report import ArmResult, Outcome
from refold.ops.storm.sampling import Sampler, total
from refold.ops.verify.judge import Verdict, judge
from refold.ops.verify.oracle import predict
from refold.ops.verify.own import leave, own_settings
from refold.ops.verify.quiesce import committed_offsets, quiesce, topic_ends
from refold.ops.verify.readback import read_topic
from refold.ops.verify.served import served_differences
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.names import TopicNames

Say = Callable[[str], None]

POLL_S: Final = 0.1
#: What an arm may take beyond reading at the cap: starts of processes, on a machine that does much else.
ARM_S_EXTRA: Final = 120.0
#: The fill's last events on a busy machine.
FOLDED_S_MAX: Final = 120.0
FOLDED_POLL_S: Final = 0.02
FLUSH_S_MAX: Final = 30.0
#: A cap below this is nothing that a restore could keep: it reads a batch of 384 KiB at a time.
CAP_BYTES_PER_S_MIN: Final = 256 * 1024


def has_hot_first(settings: Settings) -> bool:
    """Whether this build's workers know ``worker.hot_first``."""
    return "hot_first" in type(settings.worker).model_fields


def run_storm(plan: StormPlan, settings: Settings, say: Say, *, keep: bool = False) -> Outcome:
    """Blocks for two to three minutes with the default plan. Raises what the cluster refuses."""
    return asyncio.run(_Run(plan, settings, say, keep).go())


class _Run:
    def __init__(self, plan: StormPlan, settings: Settings, say: Say, keep: bool) -> None:
        self.plan = plan
        self.say = say
        self.keep = keep
        self.settings = own_settings(settings, "storm", plan.seed, plan.partitions)
        self.hot_first = has_hot_first(settings)
        self.names = TopicNames(self.settings.topic_prefix)
        self.kafka: Mapping[str, Any] = settings.kafka_config("reader")
        self.admin = AdminClient({"log_level": 2, **settings.kafka_config("admin")})
        self.offsets = GroupOffsets(self.kafka, self.names.group)
        self.verdict = Verdict()
        self.cap = plan.cap_bytes_per_s
        self.directory = Path(tempfile.mkdtemp(prefix="refold-storm-"))

    async def go(self) -> Outcome:
        plan, began = self.plan, time.monotonic()
        await asyncio.to_thread(Topology.of(self.settings).apply, self.settings)
        fleet = Fleet(plan.workers, self.directory, self._worker_settings())
        log = await asyncio.to_thread(GroupLog, self.kafka, self.names.group)
        try:
            self.say(
                f"seed {plan.seed}: {plan.workers} workers, {plan.sessions} sessions on {plan.partitions}"
                f" partitions, {self.names.prefix}.*"
            )
            fleet.start()
            await fleet.wait_ready()
            async with Refold(settings=self.settings) as client:
                load = Load(plan, client)
                hot = await self._fill(load)
                if self.cap == 0:
                    self.cap = await self._cap_for(fleet)
                results = [await self._restart(fleet, arm, load, hot, log) for arm in plan.arms]
            await self._compare()
        finally:
            fleet.kill()
            await asyncio.to_thread(log.close)
            with contextlib.suppress(RefoldError):
                await leave(self.settings, self.directory, self.say, keep=self.keep)
        seconds = time.monotonic() - began
        return Outcome(plan, results, self.verdict, self.cap, self.hot_first, seconds)

    async def _fill(self, load: Load) -> Hot:
        began = time.monotonic()
        kafka = self.settings.kafka_config("producer")
        filler = Filler(self.plan, self.settings.tenant, self.names.inbox, kafka, self._folded)
        await filler.all(load.sessions)
        hot = load.choose_hot(await asyncio.to_thread(owners, self.admin, self.names.group, self.names.inbox))
        # Hot sessions are those that spoke last.
        await filler.turn(hot.known, "user")
        self.say(
            f"{filler.sent} events in {time.monotonic() - began:.0f} s; {len(hot.known)} sessions on"
            f" {len(hot.partitions)} partitions are hot"
        )
        return hot

    async def _folded(self) -> None:
        """Wait until the group has committed to the inbox' end."""
        names, partitions = self.names, self.plan.partitions
        until = time.monotonic() + FOLDED_S_MAX
        while True:
            ends = await asyncio.to_thread(topic_ends, self.admin, names.inbox, partitions)
            done = await asyncio.to_thread(committed_offsets, self.offsets, names.inbox, partitions)
            behind = sum(end - max(0, done[number]) for number, end in ends.items())
            if behind <= 0:
                return
            if time.monotonic() > until:
                raise UnavailableError(
                    f"{behind} events were not folded within {FOLDED_S_MAX:.0f} s; the workers' logs say why"
                    " (--keep leaves them)"
                )
            await asyncio.sleep(FOLDED_POLL_S)

    async def _cap_for(self, fleet: Fleet) -> int:
        """So that what the fill wrote takes ``capped_seconds``."""
        written = await total(fleet.workers, "refold_state_bytes_total")
        return max(CAP_BYTES_PER_S_MIN, round(written / self.plan.workers / self.plan.capped_seconds))

    async def _restart(self, fleet: Fleet, arm: Arm, load: Load, hot: Hot, log: GroupLog) -> ArmResult:
        await asyncio.to_thread(fleet.stop)
        for worker in fleet.workers:
            await asyncio.to_thread(shutil.rmtree, worker.data_path, ignore_errors=True)
        if self.plan.sabotage == LOSE_STATE:
            await asyncio.to_thread(self._lose, load)
        new = load.newcomers(arm.name, hot)
        known = {load.key(name) for name in hot.known}
        fresh = {load.key(name) for name in new}
        before = await asyncio.to_thread(log.look)
        since = await asyncio.to_thread(topic_ends, self.admin, self.names.journal, self.plan.partitions)
        watch = LiveWatch(self.kafka, self.names.journal, since, known | fresh)
        sent, began = load.sent, time.monotonic()
        sampler = Sampler(fleet.workers, began)
        first = f"{self.settings.tenant}/{hot.known[0]}" if hot.known else None
        try:
            for worker in fleet.workers:
                worker.configure(arm.settings(self.cap, first, hot_first=self.hot_first))
                worker.start()
            looking = asyncio.create_task(sampler.run())
            talking = asyncio.create_task(load.keep_on(arm.name, [*hot.known, *new]))
            try:
                await self._until_live(fleet, arm, sampler, watch, (looking, talking), began)
                load.stop()
                await talking
            finally:
                for task in (looking, talking):
                    task.cancel()
                await asyncio.gather(looking, talking, return_exceptions=True)
        finally:
            await asyncio.to_thread(watch.close)
        after = await asyncio.to_thread(log.look)
        found = {key: at - began for key, at in watch.first.items()}
        result = ArmResult(
            arm,
            sampler.rate,
            sampler.assigned_s or 0.0,
            Live(sorted(at for key, at in found.items() if key in known), len(known)),
            Live(sorted(at for key, at in found.items() if key in fresh), len(fresh)),
            Live(sorted(sampler.live.values()), self.plan.partitions),
            None if before is None or after is None else after - before,
            load.sent - sent,
        )
        self._tell(result)
        await self._look(fleet, arm)
        return result

    async def _until_live(
        self,
        fleet: Fleet,
        arm: Arm,
        sampler: Sampler,
        watch: LiveWatch,
        tasks: Sequence[asyncio.Task[None]],
        began: float,
    ) -> None:
        """Until every partition and every hot session is live; what is not in time is a difference."""
        until = began + self.plan.capped_seconds * 2 + ARM_S_EXTRA
        while len(sampler.live) < self.plan.partitions or not watch.complete:
            for worker in fleet.workers:
                if not worker.alive and worker.revive() is None:
                    raise UnavailableError(
                        f"worker {worker.name} ended by itself. The end of its log:\n{worker.log_tail()}"
                    )
            for task in tasks:
                if task.done():
                    task.result()
            if time.monotonic() > until:
                self.verdict.differ(
                    f"{arm.name}: after {until - began:.0f} s {len(sampler.live)} of {self.plan.partitions}"
                    f" partitions are live, and {'all' if watch.complete else 'not all'} hot sessions"
                )
                return
            await asyncio.sleep(POLL_S)

    async def _look(self, fleet: Fleet, arm: Arm) -> None:
        """Do the restored disks hold what the state topic holds, for every session?"""
        await self._folded()
        state = await asyncio.to_thread(read_topic, self.kafka, self.names.state, self.plan.partitions)
        owned = await asyncio.to_thread(owners, self.admin, self.names.group, self.names.inbox)
        for text in await served_differences(fleet, owned, state):
            self.verdict.differ(f"{arm.name}: {text}")

    async def _compare(self) -> None:
        """Every session against the oracle, which knows the inbox alone."""
        names, partitions = self.names, self.plan.partitions
        inbox = await asyncio.to_thread(
            quiesce, self.kafka, self.admin, self.offsets, names.inbox, partitions
        )
        journal, state, rejected = await asyncio.gather(
            *(
                asyncio.to_thread(read_topic, self.kafka, topic, partitions)
                for topic in (names.journal, names.state, names.rejected)
            )
        )
        judged = await asyncio.to_thread(judge, predict(inbox), inbox, journal, state, rejected)
        for text in self.verdict.differences:
            judged.differ(text)
        self.verdict = judged

    def _lose(self, load: Load) -> None:
        """The sabotage of the harness' own: a session's state is deleted behind everybody's back."""
        key = load.key(load.sessions[-1])
        producer = Producer({**self.settings.kafka_config("producer"), "acks": "all"})
        partition = SlotMap(self.plan.partitions).partition(key)
        producer.produce(self.names.state, None, key, partition)
        if producer.flush(FLUSH_S_MAX):
            raise UnavailableError(f"{self.names.state} did not take the record of the sabotage")

    def _tell(self, found: ArmResult) -> None:
        one = found.as_json()
        self.say(
            f"  {found.arm.name}: assigned {one['assigned_s']:.1f} s, 99 % of hot sessions live"
            f" {one['hot']['p99_s']} s, all partitions {one['partitions']['all_s']} s, read"
            f" {one['read_bytes'] / 1e6:.0f} MB at {one['read_peak_bytes_per_s'] / 1e6:.1f} MB/s at most"
        )

    def _worker_settings(self) -> dict[str, str]:
        """Restore jitter is the user's or the default here: it is part of what is measured."""
        changes = {
            **place_of(self.settings),
            "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(self.plan.session_timeout_ms),
            "REFOLD_WORKER__START_JITTER_MS_MAX": "0",
            "REFOLD_WORKER__SEED": str(self.plan.seed),
        }
        if self.plan.sabotage == SKIP_DEDUP:
            changes["REFOLD_WORKER__SABOTAGE"] = SKIP_DEDUP
        return changes
