"""Sessions with boundaries around the events a tool call writes.

The product has no hooks for this and needs none: every event of a session goes through its publisher, so one
subclass of the publisher sees intent, started and result whoever appends them, the SDK or a user's agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from refold.client import Refold
from refold.client.connection import Connection, now_ms
from refold.client.generations import Generations
from refold.client.publishing import Publisher
from refold.client.receipts import Receipt, Ruling
from refold.client.session import Session
from refold.errors import RefoldError
from refold.ops.effects.boundaries import STEP_OF_EVENT, Boundaries

#: Sabotage no-lease: started is written this long after the body began, as if nobody had to wait for it.
STARTED_LATE_S: Final = 0.3


class AssumedReceipt(Receipt):
    """Sabotage no-lease: says accepted, whatever the fold will say."""

    async def ruling(self, timeout: float = 0.0) -> Ruling:
        return Ruling("accepted", 0)

    async def accepted(self, timeout: float = 0.0) -> int:
        return 0


class WatchedPublisher(Publisher):
    """Reaches a boundary before and after each event that takes a call a step on."""

    def __init__(
        self,
        connection: Connection,
        tenant: str,
        session: str,
        key: bytes,
        boundaries: Boundaries,
        sabotage: str | None,
    ) -> None:
        super().__init__(connection, tenant, session, key)
        self._name = session
        self._boundaries = boundaries
        self._sabotage = sabotage
        self._late: set[asyncio.Task[None]] = set()
        self.waits_ms: list[float] = []

    async def publish(self, event_type: str, payload: Mapping[str, Any] | bytes, **options: Any) -> Receipt:
        began = time.monotonic()
        try:
            return await self._publish(event_type, payload, options)
        finally:
            self.waits_ms.append(round((time.monotonic() - began) * 1000, 1))

    async def _publish(
        self, event_type: str, payload: Mapping[str, Any] | bytes, options: dict[str, Any]
    ) -> Receipt:
        step = STEP_OF_EVENT.get(event_type)
        if step is None or isinstance(payload, bytes):
            return await super().publish(event_type, payload, **options)
        if step == "started" and self._sabotage == "no-lease":
            task = asyncio.create_task(self._start_late(payload, options))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return AssumedReceipt("assumed", event_type, 0, 0, now_ms())
        return await self._at_boundaries(step, event_type, payload, options)

    async def _at_boundaries(
        self, step: str, event_type: str, payload: Mapping[str, Any], options: dict[str, Any]
    ) -> Receipt:
        operation = payload.get("operation_id") or ""
        self._boundaries.reach(f"before_{step}", self._name, operation)
        receipt = await super().publish(event_type, payload, **options)
        self._boundaries.reach(f"after_{step}", self._name, operation)
        return receipt

    async def _start_late(self, payload: Mapping[str, Any], options: dict[str, Any]) -> None:
        await asyncio.sleep(STARTED_LATE_S)
        try:
            await self._at_boundaries("started", "ToolCallStarted", payload, options)
        except RefoldError:  # the sabotage: what the fold says about the lease is not listened to
            return


class WatchedSession(Session):
    """A session of a :class:`WatchedRefold`."""

    def __init__(
        self,
        connection: Connection,
        tenant: str,
        session: str,
        generations: Generations,
        boundaries: Boundaries,
        sabotage: str | None,
    ) -> None:
        super().__init__(connection, tenant, session, generations)
        self._watched = WatchedPublisher(connection, tenant, session, self.key, boundaries, sabotage)
        self._publisher = self._watched

    def take_waits_ms(self) -> list[float]:
        """How long each event appended through this object waited, since the last call."""
        waits, self._watched.waits_ms = self._watched.waits_ms, []
        return waits


class WatchedRefold(Refold):
    """The SDK's client, unchanged but for its sessions' publisher."""

    def __init__(self, *, boundaries: Boundaries, sabotage: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._boundaries = boundaries
        self._sabotage = sabotage

    def session(self, session: str, *, tenant: str | None = None) -> WatchedSession:
        return WatchedSession(
            self.connection,
            tenant or self._options.tenant,
            session,
            self.generations,
            self._boundaries,
            self._sabotage,
        )
