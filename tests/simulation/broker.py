"""The simulated cluster: topics, the transaction coordinator and one group, and what an operator does to
them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from .group import Group
from .kernel import Kernel, Process
from .log import Headers, PartitionLog
from .transactions import Transactions

#: How long the broker keeps tombstones. Virtual, so short that a run lives through it.
DELETE_RETENTION_MS: Final = 6_000


class Broker:
    def __init__(
        self, kernel: Kernel, topics: tuple[str, ...], partitions: int, group: str, chance: random.Random
    ) -> None:
        self.kernel = kernel
        self.partitions = partitions
        self.logs = {
            (topic, number): PartitionLog(topic, number) for topic in topics for number in range(partitions)
        }
        #: Partitions whose records reach no consumer before this virtual time.
        self._slow: dict[tuple[str, int], int] = {}
        self.group = Group(kernel, group, partitions, chance)
        self.transactions = Transactions(kernel, self.log, self.group.pending, self.group.settle)

    def set_clock(self, topics: Sequence[str], skew_ms: int) -> None:
        """The broker's clock is wrong by so much from now on, as far as it stamps records of these topics."""
        for (topic, _), log in self.logs.items():
            if topic in topics:
                log.skew_ms = skew_ms

    def slow(self, topic: str, partition: int, duration_us: int) -> None:
        self._slow[topic, partition] = self.kernel.now_us + duration_us
        # So that somebody looks again when it is over.
        self.kernel.after(duration_us, lambda: None)

    def reaches(self, process: Process | None, topic: str, partition: int) -> bool:
        """Whether records of the partition come through to a consumer of this process at the moment."""
        if process is not None and process.cut:
            return False
        return not self._slow or self._slow.get((topic, partition), 0) <= self.kernel.now_us

    def log(self, topic: str, partition: int) -> PartitionLog:
        return self.logs[topic, partition]

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> int:
        """A plain producer's record."""
        return self.log(topic, partition).append(self.kernel.now_ms, key, value, headers)

    def hang(self, topic: str, partition: int, value: bytes) -> int:
        """An open transaction no coordinator knows (KIP-890's hanging transaction). Returns its pid."""
        pid = self.transactions.fresh_pid()
        self.log(topic, partition).append(self.kernel.now_ms, b"hung/transaction", value, None, pid)
        return pid

    def end_hung(self, topic: str, partition: int, pid: int) -> None:
        """``kafka-transactions.sh abort``."""
        self.log(topic, partition).mark(self.kernel.now_ms, pid, "abort")

    def compact(self, topic: str, partition: int, up_to: int) -> int:
        return self.log(topic, partition).compact(
            up_to=up_to, drop_tombstones_before_ms=self.kernel.now_ms - DELETE_RETENTION_MS
        )
