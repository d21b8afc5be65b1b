"""The worker's part: take a checkpoint of each live partition when it is due, and upload it.

Threads: the event loop decides; the disk thread flushes and makes the hard links (the same thread closes DBs,
so none is closed meanwhile); an upload thread does the rest from the links. Commits are never waited for and
never wait: RocksDB's flush and copy run beside writes, and a batch is one atom in one column family, so the
copy is exactly at some commit. What fails is counted and said, and tried again; it never stops the worker.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from refold.engine.assignment import Assignment, Partition
from refold.engine.checkpoints.keys import write_filter
from refold.engine.checkpoints.publish import Hashes, Published, Upload
from refold.engine.checkpoints.remote import Remote
from refold.engine.checkpoints.schedule import Schedule
from refold.engine.checkpoints.source import FETCHED
from refold.engine.config import EngineConfig
from refold.engine.drain import LEAVING_PART, LEAVING_S_MAX
from refold.engine.lifecycle import State
from refold.engine.metrics import Metrics
from refold.engine.points import Points
from refold.engine.store import Memory, stored_frontier
from refold.errors import RefoldError, StorageError

#: How often it is looked whether a checkpoint is due.
LOOK_S: Final = 1.0

#: Uploads at once: hashing and sending take half a core each at 200 MB/s, and the fold needs one.
UPLOADS_MAX: Final = 2

_SUFFIX: Final = ".checkpoint"


class Host(Protocol):
    """What is needed of the engine."""

    assignment: Assignment

    async def on_disk(self, work: Callable[[], Any]) -> Any: ...


class LoopMetrics:
    """Metrics for other threads: handed over to the event loop."""

    def __init__(self, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop

    def _later(self, call: Callable[..., None], name: str, value: float, labels: dict[str, str]) -> None:
        self._loop.call_soon_threadsafe(functools.partial(call, name, value, **labels))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._later(self._metrics.count, name, amount, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._later(self._metrics.observe, name, value, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._later(self._metrics.gauge, name, value, labels)

    def forget(self, name: str, **labels: str) -> None:
        self._loop.call_soon_threadsafe(functools.partial(self._metrics.forget, name, **labels))


class Checkpoints:
    """One per worker. Everything without a comment runs on the event loop."""

    def __init__(
        self,
        config: EngineConfig,
        remote: Remote,
        memory: Memory,
        *,
        points: Points,
        metrics: Metrics,
        log: Any,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._remote = remote
        self._memory = memory
        self._host: Host
        self._points = points
        self._metrics = metrics
        self._log = log
        self._now_ms = now_ms
        self._schedule = Schedule(
            config.checkpoint_interval_ms / 1000, config.checkpoint_events_max, seed=config.seed
        )
        self._pool = ThreadPoolExecutor(UPLOADS_MAX, "refold-checkpoint")
        self._stopped = threading.Event()
        #: Partitions on their way, also those given up meanwhile: their directories are in use.
        self._busy: set[int] = set()
        self._hashes: dict[int, Hashes] = {}
        self._shown: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: The last round has begun: nothing is due any more.
        self._last = False

    async def run(self, host: Host) -> None:
        """Until cancelled."""
        self._host = host
        while True:
            await asyncio.sleep(LOOK_S)
            self._look(time.monotonic())

    def stop(self) -> None:
        """Uploads end at their next file; what they have published stands."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def at_drain(self, host: Host, end: float, seconds_max: float) -> Callable[[], Awaitable[None]] | None:
        """What a drain that ends at ``end`` (monotonic) does between its last commit and leaving."""
        if not self._config.checkpoint_at_drain:
            self.stop()
            return None
        return functools.partial(self.last, host, end - min(seconds_max * LEAVING_PART, LEAVING_S_MAX))

    async def last(self, host: Host, until: float) -> None:
        """Before a stop: take once more what has been committed since, the longest tail first, until
        ``until`` (monotonic). What is not in the store by then is given up and not waited for; the
        changelogs have it."""
        self._host, self._last = host, True
        done: set[int] = set()
        while (left := until - time.monotonic()) > 0:
            waiting = self._behind(done)
            for owner in waiting:
                if len(self._busy) >= UPLOADS_MAX:
                    break
                if owner.number not in self._busy:
                    done.add(owner.number)
                    self._begin(owner)
            if not self._tasks:
                break
            await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        given_up = sorted(self._busy | {owner.number for owner in self._behind(done)})
        if given_up:
            self._log.warning("checkpoints_cut_short", partitions=given_up)
        self.stop()

    def _behind(self, but: Collection[int]) -> list[Partition]:
        tails = {
            number: self._schedule.behind(number, _records(owner))
            for number, owner in self._live().items()
            if number not in but
        }
        live = self._live()
        return [live[number] for number in sorted(tails, key=lambda one: (-tails[one], one)) if tails[number]]

    def _live(self) -> dict[int, Partition]:
        return {
            owner.number: owner
            for owner in self._host.assignment
            if owner.state is State.LIVE and owner.written is not None
        }

    def _begin(self, owner: Partition) -> None:
        self._busy.add(owner.number)
        task = asyncio.get_running_loop().create_task(self._one(owner))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look(self, now: float) -> None:
        if self._last:
            return
        live = self._live()
        due = self._schedule.due(now, [(n, owner.epoch, _records(owner)) for n, owner in live.items()])
        self._show(now, live)
        for number in list(self._hashes):
            if number not in live and number not in self._busy:
                del self._hashes[number]
        for number in due:
            if len(self._busy) >= UPLOADS_MAX:
                break
            if number not in self._busy:
                self._begin(live[number])

    def _show(self, now: float, live: dict[int, Partition]) -> None:
        for number in self._shown - live.keys():
            self._metrics.forget("refold_checkpoint_age_seconds", partition=str(number))
        for number, owner in live.items():
            age = self._schedule.age_s(number, now, _records(owner))
            self._metrics.gauge("refold_checkpoint_age_seconds", age, partition=str(number))
        self._shown = set(live)

    async def _one(self, owner: Partition) -> None:
        number, started = owner.number, time.monotonic()
        loop = asyncio.get_running_loop()
        directory = self._directory(number)
        records = _records(owner)
        try:
            if not await self._host.on_disk(functools.partial(self._take, owner, directory)):
                return
            hashes = self._hashes.setdefault(number, Hashes())
            published = await loop.run_in_executor(self._pool, self._upload, number, directory, hashes)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not self._stopped.is_set():
                self._failed(number, error)
            return
        finally:
            self._busy.discard(number)
        self._schedule.done(number, time.monotonic(), records)
        self._report(number, published, time.monotonic() - started)

    def _take(self, owner: Partition, directory: Path) -> bool:
        """Disk thread. False when the partition is on its way out, and its DB perhaps closed."""
        written = owner.written
        if owner.cancelled.is_set() or written is None:
            return False
        shutil.rmtree(directory, ignore_errors=True)
        return written.store.checkpoint(directory)

    def _upload(self, number: int, directory: Path, hashes: Hashes) -> Published:
        """Upload thread."""
        scratch = directory.with_name(f"{directory.name}.scratch")
        try:
            frontier = stored_frontier(directory, self._memory)
            if frontier is None:
                raise StorageError(f"the DB of partition {number} has no frontier row: it was never written")
            scratch.mkdir(exist_ok=True)
            upload = Upload(
                self._remote,
                number,
                writer=self._config.instance,
                keep=self._config.checkpoint_keep,
                points=self._points,
                now_ms=self._now_ms,
                stopped=self._stopped.is_set,
            )
            return upload.run(
                directory,
                frontier,
                hashes,
                scratch,
                lambda to: write_filter(directory, self._memory, to, upload.check),
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            shutil.rmtree(scratch, ignore_errors=True)

    def _failed(self, number: int, error: Exception) -> None:
        self._metrics.count("refold_checkpoints_total", outcome="failed")
        self._schedule.failed(number, time.monotonic())
        text = str(error) if isinstance(error, RefoldError | OSError) else type(error).__name__
        self._log.warning("checkpoint_failed", partition=number, error=text)

    def _report(self, number: int, published: Published, seconds: float) -> None:
        outcome = "unchanged" if published.checkpoint is None else "done"
        self._metrics.count("refold_checkpoints_total", outcome=outcome)
        self._metrics.count("refold_checkpoint_bytes_total", published.uploaded_bytes, outcome="uploaded")
        self._metrics.count("refold_checkpoint_bytes_total", published.reused_bytes, outcome="reused")
        if published.checkpoint is not None:
            self._metrics.observe("refold_checkpoint_seconds", seconds)
            self._log.info(
                "checkpoint_published",
                partition=number,
                checkpoint=published.checkpoint,
                uploaded_files=published.uploaded_files,
                uploaded_bytes=published.uploaded_bytes,
                reused_bytes=published.reused_bytes,
                pruned_files=len(published.pruned.files),
                seconds=round(seconds, 3),
            )
        if published.pruned.refused is not None:
            self._log.warning("checkpoints_not_pruned", partition=number, reason=published.pruned.refused)

    def _directory(self, number: int) -> Path:
        return self._config.store_dir / f"p{number:05d}{_SUFFIX}"


def clear(store_dir: Path) -> None:
    """What a killed process left of copies and downloads. Before anything is restored or copied; blocks."""
    # RocksDB makes a copy under another name and renames it: its hard links hold what compaction deletes.
    for pattern in (f"p*{_SUFFIX}", f"p*{_SUFFIX}.tmp", f"p*{_SUFFIX}.scratch", f"p*{FETCHED}"):
        for path in store_dir.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _records(owner: Partition) -> int:
    """Records of both sources committed: what the events between two checkpoints are counted by."""
    return max(0, owner.committed) + max(0, owner.batches_committed)
