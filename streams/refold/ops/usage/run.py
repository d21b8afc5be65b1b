"""``refold verify usage``: usage while workers die, counted again; after a restart and a full restore too."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from confluent_kafka import KafkaException

from refold.errors import UnavailableError, UsageError
from refold.ops.fleet import Death, Reaper
from refold.ops.usage.counting import Findings, Rows, changelog_rows, compare_journal, compare_rows
from refold.ops.usage.plan import SABOTAGES, UsagePlan
from refold.ops.usage.traffic import TENANT, UsageTraffic
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.quiesce import committed_offsets, topic_ends
from refold.ops.verify.stage import QUIET, Say, Stage
from refold.ops.verify.victim import find_victim
from refold.settings import Settings

POLL_S: Final = 0.25
#: Records let through in each look while a death is on its way, at least: a commit every time.
TRICKLE_MIN: Final = 20
#: No event ruled on for so long: the workers do not finish. As `quiesce` waits, for a whole death.
STALL_S_MAX: Final = 120.0
#: A victim is waited for until it is ready, or a run would only measure starts.
READY_WAIT_S_MAX: Final = 30.0
#: Rows served by owners that have just changed.
SERVED_S_MAX: Final = 60.0
#: A drain and a checkpoint fit many times.
STOP_S_MAX: Final = 60.0


@dataclass(slots=True)
class UsageOutcome:
    plan: UsagePlan
    findings: Findings
    deaths: Sequence[Death]
    sent: int
    repeats: int
    seconds: float
    #: Rows compared after a restart, and after a restore from the changelog alone.
    restarted: int = 0
    restored: int = 0
    served: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return self.findings.clean

    def as_json(self) -> dict[str, Any]:
        found = self.findings
        return {
            "events": found.recorded,
            "sent": self.sent,
            "repeats": self.repeats,
            "kills": len(self.deaths),
            "kills_in_flight": sum(death.in_flight for death in self.deaths),
            "fenced_zombies": sum(death.fenced for death in self.deaths),
            "rows": found.rows,
            "late": found.late,
            "future": found.future,
            "served_rows": self.served,
            "restarted_rows": self.restarted,
            "restored_rows": self.restored,
            "mismatches": found.mismatches,
            "seconds": round(self.seconds, 1),
            "seed": self.plan.seed,
        }


def run_usage(plan: UsagePlan, settings: Settings, say: Say, *, keep: bool = False) -> UsageOutcome:
    """Blocks; a million events take some minutes. Raises what the cluster refuses, UnavailableError where the
    workers do not finish."""
    if plan.sabotage is not None and plan.sabotage not in SABOTAGES:
        raise UsageError(f"unknown sabotage {plan.sabotage!r}; there are: {', '.join(SABOTAGES)}")
    chaos = ChaosPlan(
        seed=plan.seed,
        seconds=0.0,
        workers=plan.workers,
        sessions=plan.sessions,
        partitions=plan.partitions,
        session_timeout_ms=plan.session_timeout_ms,
        sabotage=plan.sabotage,
    )
    return asyncio.run(_Run(plan, Stage(chaos, settings, say, keep=keep), say).go())


class _Run:
    def __init__(self, plan: UsagePlan, stage: Stage, say: Say) -> None:
        self.plan = plan
        self.stage = stage
        self.say = say
        self.findings = Findings()
        self._started = time.monotonic()
        self._ruled = 0
        #: Records that may be sent while a death is to come; ``None`` when none is.
        self._cap: int | None = 0

    async def go(self) -> UsageOutcome:
        plan, findings = self.plan, self.findings
        async with self.stage as stage:
            self._started = time.monotonic()
            kafka = {**QUIET, **stage.settings.kafka_config("producer")}
            traffic = UsageTraffic(plan, stage.names.inbox, kafka)
            reaper = stage.reaper(self._started)
            traffic.start()
            pacing = asyncio.create_task(self._pace(traffic))
            try:
                await self._let_die(reaper, traffic)
                await asyncio.to_thread(traffic.finish)
            finally:
                pacing.cancel()
                traffic.abandon()
            self.say(f"{traffic.sent} records of {traffic.events} events sent, {len(reaper.deaths)} deaths")
            outcome = UsageOutcome(plan, findings, reaper.deaths, traffic.sent, traffic.repeats, 0.0)
            try:
                await self._all_ruled()
                await self._compare(traffic, outcome)
            except UnavailableError as error:
                # A sabotage may look like that; so may a fault.
                findings.differ(f"not finished: {error}")
            outcome.sent, outcome.repeats = traffic.sent, traffic.repeats
            outcome.seconds = time.monotonic() - self._started
            return outcome

    async def _compare(self, traffic: UsageTraffic, outcome: UsageOutcome) -> None:
        stage, findings, plan = self.stage, self.findings, self.plan
        names, kafka = stage.names, stage.kafka
        rows = await asyncio.to_thread(changelog_rows, kafka, names, plan.partitions)
        self.say(f"all ruled on; counting {len(rows)} rows again")
        await asyncio.to_thread(compare_journal, kafka, names, plan.partitions, rows, traffic.sums, findings)
        served = await self._served()
        compare_rows("owners", served, rows, findings)
        outcome.served = len(served)
        if not findings.clean:
            return
        await self._restart(forget=False)
        again = await self._served()
        compare_rows("after a restart", again, rows, findings)
        outcome.restarted = len(again)
        await self._restart(forget=True)
        again = await self._served()
        compare_rows("after a restore from the changelog", again, rows, findings)
        outcome.restored = len(again)
        # Once more what was sent last: a restored worker knows it for repeats.
        count = await asyncio.to_thread(traffic.rewind)
        await self._all_ruled()
        compare_rows(f"after {count} repeats", await self._served(), rows, findings)

    # -- deaths -------------------------------------------------------------------------------------

    async def _let_die(self, reaper: Reaper, traffic: UsageTraffic) -> None:
        chance, fleet = self.plan.random("victims"), self.stage.fleet
        for share, death in self.plan.deaths():
            wanted = int(share * self.plan.events)
            self._cap = max(self._cap or 0, wanted)
            await self._until(wanted, traffic)
            first = chance.randrange(len(fleet.workers))
            found = await find_victim(self.stage, first, death, READY_WAIT_S_MAX)
            victim = found or fleet.workers[first]
            death.worker = victim.name
            await reaper.carry_out(victim, death)
            for line in death.lines:
                self.say(line)
        self._cap = None

    async def _pace(self, traffic: UsageTraffic) -> None:
        """Producers are a little ahead of the workers, whatever these do; when the time of a death has come,
        only so much that there is a commit to die in, however few events are left."""
        trickle = max(TRICKLE_MIN, self.plan.events // 100)
        while True:
            ruled, _ = await self._positions()
            if self._cap is None:
                traffic.allow(ruled + traffic.ahead)
            else:
                if ruled + trickle >= self._cap:
                    self._cap += trickle
                traffic.allow(min(ruled + traffic.ahead, self._cap))
            await asyncio.sleep(POLL_S)

    async def _until(self, events: int, traffic: UsageTraffic) -> None:
        """As many are ruled on, or all that were sent: a death then finds an idle worker."""
        while True:
            done = traffic.done
            ruled, ends = await self._positions()
            if ruled >= events or (done and ruled >= ends):
                return
            self.stage.revive()
            await asyncio.sleep(POLL_S)

    # -- waiting ------------------------------------------------------------------------------------

    async def _positions(self) -> tuple[int, int]:
        """Inbox records ruled on, and all of them; as last known while the cluster does not say."""
        stage = self.stage
        try:
            ends = await asyncio.to_thread(topic_ends, stage.admin, stage.names.inbox, self.plan.partitions)
            offsets = await asyncio.to_thread(
                committed_offsets, stage.offsets, stage.names.inbox, self.plan.partitions
            )
        except KafkaException:
            return self._ruled, self._ruled + 1
        self._ruled = sum(max(0, offset) for offset in offsets.values())
        return self._ruled, sum(ends.values())

    async def _all_ruled(self) -> None:
        """Nothing but producers writes here, so the last record is the end. Raises UnavailableError when
        nothing moves."""
        best, since = -1, time.monotonic()
        while True:
            ruled, ends = await self._positions()
            if ruled == ends:
                break
            if ruled > best:
                best, since = ruled, time.monotonic()
            if time.monotonic() - since > STALL_S_MAX:
                raise UnavailableError(
                    f"{ruled} of {ends} records are ruled on, and no more for {STALL_S_MAX:g} s"
                )
            self.stage.revive()
            await asyncio.sleep(POLL_S)
        await self.stage.fleet.wait_ready()

    async def _restart(self, *, forget: bool) -> None:
        """All workers stop in order and start again; ``forget``: without their disks."""
        self.say("restart" + " without local copies: everything is restored from the changelog" * forget)
        workers = self.stage.fleet.workers
        for worker in workers:
            worker.tell_to_stop()
        for worker in workers:
            await asyncio.to_thread(worker.wait_stopped, STOP_S_MAX)
            if forget:
                await asyncio.to_thread(shutil.rmtree, worker.data_path, True)
        for worker in workers:
            worker.start()
        await self.stage.fleet.wait_ready()

    # -- rows ---------------------------------------------------------------------------------------

    async def _served(self) -> Rows:
        """The rows as the owners serve them, of all partitions. Raises UnavailableError where they do not."""
        deadline = time.monotonic() + SERVED_S_MAX
        rows: Rows = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
            for number in range(self.plan.subjects):
                subject = f"subject-{number}"
                # Partitions may still move: only an answer in which each has one owner is whole.
                while len(found := await self._ask(http, subject)) < self.plan.partitions:
                    if time.monotonic() > deadline:
                        raise UnavailableError(f"only the partitions {sorted(found)} answer")
                    await asyncio.sleep(POLL_S)
                for partition, records in found.items():
                    for row in records:
                        record = {"tenant": TENANT, "subject": subject, "partition": partition, **row}
                        rows[partition, subject, row["model"]] = record
        return rows

    async def _ask(self, http: aiohttp.ClientSession, subject: str) -> dict[int, list[dict[str, Any]]]:
        """Records by partition; of those that are owned and live."""
        found: dict[int, list[dict[str, Any]]] = {}
        for worker in self.stage.fleet.workers:
            try:
                async with http.get(f"{worker.url}/v1/usage/{TENANT}/{quote(subject)}/*") as answer:
                    if answer.status == 200:
                        body = await answer.json()
                        found.update({int(p): records for p, records in body["partitions"].items()})
            except (aiohttp.ClientError, TimeoutError, OSError):
                continue
        return found
