"""One run in this process, from an accepted lease to its end or to leaving it.

Leaving has two manners. *At once* (lost, stopped, unavailable): the body is cancelled and nothing is written
any more. *At a boundary* (draining, suspended, review): no further step begins; those that run come to their
end and are recorded, then the lease is given back or the run suspended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from refold.client.agents.lease import RunLease
from refold.client.agents.outcomes import Leave, RunLeft
from refold.client.agents.outputs import Outputs
from refold.client.agents.rows import RunRow, StepRow, find_run
from refold.client.agents.stepping import Stepping, StepSpec
from refold.client.agents.writer import Writer
from refold.client.receipts import Ruling
from refold.errors import TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.agents.agent import Agent
    from refold.client.agents.taking import Grant
    from refold.client.session import Session

AT_ONCE: Final[frozenset[Leave]] = frozenset({"lost", "stopped", "unavailable"})


class Execution:
    """Everything the steps of one held run share. ``rows``: the run's steps as this process knows them;
    nobody else changes them while the lease is held but a person who invalidates (see :meth:`refresh`)."""

    def __init__(self, agent: Agent, session: Session, grant: Grant, row: RunRow) -> None:
        self.agent = agent
        self.session = session
        self.run_id = grant.run_id
        self.holder = grant.holder
        self.row = row
        self.rows: dict[str, StepRow] = dict(row.steps)
        self.outputs = Outputs(session)
        self.writer = Writer(session, grant.run_id, grant.holder, grant.epoch)
        self.writer.heard = self._heard
        self.lease = RunLease(agent.lease_s, grant.sent_at, self._renew, self._lost)
        self.writer.lease = self.lease
        self.stepping = Stepping(self)
        self.left: RunLeft | None = None
        #: What ends this process's part in the run is on its way.
        self.over = False
        #: Running steps are not waited for any more.
        self.hurry = False
        self.waiting_for: dict[str, None] = {}
        #: Set whenever something changed that the end of the run may hang on.
        self.moved = asyncio.Event()
        self._seq = grant.seq
        self._asking: asyncio.Task[None] | None = None
        #: Tasks that are inside a step, and which; bodies in threads, which nobody can cancel.
        self._tasks: dict[asyncio.Task[object], int] = {}
        self._threads: set[object] = set()

    # Leaving

    @property
    def leaving(self) -> RunLeft:
        if self.left is None:
            raise RuntimeError("this run is not being left")
        return self.left

    def leave(self, why: RunLeft) -> RunLeft:
        """Leave the run; one that must be at once comes before one that may wait."""
        if self.left is None or (why.why in AT_ONCE and self.left.why not in AT_ONCE):
            self.left = why
        self.moved.set()
        return self.left

    def drain(self) -> None:
        """No further step begins here."""
        self.leave(RunLeft("draining", "this process is being drained"))

    def suspend(self, operations: Sequence[str]) -> None:
        """The run waits for these calls' approval."""
        self.waiting_for.update(dict.fromkeys(operations))
        self.leave(RunLeft("suspended", "calls wait for approval"))

    def cut_short(self) -> None:
        """Draining has taken long enough: running steps are given up, to begin again elsewhere as the same
        attempt."""
        self.hurry = True
        self.drain()

    def look(self) -> None:
        """As :meth:`check`, for a step that runs: any thread, and a step may end while others may not
        begin."""
        left = self.left
        if left is not None and (left.why in AT_ONCE or self.hurry):
            raise left
        if self.lease.left() == 0.0:
            raise RunLeft("lost", "the lease is over")

    def check(self) -> None:
        """Raises RunLeft where nothing may begin any more."""
        self.lease.check()
        if self.left is not None:
            raise self.left

    def ask(self) -> None:
        """Something was heard that may mean the run is over, or another's: let the fold say so."""
        if self.over:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self.lease.renew(), name="refold-run-asked")

    def _lost(self, reason: str) -> None:
        self.leave(RunLeft("lost", reason))

    # Steps

    @contextmanager
    def in_step(self, step_id: str) -> Iterator[None]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("steps run in tasks")
        self._tasks[task] = self._tasks.get(task, 0) + 1
        try:
            yield
        finally:
            self._tasks[task] -= 1
            if not self._tasks[task]:
                del self._tasks[task]
            self.moved.set()

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Around a body that runs in a thread, in that thread."""
        token = object()
        self._threads.add(token)
        try:
            yield
        finally:
            self._threads.discard(token)

    @property
    def busy(self) -> bool:
        """Whether a step is on its way here."""
        return bool(self._tasks)

    @property
    def unstoppable(self) -> bool:
        """Whether a body runs that cannot be cancelled: its lease must not be given back then."""
        return bool(self._threads)

    async def cancel(self, body: asyncio.Task[object]) -> None:
        """End the body, and tasks of it that are in a step; returns when they have ended."""
        tasks = {body, *self._tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()

    def started(self, step_id: str, spec: StepSpec, attempt: int, seq: int) -> StepRow:
        before = self.rows.get(step_id)
        row = self.rows[step_id] = StepRow(
            step_id,
            spec.name,
            "running",
            attempt,
            failures=0 if before is None else before.failures,
            epoch=self.writer.epoch,
            effect=spec.effect,
            rerunnable=spec.rerunnable,
            inputs=spec.given.inputs,
            started_seq=seq,
        )
        return row

    async def refresh(self, seq: int = 0) -> None:
        """Read the rows as they are at ``seq`` or later. Raises RunLeft when nothing answers or the run is
        gone."""
        try:
            view = await self.session.state(min_seq=max(seq, self._seq))
        except (TransientError, UnavailableError) as error:
            raise self.leave(RunLeft("unavailable", f"the session cannot be read: {error}")) from error
        row = find_run(view, self.run_id)
        if row is None or row.epoch != self.writer.epoch or row.state != "leased":
            self.lease.lose("the run is another's, or over")
            raise self.leaving
        self.row, self.rows = row, dict(row.steps)

    def changed(self, step_id: str, missing: Sequence[str]) -> str:
        """What a changed body is told."""
        named = ", ".join(repr(name) for name in missing[:5])
        asked = f"asks for step {step_id!r}" if step_id else "ends"
        return (
            f"version {self.agent.version!r} of agent {self.agent.name!r} {asked}, but the run has recorded "
            f"{named} and the body has not asked for that: names or order have changed. Run it with a "
            "version that fits (`refold run move-pin`), or begin a new run"
        )

    def _heard(self, seq: int) -> None:
        self._seq = max(self._seq, seq)

    async def _renew(self, timeout_s: float) -> Ruling:
        agent = self.agent
        return await self.writer.renew(agent.lease_ms, agent.version, agent.accepts, timeout_s)
