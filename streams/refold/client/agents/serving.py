"""Serving: hear of ready runs, take them, execute them side by side, until told to stop.

The work topic is read from its beginning by every process for itself (assigned, no group: a group's dead
member would hold its notices until its session timed out). Whether a run is ours is the fold's to say.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from refold.client.agents.ending import perform
from refold.client.agents.execution import Execution
from refold.client.agents.limits import REFUSED_PAUSE_S, RELEASE_S_MAX, UNAVAILABLE_PAUSE_S
from refold.client.agents.rows import find_run
from refold.client.agents.taking import Contention, Grant, take
from refold.client.agents.work import WorkTable
from refold.errors import RefoldError, TransientError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from refold.client.agents.agent import Agent
    from refold.client.session import Session
    from refold.core.work import WorkItem

log = logging.getLogger("refold.client")

Outcome: TypeAlias = Literal["drained", "cut_short"]
Told: TypeAlias = "Sequence[tuple[bytes, WorkItem | None]]"


class Source(Protocol):
    """Where work is heard of, and sessions come from: the client, or a test."""

    def work(self) -> AsyncGenerator[Told, None]: ...

    def session(self, tenant: str, session: str) -> Session: ...


class Server:
    """One ``agent.serve``. ``process``: what its holder names begin with."""

    def __init__(self, agent: Agent, source: Source, process: str, concurrency: int) -> None:
        self._agent = agent
        self._source = source
        self._process = process
        self._concurrency = concurrency
        self._table = WorkTable(agent.name, (agent.version, *agent.accepts), process)
        self._contention = Contention()
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._held: dict[bytes, Execution] = {}
        self._changed = asyncio.Event()
        self._draining = False
        #: How long giving runs back may take.
        self.release_s = RELEASE_S_MAX

    @property
    def running(self) -> int:
        """Runs held by this process."""
        return len(self._held)

    async def serve(self, stop: asyncio.Event, drain_s: float) -> Outcome:
        """Until ``stop`` is set, and then at most ``drain_s`` seconds for running steps to reach their end.
        Cancelled, it gives its runs back at once and is cancelled."""
        stopping = asyncio.create_task(stop.wait(), name="refold-agent-stop")
        hearing = asyncio.create_task(self._hear(), name="refold-agent-work")
        try:
            while not stop.is_set():
                self._changed.clear()
                self._dispatch()
                changed = asyncio.create_task(self._changed.wait())
                due = self._table.next_due(asyncio.get_running_loop().time())
                await asyncio.wait({stopping, changed}, timeout=due, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            return await self._drain(drain_s)
        except asyncio.CancelledError:
            await self._drain(0.0)
            raise
        finally:
            for task in (stopping, hearing, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(stopping, hearing, *self._tasks.values(), return_exceptions=True)

    # Hearing

    async def _hear(self) -> None:
        while True:
            try:
                async with aclosing(self._source.work()) as batches:
                    async for batch in batches:
                        for key, item in batch:
                            self._told(key, item)
            except (TransientError, UnavailableError) as error:
                log.warning("agent_work_unreadable agent=%s: %s", self._agent.name, error)
            await asyncio.sleep(UNAVAILABLE_PAUSE_S)

    def _told(self, key: bytes, item: WorkItem | None) -> None:
        self._table.hear(key, item, asyncio.get_running_loop().time())
        held = self._held.get(key)
        if held is not None and (item is None or item.holder != held.holder) and (
            item is None or item.epoch >= held.writer.epoch
        ):  # fmt: skip
            # It may be over, or another's: the fold says so.
            held.ask()
        self._changed.set()

    # Taking

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._tasks) < self._concurrency:
            item = self._table.choose(self._tasks.__contains__, loop.time(), random.randrange)
            if item is None:
                return
            session = self._source.session(item.tenant, item.session)
            key = session.key + b"#" + (item.run or "").encode()
            task = loop.create_task(self._one(key, session, item), name=f"refold-agent-{item.run}")
            self._tasks[key] = task
            task.add_done_callback(lambda done, key=key: self._done(key, done))  # type: ignore[misc]

    def _done(self, key: bytes, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        self._held.pop(key, None)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("agent_run_crashed agent=%s: %s", self._agent.name, type(error).__name__)

    async def _one(self, key: bytes, session: Session, item: WorkItem) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._contention.jitter())
        if self._draining or not self._table.still(key, item.epoch):
            return
        try:
            grant = await take(self._agent, session, item, self._process)
            if not isinstance(grant, Grant):
                self._contention.refused()
                if grant.code == "pin_mismatch":
                    self._table.forget(key)
                self._table.later(key, loop.time(), REFUSED_PAUSE_S)
                return
            self._contention.granted()
            self._table.forget(key)
            row = find_run(await session.state(min_seq=grant.seq), grant.run_id)
        except RefoldError as error:
            log.warning("agent_run_not_taken run=%s: %s", item.run, error)
            self._table.later(key, loop.time(), UNAVAILABLE_PAUSE_S)
            return
        if row is None or row.epoch != grant.epoch:
            return
        execution = self._held[key] = Execution(self._agent, session, grant, row)
        if self._draining:
            execution.drain()
        ended = await perform(execution)
        log.info("agent_run run=%s epoch=%d ended=%s", grant.run_id, grant.epoch, ended)

    # Stopping

    async def _drain(self, drain_s: float) -> Outcome:
        """No new runs; running steps reach their end within ``drain_s``; leases are given back."""
        self._draining = True
        for execution in self._held.values():
            execution.drain()
        if self._tasks and drain_s > 0:
            await asyncio.wait(list(self._tasks.values()), timeout=drain_s)
        if not self._tasks:
            return "drained"
        for execution in self._held.values():
            execution.cut_short()
        await asyncio.wait(list(self._tasks.values()), timeout=self.release_s)
        return "cut_short"
