"""Acks: how far a client has a generation, as records beside the batches. Hints: a lost one is replaced by
the next, a wrong one is clamped by the fold to what exists."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from refold.client.generations.frames import Frame
from refold.client.generations.limits import ACK_INTERVAL_S, ACKS_IN_FLIGHT_MAX
from refold.core.progress import Ack
from refold.errors import RefoldError
from refold.wire.batches import encode_item

if TYPE_CHECKING:
    from refold.client.sender import Delivery, Sender


class Acks:
    """Sends them for one client process, never blocking a stream on them."""

    def __init__(self, sender: Sender, topic: str) -> None:
        self._sender = sender
        self._topic = topic
        self._in_flight = 0

    def tell(self, key: bytes, partition: int, ack: Ack) -> None:
        """Send, and forget about it. Dropped when too many are on the way: a later one says more."""
        if self._in_flight >= ACKS_IN_FLIGHT_MAX:
            return
        try:
            self._sender.start(self._topic, key, encode_item(ack), (), partition, self._told)
        except RefoldError:
            return
        self._in_flight += 1

    def _told(self, outcome: Delivery | RefoldError) -> None:
        self._in_flight -= 1

    async def send(self, key: bytes, partition: int, ack: Ack) -> None:
        """Returns when it is durable; raises as a write does."""
        await self._sender.send(self._topic, key, encode_item(ack), (), partition)


class Acker:
    """Acks of one follower, at most one per ``ACK_INTERVAL_S``; the newest always gets out in the end."""

    def __init__(self, acks: Acks, key: bytes, partition: int, generation: str, client: str) -> None:
        self._acks = acks
        self._key = key
        self._partition = partition
        self._generation = generation
        self._client = client
        self._due: tuple[int, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = float("-inf")

    def connected(self, attempt: int, seq: int) -> None:
        """The client is there; it has everything up to ``seq`` (0: nothing, or it did not say)."""
        self._due = (attempt, seq)
        self.flush()

    def handed_over(self, frame: Frame) -> None:
        """The framework took the frame and asks for the next one."""
        if frame.kind == "reset":
            self._due = (frame.attempt, 0)
            return
        self._due = (frame.attempt, frame.seq)
        loop = asyncio.get_running_loop()
        wait = self._sent_at + ACK_INTERVAL_S - loop.time()
        if frame.kind == "end" or wait <= 0:
            self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(wait, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due is None:
            return
        attempt, seq = self._due
        self._due = None
        self._sent_at = asyncio.get_running_loop().time()
        if attempt:
            ack = Ack(self._generation, attempt, self._client, seq)
            self._acks.tell(self._key, self._partition, ack)
