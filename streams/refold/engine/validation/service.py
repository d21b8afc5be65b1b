"""The worker's part: one copy after the other, when every restore is over and for as long as none comes.

Threads: the event loop decides; the disk thread makes the hard links and writes the note; one thread of its
own reads and compares (:mod:`reading`). Nothing waits for it: a partition that is given up ends it at its
next chunk, and so does a stop. What fails is said and tried again later; only a difference, or a block that
cannot be read, has a consequence: the partition is closed, its copy set aside, and restored.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import KafkaException

from refold.engine import rows
from refold.engine.admission import Pace
from refold.engine.assignment import Assignment, Partition
from refold.engine.checkpoints.service import LoopMetrics
from refold.engine.config import EngineConfig
from refold.engine.lifecycle import Reopened, State
from refold.engine.metrics import Metrics
from refold.engine.plan import Written
from refold.engine.store import Memory, UnreadableStore
from refold.engine.takeover import Cancelled, Cluster
from refold.engine.validation.reading import Reading, Report
from refold.errors import RefoldError, StorageError

#: How often it is looked whether there is something to do, and whether restores have begun.
LOOK_S: Final = 1.0

#: After one that failed: the cluster did not answer, or the disk is full.
RETRY_S: Final = 600.0

#: How soon the thread sees that it is to end while restores go first.
TURN_S: Final = 0.2

_COPY: Final = ".validating"
_SCRATCH: Final = ".validating.scratch"

_RESTORING: Final = (State.ASSIGNED, State.WAITING, State.RESTORING)


class Host(Protocol):
    """What is needed of the engine."""

    assignment: Assignment

    async def on_disk(self, work: Callable[[], Any]) -> Any: ...

    def distrust(self, owner: Partition, written: Written, error: StorageError, why: Reopened) -> None: ...


class Validations:
    """One per worker. Everything without a comment runs on the event loop."""

    def __init__(
        self,
        config: EngineConfig,
        cluster: Cluster,
        memory: Memory,
        restores: Pace,
        *,
        metrics: Metrics,
        log: Any,
    ) -> None:
        """``restores``: the pace of the worker's restores, from which this spends as well."""
        self._config = config
        self._cluster = cluster
        self._memory = memory
        self._host: Host
        self._metrics = metrics
        self._told = LoopMetrics(metrics, asyncio.get_running_loop())
        self._log = log
        own = Pace(config.validate_bytes_per_s_max)
        self._paces = (own, restores)
        self._pool = ThreadPoolExecutor(1, "refold-validate")
        self._stopped = threading.Event()
        #: No restore is waiting or under way.
        self._turn = threading.Event()
        self._busy_at = time.monotonic()
        self._again_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def run(self, host: Host) -> None:
        """Until cancelled."""
        self._host = host
        while True:
            self._look(time.monotonic())
            await asyncio.sleep(LOOK_S)

    def stop(self) -> None:
        """What is under way ends at its next chunk; nobody waits for it."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look(self, now: float) -> None:
        if any(owner.state in _RESTORING for owner in self._host.assignment):
            self._turn.clear()
            self._busy_at = now
            return
        self._turn.set()
        after = max(self._again_at, self._busy_at + self._config.validate_after_ms / 1000)
        if self._stopped.is_set() or self._task is not None or now < after:
            return
        for owner in self._host.assignment:
            written = owner.written
            if owner.state is State.LIVE and written is not None and written.unproved:
                self._task = asyncio.get_running_loop().create_task(self._one(owner, written))
                self._task.add_done_callback(self._ended)
                return

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _one(self, owner: Partition, written: Written) -> None:
        started, loop = time.monotonic(), asyncio.get_running_loop()
        copy = self._config.store_dir / f"p{owner.number:05d}{_COPY}"

        def gone() -> bool:
            return self._stopped.is_set() or owner.cancelled.is_set() or owner.written is not written

        try:
            if not await self._host.on_disk(lambda: not gone() and _take(written, copy)):
                return
            report = await loop.run_in_executor(self._pool, self._validate, owner.number, copy, gone)
        except (asyncio.CancelledError, Cancelled):
            self._count("given_up")
        except UnreadableStore as error:
            self._count("unreadable")
            self._host.distrust(owner, written, error, Reopened.READ)
        except Exception as error:
            self._failed(owner.number, error)
        else:
            await self._judge(owner, written, report, time.monotonic() - started)

    def _validate(self, number: int, copy: Path, gone: Callable[[], bool]) -> Report:
        """Validation thread."""

        def turn() -> None:
            while not self._turn.wait(TURN_S):
                if gone():
                    raise Cancelled

        try:
            reading = Reading(
                self._config,
                self._cluster,
                self._memory,
                partition=number,
                copy=copy,
                scratch=copy.with_name(f"{copy.name}.scratch"),
                paces=self._paces,
                stopped=gone,
                turn=turn,
            )
            reading.told = lambda size: self._told.count("refold_store_validation_bytes_total", size)
            return reading.run()
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    async def _judge(self, owner: Partition, written: Written, report: Report, seconds: float) -> None:
        facts = {
            "partition": owner.number,
            "records": report.records,
            "rows": report.rows,
            "seconds": round(seconds, 3),
        }
        if report.kinds:
            self._count("differs")
            # No keys: they name sessions.
            places = [{"topic": topic, "kind": kind, "offset": at} for topic, kind, at in report.places]
            self._log.error(
                "store_validated", outcome="differs", kinds=dict(report.kinds), first=places, **facts
            )
            text = ", ".join(f"{count} {kind}" for kind, count in sorted(report.kinds.items()))
            error = StorageError(
                f"the local copy of partition {owner.number} is not what its changelogs say ({text}): it is"
                " set aside and restored. If it happens again, check the disk and its memory, and report it"
            )
            self._host.distrust(owner, written, error, Reopened.DIFFERS)
            return
        note = rows.Validated(report.state_topic, report.state_next).encode()
        try:
            await self._host.on_disk(lambda: written.store.put_note(rows.VALIDATED_KEY, note))
        except (StorageError, RuntimeError) as error:
            # Given up meanwhile, about to be restored for it, or the worker stops: validated again then.
            self._log.info("validation_not_noted", partition=owner.number, error=str(error))
        written.unproved = False
        self._count("done")
        self._log.info("store_validated", outcome="done", **facts)

    def _failed(self, number: int, error: Exception) -> None:
        if self._stopped.is_set():
            return
        self._count("failed")
        self._again_at = time.monotonic() + RETRY_S
        text = (
            str(error) if isinstance(error, RefoldError | OSError | KafkaException) else type(error).__name__
        )
        self._log.warning("validation_failed", partition=number, error=text, again_seconds=RETRY_S)

    def _count(self, outcome: str) -> None:
        self._metrics.count("refold_store_validations_total", outcome=outcome)


def validations(
    config: EngineConfig, cluster: Cluster, memory: Memory, restores: Pace, *, metrics: Metrics, log: Any
) -> Validations | None:
    """``None`` where the setting is off; also where a guarantee is broken on purpose, which is to be found by
    what it does and not here."""
    clear(config.store_dir)
    if not config.validate_store or config.sabotage.name is not None:
        return None
    return Validations(config, cluster, memory, restores, metrics=metrics, log=log)


def _take(written: Written, copy: Path) -> bool:
    """Disk thread."""
    shutil.rmtree(copy, ignore_errors=True)
    return written.store.checkpoint(copy)


def clear(store_dir: Path) -> None:
    """What a killed process left. Before anything is restored; blocks."""
    # RocksDB makes a copy under another name and renames it.
    for pattern in (f"p*{_COPY}", f"p*{_COPY}.tmp", f"p*{_SCRATCH}"):
        for path in store_dir.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
