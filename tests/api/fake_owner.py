"""An owner with a dict for its state: the view the HTTP tests serve from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from refold.api.view import (
    GenerationAnswer,
    HistoryAnswer,
    PartitionRow,
    PartitionStatus,
    RulingLine,
    StandbyAnswer,
    WorkerHealth,
)
from refold.core.slots import SlotMap

PARTITIONS = 4


class FakeView:
    """Four partitions, live unless a test says otherwise; tests change it and call :meth:`changed`."""

    def __init__(self) -> None:
        self.slots = SlotMap(PARTITIONS)
        self.statuses: dict[int, PartitionStatus] = {}
        self.snapshots: dict[bytes, tuple[int, bytes]] = {}
        self.copies: dict[bytes, StandbyAnswer] = {}
        self.histories: dict[bytes, HistoryAnswer] = {}
        self.history_calls: list[tuple[bytes, int, int]] = []
        self.generations: dict[tuple[bytes, str], GenerationAnswer] = {}
        #: (tenant, subject) -> partition -> model -> framed row.
        self.usages: dict[tuple[str, str], dict[int, dict[str, bytes]]] = {}
        #: Of partitions that are still restored while they serve.
        self.unknown: set[bytes] = set()
        self.rulings: dict[tuple[int, int], RulingLine] = {}
        self.frontiers: dict[int, int] = {}
        self.sinks: dict[str, list[Callable[[bytes], None]]] = {}
        self.healthy = WorkerHealth(startup=True, ready=True, live=True, detail={"partitions": PARTITIONS})
        self.subscribed = asyncio.Event()
        self._changed = asyncio.Condition()

    async def changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def rule(self, producer_id: str, line: RulingLine) -> None:
        """Commit a ruling: remembered, streamed, waited for."""
        self.rulings[line.partition, line.offset] = line
        self.frontiers[line.partition] = max(self.frontiers.get(line.partition, 0), line.offset + 1)
        for sink in list(self.sinks.get(producer_id, ())):
            sink(line.to_bytes() + b"\n")
        await self.changed()

    def partition_of(self, key: bytes) -> int:
        return self.slots.partition(key)

    def status(self, partition: int) -> PartitionStatus:
        return self.statuses.get(partition, "live" if partition < PARTITIONS else "absent")

    def session_status(self, key: bytes) -> PartitionStatus:
        return "restoring" if key in self.unknown else self.status(self.partition_of(key))

    def retry_after_s(self, partition: int) -> float:
        return 0.05

    def frontier(self, partition: int) -> int:
        return self.frontiers.get(partition, 0)

    def snapshot(self, key: bytes) -> bytes | None:
        found = self.snapshots.get(key)
        return None if found is None else found[1]

    def generation(self, key: bytes, generation_id: str) -> GenerationAnswer | None:
        return self.generations.get((key, generation_id))

    async def wait_generation(self, key: bytes, generation_id: str, timeout_s: float) -> bool:
        async with self._changed:
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: (key, generation_id) in self.generations), timeout_s
                )
            except TimeoutError:
                return False
        return True

    async def usage(self, tenant: str, subject: str, model: str) -> tuple[dict[int, list[bytes]], list[int]]:
        found: dict[int, list[bytes]] = {}
        for partition in range(PARTITIONS):
            if self.status(partition) == "live":
                rows = self.usages.get((tenant, subject), {}).get(partition, {})
                found[partition] = [record for name, record in rows.items() if model in ("*", name)]
        restoring = [p for p in range(PARTITIONS) if self.status(p) in ("waiting", "restoring")]
        return found, restoring

    def seq_of(self, key: bytes) -> int:
        found = self.snapshots.get(key)
        return 0 if found is None else found[0]

    def standby(self, key: bytes) -> StandbyAnswer | None:
        return self.copies.get(key)

    def history(self, key: bytes, after: int, limit: int) -> HistoryAnswer:
        self.history_calls.append((key, after, limit))
        return self.histories[key]

    async def wait_seq(self, key: bytes, min_seq: int, timeout_s: float) -> bool:
        return await self._wait(lambda: self.seq_of(key) >= min_seq, timeout_s)

    def ruling(self, partition: int, offset: int) -> RulingLine | None:
        return self.rulings.get((partition, offset))

    async def wait_ruling(self, partition: int, offset: int, timeout_s: float) -> RulingLine | None:
        await self._wait(lambda: (partition, offset) in self.rulings, timeout_s)
        return self.ruling(partition, offset)

    def subscribe_rulings(self, producer_id: str, sink: Callable[[bytes], None]) -> Callable[[], None]:
        self.sinks.setdefault(producer_id, []).append(sink)
        self.subscribed.set()
        return lambda: self.sinks[producer_id].remove(sink)

    def partitions(self) -> list[PartitionRow]:
        return [
            PartitionRow(0, "live", 2.5, 1.0, 7, 7, 0),
            PartitionRow(1, "restoring", 0.5, 0.25, -1, -1, None),
            PartitionRow(2, "standby", 9.5, 1.0, -1, -1, None, 3, 0.4),
        ]

    def health(self) -> WorkerHealth:
        return self.healthy

    async def _wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            return holds()
        return True
