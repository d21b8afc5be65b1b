"""A worker's standbys: what is copied here, the hand-over to a restore and back, reads, and the reports.

Rule S3, the hand-over: a partition that is assigned is *withheld* at once (:meth:`Standbys.withhold`), its
restore awaits :meth:`Standbys.closed`, and only after it was given up, its DB closed, may it be copied again
(:meth:`Standbys.permit`). So a directory has one user at a time, whatever the group's description says: that
may be seconds old.

Everything without a comment runs on the event loop. What fails is logged, counted by its consequences, and
tried again; it never stops the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.api.view import PartitionRow, StandbyAnswer
from refold.engine import rows
from refold.engine.config import EngineConfig
from refold.engine.metrics import Metrics
from refold.engine.points import Points
from refold.engine.restore import Restorer
from refold.engine.standby import roster
from refold.engine.standby.copy import Copy, Look
from refold.engine.standby.placement import Roster, kept_by
from refold.engine.standby.tail import Tail
from refold.engine.store import UnreadableStore
from refold.engine.takeover import Cluster
from refold.errors import RefoldError

#: How often the stable ends are asked for: what a copy says of its age is no finer than this.
LOOK_S: Final = 1.0

#: How often the group is described besides after each rebalance. A copy is begun or ended so much later.
MEMBERS_S: Final = 3.0

#: A copy that failed (a full disk, a damaged file) is tried again after this.
AGAIN_S: Final = 30.0


class Standbys:
    """One per worker with ``worker.standby_replicas`` > 0."""

    def __init__(
        self,
        config: EngineConfig,
        admin: AdminClient,
        cluster: Cluster,
        restorer: Restorer,
        partitions: int,
        points: Points,
        metrics: Metrics,
        log: Any,
    ) -> None:
        """``partitions``: how many the topics have."""
        self._config = config
        self._admin = admin
        self._cluster = cluster
        self._partitions = partitions
        self._metrics = metrics
        self._log = log
        self._now_ms = restorer.now_ms
        self._loop = asyncio.get_running_loop()
        self._tail = Tail(config, restorer, points, lost=self._lost, log=log)
        self._roster: Roster | None = None
        self._described_at = float("-inf")
        #: Owned here, being assigned, or being given up.
        self._withheld: set[int] = set()
        #: Opened and not told to be closed.
        self._open: set[int] = set()
        self._closing: dict[int, Future[None]] = {}
        self._not_before: dict[int, float] = {}
        self._soon = asyncio.Event()
        self._stopped = False
        #: That the cluster does not answer is said once.
        self._said = False
        self._shown: set[int] = set()
        self._counted = (0, 0)
        self._tail.start()

    # --- the life of a worker ------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled or :meth:`stop`."""
        try:
            while not self._stopped:
                await self._look()
                self._show()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._soon.wait(), LOOK_S)
                self._soon.clear()
        except Exception as error:
            # The worker does without: nothing that it owns depends on copies.
            self._log.error("standbys_failed", error=type(error).__name__, exc_info=error)
            self.stop()

    def stop(self) -> None:
        """Returns at once: copies are kept and closed, and none is begun any more."""
        self._stopped = True
        self._soon.set()
        self._tail.stop()

    async def stopped(self, seconds: float) -> None:
        """After :meth:`stop`: until the copies are closed, at most so long."""
        await self._loop.run_in_executor(None, self._tail.join, seconds)

    # --- the hand-over -------------------------------------------------------------------------------

    def withhold(self, numbers: Iterable[int]) -> None:
        """The partitions are assigned here: their copies end, and none is begun."""
        for number in numbers:
            self._withheld.add(number)
            # Also where none is known of: whether the tail has the directory open is the tail's to say.
            self._end(number)
        self._again()

    async def closed(self, number: int) -> None:
        """After :meth:`withhold`: until the partition's DB is closed."""
        closing = self._closing.pop(number, None)
        if closing is not None:
            await asyncio.wrap_future(closing)

    def permit(self, number: int) -> None:
        """The partition was given up and its DB is closed: it may be copied."""
        self._withheld.discard(number)
        self._again()

    def _again(self) -> None:
        """Describe the group again: it has changed."""
        self._described_at = float("-inf")
        self._soon.set()

    def _end(self, number: int) -> None:
        self._open.discard(number)
        self._closing[number] = self._tail.close(number)

    def _lost(self, number: int, why: str, error: str | None) -> None:
        """The tail's thread."""
        self._loop.call_soon_threadsafe(self._try_again, number, why, error)

    def _try_again(self, number: int, why: str, error: str | None) -> None:
        self._metrics.count("refold_standby_rebuilds_total", reason=why)
        self._log.warning("standby_lost", partition=number, reason=why, error=error)
        self._open.discard(number)
        if error is not None:
            self._not_before[number] = time.monotonic() + AGAIN_S
        self._soon.set()

    # --- who keeps what, and how far it is -----------------------------------------------------------

    async def _look(self) -> None:
        failed: Exception | None = None
        # Each for itself: a copy that cannot be begun must not keep the others from knowing their age.
        for part in (self._describe, self._follow, self._ask_ends):
            try:
                await part()
            except (KafkaException, RefoldError) as error:
                failed = failed or error
        if failed is not None and not self._said:
            self._log.warning("standbys_unknown", error=str(failed), effect="copies stay as they are")
        self._said = failed is not None

    async def _describe(self) -> None:
        if time.monotonic() - self._described_at < MEMBERS_S:
            return
        asked_at = time.monotonic()
        found = await self._call(roster.look, self._admin, self._config.topics)
        if found is not None and self._config.instance in found.members:
            # While it rebalances, and while we are no member, what was known stands.
            self._roster = found
            self._described_at = asked_at

    async def _follow(self) -> None:
        """Begin and end copies until they are those that the placement says."""
        if self._roster is None:
            return
        k, instance = self._config.standby_replicas, self._config.instance
        wanted = kept_by(instance, self._roster, self._partitions, k) - self._withheld
        for number in self._open - wanted:
            self._end(number)
        now = time.monotonic()
        for number in sorted(wanted - self._open):
            if self._not_before.get(number, 0.0) > now:
                continue
            marked_ms = self._now_ms()
            try:
                marks = await self._call(self._cluster.marks, number)
            except (KafkaException, RefoldError):
                # A partition without a leader, perhaps: the next look goes on behind it. One each time, since
                # it may have lasted until the request's end.
                self._not_before[number] = time.monotonic() + AGAIN_S
                raise
            # It may have been assigned meanwhile.
            if number not in self._withheld and number not in self._open and not self._stopped:
                self._closing.pop(number, None)
                self._open.add(number)
                self._tail.open(number, marks, marked_ms)

    async def _ask_ends(self) -> None:
        numbers = sorted(self._tail.copies)
        if not numbers:
            return
        at, wall_ms = time.monotonic(), self._now_ms()
        found = await self._call(roster.stable_ends, self._admin, self._config.topics, numbers)
        for number, ends in found.items():
            copy = self._tail.copies.get(number)
            # One that was opened since is another copy: what was asked before it holds for it as well.
            if copy is not None:
                copy.looked(Look(at, wall_ms, ends))

    async def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(None, functools.partial(call, *arguments))

    # --- what is asked -------------------------------------------------------------------------------

    def answer(self, partition: int, key: bytes) -> StandbyAnswer | None:
        """The session as the copy has it, labelled; ``None`` where there is none that can say anything."""
        copy = self._tail.copies.get(partition)
        try:
            found = None if copy is None else copy.row(key)
        except UnreadableStore:
            self._tail.damaged(partition)
            found = None
        if found is None:
            return None
        row, fresh = found
        return StandbyAnswer(
            seq=0 if row is None else rows.seq_of(row),
            snapshot=None if row is None else rows.snapshot_of(row),
            position=fresh.position,
            behind=fresh.behind,
            age_s=fresh.age_s or 0.0,
        )

    def partitions(self) -> list[PartitionRow]:
        """A row per copy, by number."""
        return [_row(copy) for _, copy in sorted(self._tail.copies.copy().items())]

    def _show(self) -> None:
        metrics, copies = self._metrics, self._tail.copies.copy()
        metrics.gauge("refold_standby_partitions", len(copies))
        for number in self._shown - copies.keys():
            for name in ("refold_standby_lag_records", "refold_standby_age_seconds"):
                metrics.forget(name, partition=str(number))
        for number, copy in copies.items():
            fresh = copy.freshness()
            metrics.gauge("refold_standby_lag_records", fresh.behind, partition=str(number))
            age = fresh.age_s if fresh.age_s is not None else time.monotonic() - copy.opened_at
            metrics.gauge("refold_standby_age_seconds", age, partition=str(number))
        self._shown = set(copies)
        before, self._counted = self._counted, (self._tail.records, self._tail.bytes)
        metrics.count("refold_standby_records_total", self._counted[0] - before[0])
        metrics.count("refold_standby_bytes_total", self._counted[1] - before[1])


def _row(copy: Copy) -> PartitionRow:
    fresh = copy.freshness()
    return PartitionRow(
        partition=copy.partition,
        state="standby",
        seconds=round(time.monotonic() - copy.opened_at, 3),
        progress=round(copy.progress, 4),
        position=-1,
        committed=-1,
        lag=None,
        behind=fresh.behind,
        age_s=None if fresh.age_s is None else round(fresh.age_s, 3),
    )
