"""Committed rulings: a bounded ring per partition, waiters, and subscribers by producer id.

Only :meth:`RulingBook.publish` adds to it, after the commit. All on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from refold.core.rulings import Duplicate
from refold.engine.overlay import Noted, PartitionOverlay, Ruled
from refold.wire.owner import RulingLine

#: Rulings remembered over all partitions: 65 s at 1 000 events/s, 2 s at full speed; a producer that asks
#: later reads the session instead. About 250 bytes each: 16 MiB.
RULINGS_MAX: Final = 65_536

#: But never fewer than this for one partition.
RULINGS_PER_PARTITION_MIN: Final = 1_024

Sink = Callable[[bytes], None]


class RulingBook:
    def __init__(self) -> None:
        self._rings: dict[int, dict[int, Ruled]] = {}
        self._frontiers: dict[int, int] = {}
        self._waiters: dict[int, dict[int, list[asyncio.Future[RulingLine | None]]]] = {}
        self._sinks: dict[str, list[Sink]] = {}

    def open(self, partition: int, frontier: int) -> None:
        """The partition is live here from ``frontier`` on."""
        self._rings[partition] = {}
        self._frontiers[partition] = frontier
        self._settle(partition)

    def close(self, partition: int) -> None:
        self._rings.pop(partition, None)
        self._frontiers.pop(partition, None)
        for futures in self._waiters.pop(partition, {}).values():
            for future in futures:
                if not future.done():
                    future.set_result(None)

    def frontier(self, partition: int) -> int:
        return self._frontiers.get(partition, 0)

    def publish(self, part: PartitionOverlay) -> None:
        partition = part.partition
        ring = self._rings.get(partition)
        if ring is None:
            return
        ring.update(part.rulings)
        self._frontiers[partition] = part.offset
        excess = len(ring) - max(RULINGS_PER_PARTITION_MIN, RULINGS_MAX // len(self._rings))
        if excess > 0:
            for offset in list(islice(ring, excess)):
                del ring[offset]
        if self._waiters.get(partition):
            self._settle(partition)
        if self._sinks:
            self._tell(part)

    def get(self, partition: int, offset: int) -> RulingLine | None:
        ruled = self._rings.get(partition, {}).get(offset)
        return None if ruled is None else line(partition, offset, ruled)

    async def wait(self, partition: int, offset: int, timeout_s: float) -> RulingLine | None:
        found = self.get(partition, offset)
        if found is not None or offset < self.frontier(partition) or partition not in self._rings:
            return found
        future: asyncio.Future[RulingLine | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiters.setdefault(partition, {})
        waiting.setdefault(offset, []).append(future)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return None
        finally:
            futures = waiting.get(offset)
            if futures and future in futures:
                futures.remove(future)
                if not futures:
                    waiting.pop(offset, None)

    def subscribe(self, producer_id: str, sink: Sink) -> Callable[[], None]:
        sinks = self._sinks.setdefault(producer_id, [])
        sinks.append(sink)

        def unsubscribe() -> None:
            if sink in sinks:
                sinks.remove(sink)
            if not sinks and self._sinks.get(producer_id) is sinks:
                del self._sinks[producer_id]

        return unsubscribe

    def _settle(self, partition: int) -> None:
        waiting = self._waiters.get(partition, {})
        frontier, ring = self._frontiers[partition], self._rings[partition]
        # Rulings beyond the frontier: where an older record waits for its session (rule H5).
        for offset in [offset for offset in waiting if offset < frontier or offset in ring]:
            answer = self.get(partition, offset)
            for future in waiting.pop(offset):
                if not future.done():
                    future.set_result(answer)

    def _tell(self, part: PartitionOverlay) -> None:
        lines: dict[str, list[bytes]] = {}
        for offset, ruled in part.rulings.items():
            producer = ruled[1]
            if producer is not None and producer in self._sinks:
                lines.setdefault(producer, []).append(line(part.partition, offset, ruled).to_bytes() + b"\n")
        for producer, parts in lines.items():
            block = b"".join(parts)
            for sink in list(self._sinks[producer]):
                sink(block)


def line(partition: int, offset: int, ruled: Ruled) -> RulingLine:
    ruling = ruled[0]
    if isinstance(ruling, int):
        return RulingLine(partition, offset, "accepted", ruling)
    if isinstance(ruling, Noted):
        return RulingLine(partition, offset, "accepted", ruling.seq, note=ruling.note)
    if isinstance(ruling, Duplicate):
        return RulingLine(partition, offset, "duplicate", ruling.of_seq)
    return RulingLine(partition, offset, "rejected", None, ruling.code, ruling.reason)
