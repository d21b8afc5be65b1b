"""Between provider and topic: deltas are collected into batches by time and bytes, with back-pressure.

Invariants: order is kept; a batch has at most ``BATCH_BYTES_MAX`` bytes of content (a longer delta is cut);
at most ``UNSENT_BYTES_MAX`` bytes wait (one delta may pass it), beyond it :meth:`room` waits, so the provider
is not read. One producer (the pump) and one consumer (the sender), on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from refold.client.generations.limits import (
    BATCH_BYTES_MAX,
    BATCH_DELTAS_MAX,
    BATCH_INTERVAL_S,
    UNSENT_BYTES_MAX,
)
from refold.core.progress import Delta, TokenUsage


@dataclass(slots=True)
class Content:
    """What one batch will carry."""

    deltas: list[Delta] = field(default_factory=list)
    finish: str | None = None
    usage: TokenUsage | None = None
    usage_mode: str = "total"


class Batcher:
    def __init__(self, interval_s: float = BATCH_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._deltas: deque[Delta] = deque()
        self._bytes = 0
        self._finish: str | None = None
        self._usage: TokenUsage | None = None
        self._usage_mode = "total"
        self._closed = False
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._begun_at = float("-inf")

    def add(
        self,
        deltas: Iterable[Delta],
        finish: str | None = None,
        usage: TokenUsage | None = None,
        usage_mode: str = "total",
    ) -> None:
        """Take what one chunk of the provider gave. ``finish`` and ``usage`` only where they are news."""
        for delta in deltas:
            for piece in _cut(delta):
                self._deltas.append(piece)
                self._bytes += len(piece.data)
        self._finish = finish or self._finish
        if usage is not None:
            added = usage_mode == "delta" and self._usage is not None and self._usage_mode == "delta"
            self._usage = self._usage.plus(usage) if added and self._usage is not None else usage
            self._usage_mode = usage_mode
        if self._bytes >= UNSENT_BYTES_MAX:
            self._drained.clear()
        self._changed.set()

    async def room(self) -> None:
        """Wait until more may be taken from the provider."""
        await self._drained.wait()

    def close(self, *, discard: bool = False) -> None:
        """No more comes; what is there is still given out, unless it is to be discarded."""
        self._closed = True
        if discard:
            self._deltas.clear()
            self._bytes = 0
            self._finish = self._usage = None
        self._drained.set()
        self._changed.set()

    async def next(self) -> Content | None:
        """The next batch's content, ``None`` when closed and empty.

        At once when the last batch began ``interval_s`` ago, when there is enough for a whole one, or when no
        more comes; else when that time is over.
        """
        loop = asyncio.get_running_loop()
        while not self._ready(loop.time()):
            if self._empty:
                if self._closed:
                    return None
                await self._wait(None)
            else:
                await self._wait(self._begun_at + self._interval_s - loop.time())
        self._begun_at = loop.time()
        return self._take()

    @property
    def _empty(self) -> bool:
        return not self._deltas and self._finish is None and self._usage is None

    def _ready(self, now: float) -> bool:
        if self._empty:
            return False
        whole = self._bytes >= BATCH_BYTES_MAX or len(self._deltas) >= BATCH_DELTAS_MAX
        return self._closed or whole or now - self._begun_at >= self._interval_s

    async def _wait(self, timeout_s: float | None) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _take(self) -> Content:
        content = Content()
        room = BATCH_BYTES_MAX
        while self._deltas and len(content.deltas) < BATCH_DELTAS_MAX:
            if len(self._deltas[0].data) > room:
                break
            delta = self._deltas.popleft()
            room -= len(delta.data)
            content.deltas.append(delta)
        self._bytes -= BATCH_BYTES_MAX - room
        if not self._deltas:
            # With the last of the content: nothing that belongs before the finish reason comes after it.
            content.finish, self._finish = self._finish, None
            content.usage, self._usage = self._usage, None
            content.usage_mode = self._usage_mode
        if self._bytes < UNSENT_BYTES_MAX:
            self._drained.set()
        return content


def _cut(delta: Delta) -> Iterable[Delta]:
    if len(delta.data) <= BATCH_BYTES_MAX:
        return (delta,)
    pieces = [
        Delta(delta.kind, delta.part, delta.data[at : at + BATCH_BYTES_MAX])
        for at in range(0, len(delta.data), BATCH_BYTES_MAX)
    ]
    # Told once, with the first bytes.
    pieces[0] = pieces[0]._replace(call_id=delta.call_id, name=delta.name)
    return pieces
