"""Which partition's sources deliver nothing although there is something to deliver.

librdkafka can lose a partition: it is assigned, resumed and started, and is never fetched again, because an
order to pause for a rebalance was carried out after the one to resume (`Poller._begin`). Its records waited
until the worker was started again, while other partitions went on. So a partition whose records wait and
whose position does not move is begun anew. Where it waits for a reason (batches that are not here yet, an
open transaction) that costs a fetch and changes nothing.

Pure: time comes as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: A fetch that finds something is answered in milliseconds. A commit that takes longer than this may hold the
#: position as well; then what waits to be folded is fetched once more, and that is all.
STALLED_S: Final = 5.0

#: After each attempt twice as long, because the reason may be one that passes by itself.
STALLED_S_MAX: Final = 80.0

#: Where all that waits is one record, it is most likely a marker, which is never read: an idle partition
#: would be fetched anew for ever. Three attempts take 35 s; the next record that arrives starts them again.
LONE_ATTEMPTS_MAX: Final = 3


@dataclass(slots=True)
class _Still:
    """Where a partition stands, and when that is to be looked at again."""

    epoch: int
    at: tuple[int, int]
    due: float
    wait_s: float
    lone_attempts: int = 0


class Stalls:
    """One entry per partition that has something to read. Not thread-safe."""

    def __init__(self) -> None:
        self._still: dict[int, _Still] = {}

    def look(self, number: int, epoch: int, at: tuple[int, int], waiting: int, now: float) -> bool:
        """Whether the sources of partition ``number`` should be begun anew.

        ``epoch``: of its assignment. ``at``: the next offset to be folded of inbox and batches. ``waiting``:
        how many offsets the inbox holds from there on. ``now``: monotonic seconds; to be called every second
        or so.
        """
        still = self._still.get(number)
        if waiting <= 0:
            if still is not None:
                del self._still[number]
            return False
        if still is None or still.epoch != epoch or still.at != at:
            self._still[number] = _Still(epoch, at, now + STALLED_S, STALLED_S)
            return False
        if now < still.due:
            return False
        if waiting == 1:
            if still.lone_attempts == LONE_ATTEMPTS_MAX:
                return False
            still.lone_attempts += 1
        still.wait_s = min(still.wait_s * 2, STALLED_S_MAX)
        still.due = now + still.wait_s
        return True

    def keep(self, numbers: set[int]) -> None:
        """Forget every partition but these."""
        for number in self._still.keys() - numbers:
            del self._still[number]
