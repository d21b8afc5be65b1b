"""How far behind the log a worker's live partitions are, looked at once a second; and what is done about one
whose records wait although nothing holds them (:mod:`refold.engine.stalls`). A look that fails asks whether
the cluster is there at all (:mod:`refold.topology.outage`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException

from refold.engine.lifecycle import State
from refold.engine.metrics import Metrics
from refold.engine.stalls import Stalls
from refold.engine.takeover import Cluster
from refold.topology.outage import Outage

if TYPE_CHECKING:
    from refold.engine.assignment import Partition
    from refold.engine.engine import Engine

#: A transaction marker at the end of an inbox partition (after a forward or a transactional producer) counts
#: as one record of lag that is never read; it must not look stale.
MARKERS_MAX: Final = 1


class Freshness:
    """``now_ms``: the wall clock in milliseconds, because the records' ages are told by theirs."""

    def __init__(
        self,
        engine: Engine,
        cluster: Cluster,
        metrics: Metrics,
        outage: Outage,
        *,
        log: Any,
        now_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._cluster = cluster
        self._metrics = metrics
        self._outage = outage
        self._log = log
        self._now_ms = now_ms
        self._stalls = Stalls()
        #: By partition that this worker has ruled on nothing of yet: since when records have been waiting, in
        #: ms of the wall clock. Their own times are not known before they are read.
        self._waiting_since_ms: dict[int, int] = {}

    async def look(self, before: float) -> float:
        """Sets lag and age per partition; the age in seconds of the oldest unruled record over all of them,
        ``before`` where the cluster does not answer. Waits for one request."""
        live = [owner for owner in self._engine.assignment if owner.state is State.LIVE]
        try:
            # One without live partitions asks about any, to know whether the cluster answers.
            ends = await asyncio.get_running_loop().run_in_executor(
                None, self._cluster.inbox_ends, [owner.number for owner in live] or [0]
            )
        except KafkaException:
            # What is known stays.
            self._outage.doubt()
            return before
        self._outage.answered()
        now, oldest = time.monotonic(), 0.0
        for owner in live:
            if owner.state is not State.LIVE:
                continue
            end = ends.get(owner.number, 0)
            lag = owner.lag = max(0, end - owner.committed)
            age = self._age_s(owner, lag)
            oldest = max(oldest, age)
            name = str(owner.number)
            self._metrics.gauge("refold_lag_records", lag, partition=name)
            self._metrics.gauge("refold_staleness_seconds", age, partition=name)
            self._see_to(owner, end, now)
        numbers = {owner.number for owner in live}
        self._stalls.keep(numbers)
        for number in self._waiting_since_ms.keys() - numbers:
            del self._waiting_since_ms[number]
        return oldest

    def _age_s(self, owner: Partition, lag: int) -> float:
        """How old what waits is at most: as old as what was ruled on last, or waiting since it was seen."""
        if lag <= MARKERS_MAX or owner.ruled_ms:
            self._waiting_since_ms.pop(owner.number, None)
        if lag <= MARKERS_MAX:
            return 0.0
        now_ms = self._now_ms()
        since_ms = owner.ruled_ms or self._waiting_since_ms.setdefault(owner.number, now_ms)
        return max(0.0, (now_ms - since_ms) / 1000)

    def _see_to(self, owner: Partition, end: int, now: float) -> None:
        # Who has parked it reads it again when there is room.
        unread = end - owner.position
        waiting = unread if owner.parked < 0 and owner.full < 0 else 0
        at = (owner.position, owner.batches_position)
        if not self._stalls.look(owner.number, owner.epoch, at, waiting, now):
            return
        self._metrics.count("refold_reads_begun_anew_total")
        # One may be a marker, which is never read.
        say = self._log.warning if unread > MARKERS_MAX else self._log.debug
        say("reads_begun_anew", partition=owner.number, offset=owner.position, unread=unread)
        self._engine.read_anew(owner)
