"""Sessions on a fold in this process: the worker's own rules and bytes, without Kafka, for tests of tools.

::

    log = MemoryLog()
    results = await MemorySession(log).run_tools(calls, tools=[refund], message_id="m1")
    assert log.types == ["ToolCallIntended", "ToolCallStarted", "ToolCallCompleted"]

One :class:`MemoryLog` is what Kafka and the worker are together; each :class:`MemorySession` on it is a
client of its own, as another process would be. It writes, runs tools and reconciles as a client's session
does; contexts, blobs and generations need the real thing. What is proven here holds for the rules, not for
processes that die: the tests of refold itself kill real ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from refold.client.connection import Connection
from refold.client.events import SessionEvent
from refold.client.ids import new_id
from refold.client.payloads import encode_payload
from refold.client.receipts import Receipt, Ruling
from refold.client.run_writes import RunWrites
from refold.client.snapshots import SnapshotView
from refold.client.tools.session_tools import SessionTools
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


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryLog:
    """One session's inbox, fold and journal. ``now_ms`` is the broker's clock. ``journal``: accepted events;
    ``refused``: (type, code) of the others. Use from one event loop."""

    def __init__(
        self, session: str = "s", *, tenant: str = "default", now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self.tenant = tenant
        self.session = session
        self.state = initial(tenant, session)
        self.journal: list[SessionEvent] = []
        self.refused: list[tuple[str, str]] = []
        self.moved = asyncio.Event()
        self._now_ms = now_ms
        self._offset = 0

    def append(self, envelope: Envelope) -> tuple[int, int, Ruling]:
        """Offset, append time and ruling."""
        env = decode_envelope(encode_envelope(envelope))
        event = decode_event(env)
        now = self._now_ms()
        said = decide(self.state, env, event, now)
        offset, self._offset = self._offset, self._offset + 1
        if isinstance(said, Accepted):
            evolve(self.state, said.seq, said.time_ms, 0, offset, env, event)
            well_formed(self.state)
            self.journal.append(SessionEvent(said.seq, said.time_ms, 0, said.seq, 0, offset, env))
            self.moved.set()
            self.moved = asyncio.Event()
            return offset, now, Ruling("accepted", said.seq)
        if isinstance(said, Duplicate):
            return offset, now, Ruling("duplicate", said.of_seq)
        self.refused.append((env.type, said.code))
        return offset, now, Ruling("rejected", None, said.code, said.reason)

    def view(self) -> SnapshotView | None:
        return SnapshotView.of(encode_snapshot(self.state)) if self.state.exists else None

    @property
    def types(self) -> list[str]:
        """Of the accepted events, in order."""
        return [event.type for event in self.journal]


@dataclass(frozen=True, slots=True)
class MemoryReceipt(Receipt):
    """Ruled on when it is made."""

    said: Ruling = field(default_factory=lambda: Ruling("accepted", 0))

    async def ruling(self, timeout: float = 0.0) -> Ruling:
        await asyncio.sleep(0)
        return self.said


@dataclass(frozen=True, slots=True)
class _Options:
    producer_id: str


class _Memory:
    """Of :class:`refold.client.connection.SessionMemory`, what tools use."""

    def __init__(self) -> None:
        self.heard: Callable[[str, str | None, int], None] | None = None


class _Connection:
    """What tools ask of a connection: a name, what it hears of its only session, and a store that nothing
    here uses."""

    def __init__(self, producer_id: str) -> None:
        self.options = _Options(producer_id)
        self.blobs: Any = None
        self._memory = _Memory()

    def memory(self, _key: bytes) -> _Memory:
        return self._memory


class MemorySession(RunWrites, SessionTools):
    """A client's session on a :class:`MemoryLog`. ``before``: called with the type before each append, may
    raise. ``dead``: appends and reads never return any more, as after kill -9."""

    def __init__(self, log: MemoryLog, producer_id: str = "p-1") -> None:
        self.log = log
        self.tenant, self.id = log.tenant, log.session
        self.key = make_key(self.tenant, self.id)
        self.before: Callable[[str], None] = lambda _: None
        self.dead = False
        self._connection = cast("Connection", _Connection(producer_id))

    async def publish(self, event_type: str, payload: Any, **options: Any) -> Receipt:
        await self.alive()
        self.before(event_type)
        given = {
            name: value
            for name, value in options.items()
            if name not in ("wait", "timeout", "message_id", "headers", "event_id")
        }
        envelope = Envelope(
            event_id=new_id() if options.get("event_id") is None else options["event_id"],
            tenant=self.tenant,
            session=self.id,
            type=event_type,
            event_time_ms=wall_clock_ms(),
            payload=payload if isinstance(payload, bytes) else encode_payload(event_type, payload),
            **given,
        )
        offset, append_ms, said = self.log.append(envelope)
        receipt = MemoryReceipt(
            envelope.event_id, event_type, 0, offset, append_ms, options.get("message_id"), said=said
        )
        heard = self._connection.memory(self.key).heard
        if heard is not None and said.accepted:
            heard(
                event_type, None if isinstance(payload, bytes) else payload.get("operation_id"), said.seq or 0
            )
        if options.get("wait") == "accepted":
            await receipt.accepted()
        return receipt

    async def state(self, *, min_seq: int | None = None, timeout: float | None = None) -> SnapshotView | None:
        await self.alive()
        if min_seq is not None and self.log.state.seq < min_seq:
            moved = self.log.moved
            try:
                await asyncio.wait_for(moved.wait(), timeout)
            except TimeoutError:
                raise TransientError(f"the session did not reach seq {min_seq}") from None
        return self.log.view()

    async def events(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        await self.alive()
        end = None if limit is None else after + limit
        for event in self.log.journal[after:end]:
            yield event

    async def retry(self) -> list[Receipt]:
        return []

    async def alive(self) -> None:
        """Called before every append and read."""
        await asyncio.sleep(0)
        if self.dead:
            await asyncio.Event().wait()
