"""The restart of a fleet, event by event, on a virtual clock.

Real: the order and the jitter (``admission.plan``), the turns (``admission.Turns``), the limit
(``admission.Bucket``). Simulated: processes that start, brokers that send chunk after chunk in the order in
which they were asked, cores that take records in, one chunk being fetched while another is taken in.
Partition n belongs to worker n modulo workers, and is led by broker n modulo brokers.

*Hot first*, where it is on: the changelog is read from its end; after the newest range the partition is
served and gives its turn to those that are not, and a hot session is live when the restore has come to its
last record. Otherwise it is live when its partition is.

Not modelled: inbox traffic and what it takes from brokers and cores, rebalances (static members come back to
their partitions), replication, compaction, page caches, failures.

The same model gives the same result, in any process.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from refold.engine.admission import Bucket, Rank, Ticket, Turns, plan
from refold.engine.clients import BATCH_BYTES
from refold.ops.storm import virtual
from refold.ops.storm.arms import ARMS, Arm
from refold.ops.storm.curves import Live, ReadRate
from refold.ops.storm.model import CHUNK_RECORDS, START_SPREAD, FleetModel, Partition
from refold.ops.storm.ratios import ratios

#: Brokers that send at more than this fraction of what they can have nothing left for anybody else.
SATURATED: Final = 0.95

#: Hot first (`engine/warming/interval.py`, `.opening.py`): the first range, and what is too small for one.
NEWEST_RECORDS: Final = 5_000
HOT_RECORDS_MIN: Final = 10_000


@dataclass(slots=True)
class SimulatedArm:
    """What one arm came to. Times in seconds since all processes were started."""

    arm: Arm
    rate: ReadRate = field(default_factory=ReadRate)
    hot: list[float] = field(default_factory=list)
    partitions: list[float] = field(default_factory=list)


def chunk_bytes(model: FleetModel, arm: Arm) -> int:
    """What a restore asks for at once: 2 000 records; with a limit what librdkafka may hold, which is at
    least the batch that is being read and the next one (`clients.restore_reader`)."""
    most = CHUNK_RECORDS * model.record_bytes
    if not arm.capped:
        return most
    return min(most, max(2 * BATCH_BYTES, model.cap_bytes_per_s // arm.restores_max // 4))


class _Brokers:
    """Each sends chunks one after the other, first come, first served, as fast as it can."""

    def __init__(self, model: FleetModel, rate: ReadRate) -> None:
        self._bytes_per_s = model.broker_bytes_per_s
        self._free = [0.0] * model.brokers
        self._rate = rate

    def send(self, partition: int, size: float, now: float) -> float:
        """When the last byte of what is asked for ``now`` has been sent."""
        number = partition % len(self._free)
        begins = max(now, self._free[number])
        ends = self._free[number] = begins + size / self._bytes_per_s
        self._rate.add(begins, ends, size)
        return ends


class _Restore:
    """How far one partition is. ``newest``: bytes after which it is served and gives its turn back."""

    def __init__(self, partition: Partition, model: FleetModel, arm: Arm) -> None:
        self.partition = partition
        self.chunk = chunk_bytes(model, arm)
        self.read = 0.0
        self.known = 0
        records = partition.size / model.record_bytes
        self._newest_first = arm.polite and model.hot_first and records >= HOT_RECORDS_MIN
        self.newest = NEWEST_RECORDS * model.record_bytes if self._newest_first else partition.size

    def more_known(self) -> int:
        """How many hot sessions the last chunk brought."""
        before, hot = self.known, self.partition.hot
        if self._newest_first and self.read >= self.newest:
            while self.known < len(hot) and hot[self.known] <= self.read / self.partition.size:
                self.known += 1
        return self.known - before


class _Worker:
    def __init__(
        self, model: FleetModel, arm: Arm, brokers: _Brokers, mine: Sequence[Partition], found: SimulatedArm
    ) -> None:
        self._model = model
        self._arm = arm
        self._brokers = brokers
        self._mine = mine
        self._found = found
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(arm.restores_max, self._loop)
        self._bucket: Bucket | None = None
        self._restoring = 0

    async def run(self, chance: random.Random) -> None:
        model, arm = self._model, self._arm
        await asyncio.sleep(model.start_s * chance.uniform(1 - START_SPREAD, 1 + START_SPREAD))
        await asyncio.sleep(arm.start_jitter_ms / 1000 * chance.random())
        if arm.capped:
            self._bucket = Bucket(model.cap_bytes_per_s, self._loop.time())
        core = range(model.core_partitions if arm.polite else 0)
        # What came while nobody read is in proportion to the hot sessions of a partition. Who restores all
        # at once does not ask.
        unread = {p.number: len(p.hot) for p in self._mine} if len(self._mine) > arm.restores_max else {}
        tickets = plan((p.number for p in self._mine), core, unread, chance)
        async with asyncio.TaskGroup() as group:
            for partition in self._mine:
                group.create_task(self._bring_up(partition, tickets[partition.number]))

    async def _bring_up(self, partition: Partition, ticket: Ticket) -> None:
        restore = _Restore(partition, self._model, self._arm)
        # The disks are cold: all is missing, so the jitter is not scaled down.
        await asyncio.sleep(self._arm.restore_jitter_ms / 1000 * ticket.draw)
        await self._turns.take(ticket.rank)
        with self._turns.held():
            await asyncio.sleep(self._model.takeover_s)
            await self._read(restore, restore.newest)
        if restore.read < partition.size:
            # Served from here on; the rest comes after all that are not served yet.
            await self._turns.take(Rank(True, 1, partition.number))
            with self._turns.held():
                await self._read(restore, partition.size)
        self._found.hot.extend([self._loop.time()] * (len(partition.hot) - restore.known))
        self._found.partitions.append(self._loop.time())

    async def _read(self, restore: _Restore, until: float) -> None:
        """While a chunk is taken in and paid for, the next one is on its way: with a limit librdkafka may
        hold no more than that, without one no more is needed to keep a core busy."""
        model, now, number = self._model, self._loop.time, restore.partition.number
        self._restoring += 1
        size = min(restore.chunk, until - restore.read)
        await asyncio.sleep(self._brokers.send(number, size, now()) - now())
        while size > 0:
            arrived, ready = now(), 0.0
            ahead = min(restore.chunk, until - restore.read - size)
            if ahead > 0:
                ready = self._brokers.send(number, ahead, arrived) - arrived
            crowd = max(1.0, self._restoring / model.cores)
            taking = size / model.record_bytes / model.records_per_s_core * crowd
            restore.read += size
            self._found.hot.extend([arrived + taking] * restore.more_known())
            owed = 0.0 if self._bucket is None else self._bucket.spend(int(size), arrived)
            await asyncio.sleep(max(ready, taking, owed))
            size = ahead
        self._restoring -= 1


def simulate_arm(model: FleetModel, arm: Arm) -> SimulatedArm:
    """One arm. A function of its arguments."""

    async def fleet() -> SimulatedArm:
        found = SimulatedArm(arm)
        brokers = _Brokers(model, found.rate)
        partitions = model.draw()
        async with asyncio.TaskGroup() as group:
            for number in range(model.workers):
                worker = _Worker(model, arm, brokers, partitions[number :: model.workers], found)
                group.create_task(worker.run(model.random(f"worker/{number}")))
        found.hot.sort()
        found.partitions.sort()
        return found

    return virtual.run(fleet())


def simulate(model: FleetModel, arms: Sequence[Arm] = ARMS) -> list[SimulatedArm]:
    """Every arm of one fleet, from the same draw. Raises UsageError for a model that cannot be."""
    model.check()
    return [simulate_arm(model, arm) for arm in arms]


def figures(found: SimulatedArm, model: FleetModel) -> dict[str, Any]:
    """The JSON of one arm."""
    return {
        "read_peak_bytes_per_s": round(found.rate.peak),
        "read_mean_bytes_per_s": round(found.rate.mean),
        "read_bytes": round(found.rate.total),
        "saturated_s": found.rate.seconds_above(SATURATED * model.brokers_bytes_per_s),
        "hot": Live(found.hot, model.hot_sessions).as_json(),
        "partitions": Live(found.partitions, model.partitions).as_json(),
    }


def trace(found: Sequence[SimulatedArm]) -> str:
    """A digest of every figure of every arm: equal for equal models, whatever the process."""
    digest = hashlib.sha256()
    for one in found:
        digest.update(one.arm.name.encode())
        for numbers in (one.rate.bins, one.hot, one.partitions):
            digest.update(b"".join(b"%.9e " % number for number in numbers))
    return digest.hexdigest()[:16]


def simulated_report(model: FleetModel, found: Sequence[SimulatedArm]) -> dict[str, Any]:
    """The JSON of a simulation: exactly the documented keys."""
    arms = {one.arm.name: figures(one, model) for one in found}
    return {
        "simulated": model.as_json(),
        "arms": arms,
        "ratios": ratios(arms),
        "trace": trace(found),
        "seed": model.seed,
        "files": {},
    }
