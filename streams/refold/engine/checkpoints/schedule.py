"""When a partition's next checkpoint is due: every interval, or as soon as enough records were read. Pure.

The first one of a partition is due after a random part of the interval, so that a fleet that has started
together does not upload together. Nothing is due where nothing was committed since the last one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: After a failed upload, or the interval where that is shorter.
RETRY_S: Final = 60.0

#: The first checkpoint comes not before this part of the interval: a restart loop uploads nothing.
FIRST_PART_MIN: Final = 0.25


@dataclass(slots=True)
class _Due:
    epoch: int
    at: float
    #: Records of both sources committed at the last checkpoint; -1: none of this owner.
    records: int
    taken: float


class Schedule:
    def __init__(self, interval_s: float, records_max: int, *, seed: int | None = None) -> None:
        self._interval_s = interval_s
        self._records_max = records_max
        self._random = random.Random(seed)
        self._due: dict[int, _Due] = {}

    def due(self, now: float, owned: Iterable[tuple[int, int, int]]) -> list[int]:
        """Partitions to be taken now, the longest overdue first. ``owned``: number, assignment epoch and
        records committed of each that is live; the others are forgotten."""
        found: dict[int, _Due] = {}
        ready = []
        for number, epoch, records in owned:
            entry = self._due.get(number)
            if entry is None or entry.epoch != epoch:
                first = self._interval_s * self._random.uniform(FIRST_PART_MIN, 1.0)
                entry = _Due(epoch, now + first, -1, now)
            found[number] = entry
            many = records - max(entry.records, 0) >= self._records_max and entry.records >= 0
            if records != entry.records and (now >= entry.at or many):
                ready.append((entry.at, number))
        self._due = found
        return [number for _, number in sorted(ready)]

    def done(self, number: int, now: float, records: int) -> None:
        """A checkpoint that holds the first ``records`` is in the store."""
        entry = self._due.get(number)
        if entry is not None:
            entry.at, entry.records, entry.taken = now + self._interval_s, records, now

    def failed(self, number: int, now: float) -> None:
        entry = self._due.get(number)
        if entry is not None:
            entry.at = now + min(RETRY_S, self._interval_s)
            # Enough new records must not mean an attempt per second.
            entry.records = -1

    def behind(self, number: int, records: int) -> int:
        """Records committed since the last checkpoint of this owner; all where there is none yet."""
        entry = self._due.get(number)
        return records if entry is None or entry.records < 0 else records - entry.records

    def age_s(self, number: int, now: float, records: int) -> float:
        """How long ago the last checkpoint was, 0 when it holds everything."""
        entry = self._due.get(number)
        return 0.0 if entry is None or entry.records == records else now - entry.taken
