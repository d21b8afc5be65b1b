"""The runs of one process: chosen among what is ready, asked for, executed, given back at the end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from refold.client.agents.execution import Execution
from refold.client.agents.limits import REFUSED_PAUSE_S, RELEASE_S_MAX, UNAVAILABLE_PAUSE_S
from refold.client.agents.performing import perform
from refold.client.agents.reading import read_row
from refold.client.agents.taking import Contention, Grant, take
from refold.client.agents.work import WorkTable
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.client.agents.agent import Agent
    from refold.client.session import Session
    from refold.core.work import WorkItem

log = logging.getLogger("refold.client")

Outcome: TypeAlias = Literal["drained", "cut_short"]

#: Refusals that only something new mends: then the run is announced anew. One that is over may still stand in
#: the table of a process that was cut off until its tombstone had been compacted away.
NOT_FOR_US: Final = frozenset({"pin_mismatch", "already_final", "unknown_run"})


class Holding:
    """``process``: what its holder names begin with. ``changed``: set when there may be something to take."""

    def __init__(
        self, agent: Agent, process: str, concurrency: int, session_of: Callable[[str, str], Session]
    ) -> None:
        self._agent = agent
        self._process = process
        self._concurrency = concurrency
        self._session_of = session_of
        self._table = WorkTable(agent.name, (agent.version, *agent.accepts), process)
        self._contention = Contention()
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._held: dict[bytes, Execution] = {}
        self._draining = False
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        """Runs held now."""
        return len(self._held)

    def told(self, key: bytes, item: WorkItem | None) -> None:
        """What the work topic says of one run; ``None``: nothing is to be done any more."""
        self._table.hear(key, item, asyncio.get_running_loop().time())
        held = self._held.get(key)
        if held is not None:
            newer = item is None or (item.holder != held.holder and item.epoch >= held.writer.epoch)
            if newer:
                # It may be over, or another's: the fold says so.
                held.ask()
        self.changed.set()

    def dispatch(self) -> float | None:
        """Ask for as many runs as there is room for; seconds until there may be another one."""
        loop = asyncio.get_running_loop()
        while len(self._tasks) < self._concurrency:
            item = self._table.choose(self._tasks.__contains__, loop.time(), random.randrange)
            if item is None:
                return self._table.next_due(loop.time())
            session = self._session_of(item.tenant, item.session)
            key = session.key + b"#" + (item.run or "").encode()
            task = loop.create_task(self._one(key, session, item), name=f"refold-agent-{item.run}")
            self._tasks[key] = task
            task.add_done_callback(lambda done, key=key: self._done(key, done))  # type: ignore[misc]
        return None

    def _done(self, key: bytes, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        self._held.pop(key, None)
        self.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not the body's: ours, or the lease's events could not be sent at all.
            log.error("agent_run_crashed agent=%s", self._agent.name, exc_info=error)

    async def _one(self, key: bytes, session: Session, item: WorkItem) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._contention.jitter())
        if self._draining or not self._table.still(key, item.epoch):
            return
        try:
            grant = await take(self._agent, session, item, self._process)
            if not isinstance(grant, Grant):
                self._contention.refused()
                if grant.code in NOT_FOR_US:
                    self._table.forget(key)
                self._table.later(key, loop.time(), REFUSED_PAUSE_S)
                return
            self._contention.granted()
            self._table.forget(key)
            row = await read_row(session, grant.run_id, grant.seq, self._agent.lease_s / 2)
        except RefoldError as error:
            log.warning("agent_run_not_taken run=%s: %s", item.run, error)
            self._table.later(key, loop.time(), UNAVAILABLE_PAUSE_S)
            return
        if row is None or row.epoch != grant.epoch:
            return
        execution = self._held[key] = Execution(self._agent, session, grant, row)
        if self._draining:
            execution.leaving.drain()
        ended = await perform(execution)
        log.info("agent_run run=%s epoch=%d ended=%s", grant.run_id, grant.epoch, ended)

    async def drain(self, drain_s: float, release_s: float = RELEASE_S_MAX) -> Outcome:
        """No new runs; running steps reach their end within ``drain_s``; then the rest is given up, and given
        back within ``release_s``."""
        self._draining = True
        for execution in self._held.values():
            execution.leaving.drain()
        if self._tasks and drain_s > 0:
            await asyncio.wait(list(self._tasks.values()), timeout=drain_s)
        if not self._tasks:
            return "drained"
        for execution in self._held.values():
            execution.leaving.cut_short()
        await asyncio.wait(list(self._tasks.values()), timeout=release_s)
        return "cut_short"

    async def close(self) -> None:
        """End what is left as if the process had been killed."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
