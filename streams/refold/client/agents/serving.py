"""Serving: hear of ready runs and hold what is granted, until told to stop.

The work topic is read from its beginning by every process for itself (assigned, no group: a group's dead
member would hold its notices until its session timed out). Whether a run is ours is the fold's to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from refold.client.agents.holding import Holding, Outcome
from refold.client.agents.limits import RELEASE_S_MAX, UNAVAILABLE_PAUSE_S
from refold.errors import TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.agents.agent import Agent
    from refold.client.session import Session
    from refold.core.work import WorkItem

log = logging.getLogger("refold.client")


class Source(Protocol):
    """Where work is heard of, and sessions come from: the client, or a test."""

    def work(self) -> AsyncGenerator[Mapping[bytes, WorkItem | None], None]: ...

    def session(self, tenant: str, session: str) -> Session: ...


class Server:
    """One ``agent.serve``."""

    def __init__(self, agent: Agent, source: Source, process: str, concurrency: int) -> None:
        self._agent = agent
        self._source = source
        self._holding = Holding(agent, process, concurrency, source.session)
        #: How long giving runs back may take.
        self.release_s = RELEASE_S_MAX

    @property
    def running(self) -> int:
        """Runs held by this process."""
        return len(self._holding)

    async def serve(self, stop: asyncio.Event, drain_s: float) -> Outcome:
        """Until ``stop`` is set, and then at most ``drain_s`` seconds for running steps to reach their end.
        Cancelled, it gives its runs back at once and is cancelled. Raises what keeps it from hearing of runs
        for good: no right to read the work topic, no such topic."""
        holding = self._holding
        stopping = asyncio.create_task(stop.wait(), name="refold-agent-stop")
        hearing = asyncio.create_task(self._hear(), name="refold-agent-work")
        try:
            while not stop.is_set():
                if hearing.done():
                    hearing.result()
                holding.changed.clear()
                due = holding.dispatch()
                changed = asyncio.create_task(holding.changed.wait())
                waited = {stopping, hearing, changed}
                await asyncio.wait(waited, timeout=due, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            return await holding.drain(drain_s, self.release_s)
        except BaseException:
            await holding.drain(0.0, self.release_s)
            raise
        finally:
            for task in (stopping, hearing):
                task.cancel()
            await holding.close()
            await asyncio.gather(stopping, hearing, return_exceptions=True)

    async def _hear(self) -> None:
        while True:
            try:
                async with aclosing(self._source.work()) as batches:
                    async for told in batches:
                        for key, item in told.items():
                            self._holding.told(key, item)
            except (TransientError, UnavailableError) as error:
                log.warning("agent_work_unreadable agent=%s: %s", self._agent.name, error)
            await asyncio.sleep(UNAVAILABLE_PAUSE_S)
