"""When did work go on? Watches the journal in read_committed from the side.

A partition has recovered from a death when a journal record *produced after the death* is readable:
records the dead worker committed just before may arrive just after, so arrival alone would be too kind.
The figure includes detection, take-over or restart, restore, the first commit and its visibility to a
reader; it is an upper bound when the partition had nothing to do for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_END, Message

from refold.ops.fleet.watch import Watch


class JournalWatch(Watch):
    """A thread that remembers, per partition and open death, the first record after it. Close it."""

    def __init__(self, config: Mapping[str, Any], topic: str, partitions: int) -> None:
        self._lock = threading.Lock()
        self._open: list[tuple[int, int, dict[int, float]]] = []
        self.records = 0
        super().__init__(config, topic, dict.fromkeys(range(partitions), OFFSET_END), "watch")

    def died(self, partitions: Iterable[int]) -> int:
        """Note a death now; returns a ticket for :meth:`recovered_ms`."""
        waiting = dict.fromkeys(partitions, -1.0)
        with self._lock:
            self._open.append((time.time_ns() // 1_000_000, time.monotonic_ns(), waiting))
            return len(self._open) - 1

    def recovered_ms(self, ticket: int) -> float | None:
        """Milliseconds until the last of the death's partitions went on; ``None`` while one has not."""
        with self._lock:
            waiting = self._open[ticket][2]
            return None if any(at < 0 for at in waiting.values()) else max(waiting.values(), default=0.0)

    def seen(self, message: Message) -> None:
        self.records += 1
        self._note(message.partition(), message.timestamp()[1])

    def _note(self, partition: int, produced_ms: int) -> None:
        now = time.monotonic_ns()
        with self._lock:
            for wall_ms, at, waiting in self._open:
                if waiting.get(partition, 0.0) < 0 and produced_ms > wall_ms:
                    waiting[partition] = (now - at) / 1e6
