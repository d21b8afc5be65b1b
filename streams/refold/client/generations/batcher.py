"""Between provider and topic: deltas are collected into batches by time and bytes. Pure: time is an argument.

Invariants: order is kept; a batch has at most ``BATCH_BYTES_MAX`` bytes of content (a longer delta is cut).
While :attr:`Batcher.full`, ``UNSENT_BYTES_MAX`` bytes wait and the provider is not to be read (one delta may
pass it).
"""

from __future__ import annotations

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
    """``closed``: no more comes, what is there goes out at once."""

    __slots__ = (
        "_begun_at", "_bytes", "_deltas", "_finish", "_interval_s", "_usage", "_usage_mode", "closed",
    )  # fmt: skip

    def __init__(self, interval_s: float = BATCH_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._deltas: deque[Delta] = deque()
        self._bytes = 0
        self._finish: str | None = None
        self._usage: TokenUsage | None = None
        self._usage_mode = "total"
        self._begun_at = float("-inf")
        self.closed = False

    def add(
        self,
        deltas: Iterable[Delta],
        finish: str | None = None,
        usage: TokenUsage | None = None,
        usage_mode: str = "total",
    ) -> None:
        """Take what one chunk of the provider gave. ``finish`` and ``usage`` only where they are news."""
        for delta in deltas:
            if len(delta.data) > BATCH_BYTES_MAX:
                self._deltas.extend(_cut(delta))
            else:
                self._deltas.append(delta)
            self._bytes += len(delta.data)
        if finish:
            self._finish = finish
        if usage is not None:
            added = usage_mode == "delta" and self._usage is not None and self._usage_mode == "delta"
            self._usage = self._usage.plus(usage) if added and self._usage is not None else usage
            self._usage_mode = usage_mode

    @property
    def full(self) -> bool:
        return self._bytes >= UNSENT_BYTES_MAX

    @property
    def empty(self) -> bool:
        return not self._deltas and self._finish is None and self._usage is None

    def discard(self) -> bool:
        """Drop what waits; true when there was anything."""
        dropped = not self.empty
        self._deltas.clear()
        self._bytes = 0
        self._finish = self._usage = None
        return dropped

    def due(self) -> float:
        """When the next batch may begin; the past, where it need not wait. Not for an empty one."""
        if self.closed or self._bytes >= BATCH_BYTES_MAX or len(self._deltas) >= BATCH_DELTAS_MAX:
            return float("-inf")
        return self._begun_at + self._interval_s

    def take(self, now: float) -> Content:
        """The next batch's content."""
        self._begun_at = now
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
        return content


def _cut(delta: Delta) -> Iterable[Delta]:
    pieces = [
        Delta(delta.kind, delta.part, delta.data[at : at + BATCH_BYTES_MAX])
        for at in range(0, len(delta.data), BATCH_BYTES_MAX)
    ]
    # Told once, with the first bytes.
    pieces[0] = pieces[0]._replace(call_id=delta.call_id, name=delta.name)
    return pieces
