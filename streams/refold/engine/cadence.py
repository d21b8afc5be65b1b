"""When the next commit may start. Pure: all times are arguments, in seconds of one monotonic clock.

A transaction costs the broker about 2 + 0.4 ms × partitions of CPU (measured), and a marker of 78 bytes per
partition, so commits are spaced; an idle worker commits at once because a lone event should not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: A gap without events after which the next one commits at once.
IDLE_MS: Final = 10

#: Not sooner than this after the coordinator has answered the last one's end: it still writes its markers,
#: and to ask for the next transaction meanwhile costs a refused request (``clients.RETRY_BACKOFF_MS``).
#: Writing the disk, telling the rulings, sealing and changing threads twice take 1 to 2 ms of the 2 that
#: markers take.
MARKERS_MS: Final = 1

#: Less than this is not worth a timer: the event loop's have a resolution of 1 ms.
WORTH_WAITING_S: Final = 0.0005

#: More workers mean more transactions on the same brokers: at least this much of spacing for each.
PER_WORKER_MS: Final = 1

#: A transaction over more partitions than this costs twice as much (16 -> 7.8 ms, 64 -> 23 ms): space it
#: double.
PARTITIONS_BEFORE_DOUBLING: Final = 16

#: Spacing while more than a chunk waits to be folded: latency is the backlog then, and every commit writes
#: one state record per touched session, so larger commits write fewer. At 30 000 events/s over 3 000 sessions
#: 250 ms are 7 500 events and 0.4 state records for each. The overlay's byte limit comes first for large
#: ones.
SATURATED_MS: Final = 250


@dataclass(frozen=True, slots=True)
class Cadence:
    interval_min_ms: int

    def interval_ms(self, *, workers: int, partitions: int) -> int:
        base = max(self.interval_min_ms, workers * PER_WORKER_MS)
        return base * 2 if partitions > PARTITIONS_BEFORE_DOUBLING else base

    def delay_s(
        self,
        now: float,
        *,
        last_start: float,
        last_end: float,
        first_event: float,
        previous_event: float,
        saturated: bool,
        workers: int,
        partitions: int,
    ) -> float:
        """Seconds to wait before the next commit, 0 for now.

        ``last_end``: when the last transaction's end was answered; ``first_event``: when the oldest event of
        the waiting overlay was folded; ``previous_event``: the last one before it.
        """
        due = last_end + MARKERS_MS / 1000
        if saturated:
            due = max(due, last_start + max(SATURATED_MS, self.interval_min_ms) / 1000)
        elif first_event - previous_event < IDLE_MS / 1000:
            due = max(due, last_start + self.interval_ms(workers=workers, partitions=partitions) / 1000)
        return due - now if due - now > WORTH_WAITING_S else 0.0
