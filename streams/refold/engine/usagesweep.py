"""Removing usage rows that are over (W4): a walk over a partition's rows from time to time.

Only partitions in which usage was folded by this process are walked: where none comes, none is added. What is
found on the disk thread is looked at again on the event loop, against what has been folded since, and becomes
a tombstone in the partition's overlay, so in a transaction with its offsets (rule F).
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from refold.engine.assignment import Partition
from refold.engine.batchfold import BatchFold
from refold.engine.lifecycle import Reopened, State
from refold.engine.plan import Written
from refold.engine.store import UnreadableStore
from refold.engine.usage import SWEEP_MARGIN_MS

#: A row is over after two days: ten minutes more are nothing, and a hundred thousand rows then take 3 s of
#: the disk thread.
SWEEP_EVERY_S: Final = 600.0


class UsageSweep(BatchFold):
    """The part of the engine that sweeps. On the event loop; rows are read on the disk thread."""

    async def _sweep_usage(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for number in sorted(self.sides.usages.folded):
                owner = self.assignment.get(number)
                if owner is not None:
                    await self.sweep_usage(owner)

    async def sweep_usage(self, owner: Partition) -> int:
        """Walk over one partition's rows once; how many were removed."""
        written, after, removed = owner.written, b"", 0
        while written is not None and self._sweeps(owner, written):
            now_ms = owner.ruled_ms - SWEEP_MARGIN_MS
            usages = self.sides.usages
            try:
                found, after = await self.on_disk(partial(usages.over, written.store, after, now_ms))
            except UnreadableStore as error:
                self.distrust(owner, written, error, Reopened.READ)
                return removed
            # A seal may be on its way: what it takes back must be all there is in memory.
            while not self._go.is_set():
                await self._go.wait()
            if found and self._sweeps(owner, written):
                self._arrives(time.monotonic())
                part = self.part_of(self.current, owner)
                try:
                    removed += sum(usages.expire(self.current, part, row, now_ms) for row in found)
                except UnreadableStore:
                    # The partition is being restored already, and what is in the overlay for it is dropped.
                    return removed
                self._dirty.set()
            if not after:
                break
        return removed

    def _sweeps(self, owner: Partition, written: Written) -> bool:
        return (
            not self.stopping
            and owner.state is State.LIVE
            and self.assignment.get(owner.number) is owner
            and owner.written is written
            and owner.ruled_ms > 0
        )
