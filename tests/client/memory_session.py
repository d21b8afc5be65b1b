"""The memory sessions of ``refold.testing`` with a clock that tests move, and processes that can stop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from refold.testing import memory


class Clock:
    """Wall-clock time as all processes and brokers of a test have it; ``advance`` lets leases end."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_ms

    def advance(self, ms: int) -> None:
        self.shift_ms += ms


#: One for all: processes that share a machine share its time.
CLOCK = Clock()


def patch_clock(monkeypatch: Any) -> None:
    """Let the tools under test read :data:`CLOCK`."""
    for module in ("acquire", "operation"):
        monkeypatch.setattr(f"refold.client.tools.{module}.now_ms", CLOCK.now_ms)


class MemoryLog(memory.MemoryLog):
    """``skew_ms``: the broker's clock minus the processes'."""

    def __init__(self) -> None:
        super().__init__(tenant="acme", now_ms=lambda: CLOCK.now_ms() + self.skew_ms)
        self.clock = CLOCK
        self.skew_ms = 0


class MemorySession(memory.MemorySession):
    """``frozen``: its appends and reads wait for :meth:`thaw`, as after SIGSTOP."""

    def __init__(self, log: MemoryLog, producer_id: str = "p-1") -> None:
        super().__init__(log, producer_id)
        self.log: MemoryLog = log
        self.frozen = False
        self._thawed = asyncio.Event()

    async def alive(self) -> None:
        while self.frozen:
            await self._thawed.wait()
        await super().alive()

    def thaw(self) -> None:
        self.frozen = False
        self._thawed.set()

    def row(self, operation_id: str) -> Any:
        return self.log.state.calls[operation_id]
