"""Sessions on a fold in this process: the real rules and the real bytes, no Kafka, and a clock to be moved.

One :class:`MemoryLog` is what Kafka and the worker are together; each :class:`MemorySession` is a client of
its own, as another process would be. ``dead``: its appends and reads never return any more, as after kill -9.
``frozen``: they wait for :meth:`MemorySession.thaw`, as after SIGSTOP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from refold.client.events import SessionEvent
from refold.client.ids import new_id
from refold.client.payloads import encode_payload
from refold.client.receipts import Ruling
from refold.client.snapshots import SnapshotView
from refold.client.tools.session_tools import SessionTools
from refold.client.writes import SessionWrites
from refold.core.decide import decide
from refold.core.envelope import Envelope
from refold.core.evolve import evolve
from refold.core.invariants import well_formed
from refold.core.rulings import Accepted, Duplicate
from refold.core.session import initial
from refold.core.slots import make_key
from refold.errors import TransientError
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import encode_snapshot


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


class MemoryLog:
    """One session's inbox, fold and journal. ``skew_ms``: the broker's clock minus the processes'."""

    def __init__(self, session: str = "s") -> None:
        self.clock = CLOCK
        self.state = initial("acme", session)
        self.journal: list[SessionEvent] = []
        self.refused: list[tuple[str, str]] = []
        self.skew_ms = 0
        self.moved = asyncio.Event()
        self._offset = 0

    def append(self, envelope: Envelope) -> tuple[int, Ruling]:
        """Append time and ruling."""
        env = decode_envelope(encode_envelope(envelope))
        event = decode_event(env)
        now = self.clock.now_ms() + self.skew_ms
        said = decide(self.state, env, event, now)
        offset, self._offset = self._offset, self._offset + 1
        if isinstance(said, Accepted):
            evolve(self.state, said.seq, said.time_ms, 0, offset, env, event)
            well_formed(self.state)
            self.journal.append(SessionEvent(said.seq, said.time_ms, 0, said.seq, 0, offset, env))
            self.moved.set()
            self.moved = asyncio.Event()
            return now, Ruling("accepted", said.seq)
        if isinstance(said, Duplicate):
            return now, Ruling("duplicate", said.of_seq)
        self.refused.append((env.type, said.code))
        return now, Ruling("rejected", None, said.code, said.reason)

    def view(self) -> SnapshotView | None:
        return SnapshotView.of(encode_snapshot(self.state)) if self.state.exists else None

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.journal]


@dataclass(slots=True)
class MemoryReceipt:
    event_id: str
    append_time_ms: int
    _ruling: Ruling

    async def ruling(self, timeout: float = 60.0) -> Ruling:
        await asyncio.sleep(0)
        return self._ruling


class MemoryConnection:
    """What tools ask of a client."""

    def __init__(self, producer_id: str) -> None:
        self.options = SimpleNamespace(producer_id=producer_id)
        self.blobs: Any = None


class MemorySession(SessionWrites, SessionTools):
    """``before``: called with the event type before each append; may raise."""

    def __init__(self, log: MemoryLog, producer_id: str = "p-1") -> None:
        self.log = log
        self.tenant, self.id = "acme", log.state.session
        self.key = make_key(self.tenant, self.id)
        self.before: Callable[[str], None] = lambda _: None
        self.dead = False
        self.frozen = False
        self._thawed = asyncio.Event()
        self._connection = MemoryConnection(producer_id)

    async def publish(self, event_type: str, payload: Any, **options: Any) -> Any:
        await self._alive()
        self.before(event_type)
        for name in ("wait", "timeout", "message_id", "headers"):
            options.pop(name, None)
        event_id = options.pop("event_id", None)
        envelope = Envelope(
            event_id=event_id or new_id(),
            tenant=self.tenant,
            session=self.id,
            type=event_type,
            event_time_ms=0,
            payload=encode_payload(event_type, payload),
            **options,
        )
        return MemoryReceipt(envelope.event_id, *self.log.append(envelope))

    async def state(self, *, min_seq: int | None = None, timeout: float | None = None) -> SnapshotView | None:
        await self._alive()
        if min_seq is not None and self.log.state.seq < min_seq:
            moved = self.log.moved
            try:
                await asyncio.wait_for(moved.wait(), timeout)
            except TimeoutError:
                raise TransientError("not reached") from None
        return self.log.view()

    async def events(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        await self._alive()
        left = len(self.log.journal) if limit is None else limit
        for event in self.log.journal[after:]:
            if left <= 0:
                return
            left -= 1
            yield event

    async def retry(self) -> list[Any]:
        return []

    async def _alive(self) -> None:
        await asyncio.sleep(0)
        while self.frozen:
            await self._thawed.wait()
        if self.dead:
            await asyncio.Event().wait()

    def thaw(self) -> None:
        self.frozen = False
        self._thawed.set()

    def row(self, operation_id: str) -> Any:
        return self.log.state.calls[operation_id]
