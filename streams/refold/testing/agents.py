"""Agents without Kafka: processes that serve an agent on one memory session, for tests of bodies and steps.

::

    log = MemoryLog()
    async with MemoryProcess(agent, log) as process:
        handle = await process.start(input="tides")
        assert await handle.result(timeout=5) == ...

The rules are the worker's own (:mod:`refold.testing.memory`); what is missing is what dies: see the guide's
walk-through for real processes. ``run.model`` needs the real thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from refold.client.agents.agent import Agent
from refold.client.agents.handle import RunHandle
from refold.client.agents.limits import CONCURRENCY_DEFAULT, RETRIES_MAX
from refold.client.agents.serving import Server
from refold.client.agents.starting import start
from refold.client.ids import new_id
from refold.client.payloads import encode_payload
from refold.core.envelope import Envelope
from refold.core.work import WorkItem, work_items
from refold.testing.memory import MemoryLog, MemorySession
from refold.wire.work import work_key

if TYPE_CHECKING:
    from refold.client.session import Session


class MemorySource:
    """Work of one :class:`MemoryLog`, as one process hears of it."""

    def __init__(self, log: MemoryLog, session: MemorySession) -> None:
        self._log = log
        self._session = session

    def session(self, tenant: str, session: str) -> Session:
        return cast("Session", self._session)

    async def work(self) -> AsyncGenerator[dict[bytes, WorkItem | None], None]:
        known: dict[str, WorkItem] = {}
        while True:
            moved = self._log.moved
            now = work_items(self._log.state)
            told = {
                work_key(self._session.key, name): now.get(name)
                for name in {**known, **now}
                if known.get(name) != now.get(name)
            }
            known = now
            if told:
                yield told
            await moved.wait()


def fire_timers(log: MemoryLog) -> None:
    """What the worker does where a deadline has passed: leases end, silent steps fail."""
    log.append(
        Envelope(
            event_id=new_id(),
            tenant=log.tenant,
            session=log.session,
            type="TimerFired",
            event_time_ms=0,
            payload=encode_payload("TimerFired", {"deadline_ms": log.state.timer_ms}),
        )
    )


class MemoryProcess:
    """One process that serves ``agent``; ``async with`` it. Leaving drains it."""

    def __init__(
        self,
        agent: Agent,
        log: MemoryLog,
        *,
        name: str | None = None,
        session: MemorySession | None = None,
        concurrency: int = CONCURRENCY_DEFAULT,
        drain_s: float = 10.0,
    ) -> None:
        self.agent = agent
        self.log = log
        self.name = name or f"p-{new_id()[:8]}"
        self.session = session or MemorySession(log, self.name)
        self.stop = asyncio.Event()
        self.server = Server(agent, MemorySource(log, self.session), self.name, concurrency)
        self._drain_s = drain_s
        self.task: asyncio.Task[str] | None = None

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.server.serve(self.stop, self._drain_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task is not None and not self.task.done():
            if self.session.dead:
                # Nothing it would say is heard any more.
                self.server.release_s = 0.0
                self.task.cancel()
            self.stop.set()
            await asyncio.gather(self.task, return_exceptions=True)

    async def start(
        self,
        *,
        input: Any = None,  # noqa: A002 - the word of the SDK
        run_id: str | None = None,
        pin: str | None = None,
        retries: int = RETRIES_MAX,
    ) -> RunHandle:
        """As ``agent.start``."""
        return await start(
            self.agent.name,
            cast("Session", self.session),
            input=input,
            run_id=run_id,
            pin=pin,
            title=None,
            retries=retries,
        )
