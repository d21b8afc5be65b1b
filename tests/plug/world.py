"""One life of a worker: the real engine on a real RocksDB in this very process, the cluster simulated.

It comes up on what the last life left on the disk, is compared with the folds of the logs partition by
partition as each goes live, and again when all is quiet. Then records come in, until it reaches the place
where it is to die: the cluster is saved, and the process sends itself SIGKILL. What RocksDB had in memory
is gone, its background threads stop where they are.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from refold.engine import bulk, store
from refold.engine.lifecycle import State
from refold.engine.rows import FRONTIER_KEY, Frontier
from refold.engine.store import Memory
from refold.wire.snapshot import encode_snapshot
from simulation import seams
from simulation.generations import GenerationWorkload
from simulation.kernel import Process
from simulation.parameters import Parameters
from simulation.worker import SESSION_TIMEOUT_MS, Worker
from simulation.world import QUIESCE_US_MAX, QUIET_STEPS, World

from . import rows

PARTITIONS: Final = 3
SESSIONS: Final = 8

#: Records of one life: a few commits, so that the named ones are reached.
RECORDS: Final = 40
BURST_MAX: Final = 6

#: A rebalance, until the worker is asked to give something up.
REBALANCE_STEPS: Final = 600

#: RocksDB's least. A few lives fill it, so that some deaths meet a flush or a compaction on the way.
WRITE_BUFFER_BYTES: Final = 64 * 1024

#: A run that is larger goes into RocksDB as a file.
FILE_BYTES_MIN: Final = 1_024

#: The place that is no named point: after so many scheduler steps.
MOMENT: Final = "moment"


@dataclass(frozen=True, slots=True)
class Armed:
    """The ``nth`` time that the point is reached, ``when`` as in the simulator; the nth step for
    :data:`MOMENT`."""

    name: str
    when: str
    nth: int


@dataclass(slots=True)
class Told:
    """What a life says before it ends, to whoever waits for it."""

    failures: list[str] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    #: Events that the open commit held at the death.
    in_flight: int = 0
    reached: bool = False
    commits: int = 0


class PlugWorld(World):
    def __init__(
        self,
        seed: int,
        data_dir: Path,
        *,
        armed: Armed | None,
        sabotage: str | None,
        hot_first: bool,
        end: Callable[[PlugWorld], None],
    ) -> None:
        """``end`` saves what has to outlive the process; SIGKILL follows."""
        parameters = Parameters(
            seed=seed,
            ticks=0,
            workers=1,
            partitions=PARTITIONS,
            sessions=SESSIONS,
            events=RECORDS,
            sabotage=sabotage,
            hot_first=hot_first,
        )
        super().__init__(parameters, scenario=self._decide)
        self._generations = GenerationWorkload(self._chance, self.broker, self.topics, life=f"{seed}-")
        self._data_dir = data_dir
        self._armed = armed
        self._end = end
        self._count = 0
        self._more = False
        self.told = Told()
        self.memory = Memory()
        self.fetch_records_max = 12

    def data_dir(self, worker: Worker) -> Any:
        return self._data_dir

    # --- the life ------------------------------------------------------------------------------------

    def life(self) -> NoReturn:
        store.WRITE_BUFFER_BYTES = WRITE_BUFFER_BYTES  # type: ignore[misc]
        with seams.installed(self.kernel, self.broker, self.trouble, self.happened, real_disks=True):
            # Most restores write sorted files.
            bulk.FILE_BYTES_MIN = FILE_BYTES_MIN  # type: ignore[misc]
            self._live()
        self.plug(reached=False)

    def _live(self) -> None:
        self.workers[0].start()
        self.sent = self.parameters.events
        if not self._until_quiet():
            return
        self._compare_disks()
        self._compare()
        if self._armed is None or self.report.failures:
            return
        self.sent = 0
        self._more = True
        self._generations_on()
        while self.sent < self.parameters.events:
            for _ in range(1 + self.seeds.workload.randrange(BURST_MAX)):
                if self.sent < self.parameters.events:
                    self._send_one()
            for _ in range(self.seeds.workload.randrange(120)):
                if not self._step():
                    return
        if self._provoke():
            for _ in range(REBALANCE_STEPS):
                if not self._step():
                    return
        self._until_quiet()

    def _generations_on(self) -> None:
        for _ in range(4):
            self.kernel.after(self.seeds.workload.randrange(200_000), self._generations.step)
            self.kernel.after(self.seeds.workload.randrange(200_000), self._runs.step)

    def _provoke(self) -> bool:
        """What makes it come to the points that traffic alone does not reach."""
        name = "" if self._armed is None else self._armed.name
        group = self.broker.group
        if name == "on_revoke":
            # Somebody joins, is to get some of the partitions, and is never heard of again.
            group.join("", "passer-by", frozenset(), SESSION_TIMEOUT_MS * 1_000)
        elif name == "on_lost":
            for member in sorted(group.members):
                group.remove(member, "evicted")
        else:
            return False
        return True

    def _until_quiet(self) -> bool:
        end, look = self.kernel.now_us + QUIESCE_US_MAX, 0
        while not self.report.failures:
            if self.kernel.steps >= look:
                if self._quiet():
                    return True
                look = self.kernel.steps + QUIET_STEPS
            if not self._step():
                return False
            if self.workers[0].process.dead:
                return False
            if self.kernel.now_us > end:
                self.report.fail("liveness", "not quiet")
        return False

    def _step(self) -> bool:
        armed = self._armed
        if armed is not None and armed.name == MOMENT and self.kernel.steps >= armed.nth:
            self.plug(reached=True)
        return super()._step()

    # --- the death -----------------------------------------------------------------------------------

    def _decide(self, worker: Worker, name: str, when: str) -> str | None:
        armed = self._armed
        if armed is None or (name, when) != (armed.name, armed.when):
            return None
        self._count += 1
        return "kill" if self._count == armed.nth else None

    def kill(self, worker: Worker) -> NoReturn:
        self.told.in_flight = worker.events
        self.plug(reached=True)

    def plug(self, *, reached: bool) -> NoReturn:
        self.told.reached = reached
        self.told.failures = self.report.failures
        self.told.compared = dict(self.report.compared)
        self.told.commits = self.report.compared["transactions"]
        self._end(self)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL was survived")

    def exited(self, worker: Worker, process: Process, error: BaseException | None) -> None:
        process.exit = error
        if error is not None and not (self._armed is not None and self._armed.name == "on_lost"):
            self.report.fail("exit", f"{process.name} ended with {error!r}")
        self.kernel.kill(process)

    # --- comparisons ---------------------------------------------------------------------------------

    def partition_served(self, worker: Worker, partition: int, offset: int) -> None:
        """Before all of it is read (rule H2): what the disk has is looked at when all is quiet."""
        self.report.compared["served partitions"] += 1

    def partition_live(self, worker: Worker, partition: int, offset: int, *, filled: bool) -> None:
        if filled:
            # Commits went on meanwhile, and one may be under way.
            self.report.compared["filled partitions"] += 1
            return
        decided = self.once.decided.get(partition, 0)
        if offset != decided:
            self.report.fail("restore", f"{partition} goes live at {offset}, committed is {decided}")
        self._compare_disk(worker, partition, "restore")
        self.report.compared["restored partitions"] += 1

    def _compare_disks(self) -> None:
        (worker,) = self.workers
        for partition in range(PARTITIONS):
            self._compare_disk(worker, partition, "disk")
            self.report.compared["quiet partitions"] += 1

    def _compare_disk(self, worker: Worker, partition: int, what: str) -> None:
        owner = None if worker.engine is None else worker.engine.assignment.get(partition)
        if owner is None or owner.written is None or owner.state is State.REVOKED:
            self.report.fail(what, f"{partition} is not open")
            return
        held = rows.every_row(owner.written.store)
        fold = self.generations.folds.get(partition)
        generations = {}
        if fold is not None:
            generations = {key: self.generations.encoded(fold, key) or b"" for key in fold.progress}
        found = rows.differences(
            held,
            states={
                key: encode_snapshot(session)
                for key, session in self.fold.sessions.items()
                if session.seq and self.fold.partition_of[key] == partition
            },
            places=self.fold.places,
            generations=generations,
        )
        frontier = Frontier.decode(held[FRONTIER_KEY])
        if frontier.inbox_next != self.once.decided.get(partition, 0):
            found.append(f"the frontier is at {frontier.inbox_next}")
        for line in found:
            self.report.fail(what, f"partition {partition}: {line}")
        self.report.compared["rows"] += len(held)


def tell(told: Told, path: Path) -> None:
    path.write_text(
        json.dumps({name: getattr(told, name) for name in Told.__dataclass_fields__}), encoding="utf-8"
    )
