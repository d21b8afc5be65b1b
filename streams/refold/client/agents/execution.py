"""One run in this process, while it is held: its rows, its lease, and what of it is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold.client.agents.lease import RunLease
from refold.client.agents.leaving import Leaving
from refold.client.agents.outcomes import RunLeft
from refold.client.agents.outputs import Outputs
from refold.client.agents.reading import read_row
from refold.client.agents.rows import RunRow, StepRow
from refold.client.agents.running import Running
from refold.client.agents.stepping import Stepping
from refold.client.agents.writer import Writer
from refold.client.receipts import Ruling
from refold.errors import TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.agents.agent import Agent
    from refold.client.agents.specs import StepSpec
    from refold.client.agents.taking import Grant
    from refold.client.session import Session


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
        self.leaving = Leaving()
        self.running = Running(self.leaving.moved.set)
        self.writer = Writer(session, grant.run_id, grant.holder, grant.epoch)
        self.writer.heard = self._heard
        self.writer.closed = self._closed
        self.lease = RunLease(agent.lease_s, grant.sent_at, self._renew, self._lost)
        self.writer.lease = self.lease
        self.stepping = Stepping(self)
        self._seq = grant.seq
        self._asking: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raises RunLeft where nothing may begin any more."""
        self.lease.check()
        self.leaving.check()

    def look(self) -> None:
        """As :meth:`check`, for a step that runs. Any thread."""
        self.leaving.look()
        if self.lease.left() == 0.0:
            raise RunLeft("lost", "the lease is over")

    def ask(self) -> None:
        """Something was heard that may mean the run is over, or another's: let the fold say so."""
        if not self.leaving.over and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self.lease.renew(), name="refold-run-asked")

    def unavailable(self, error: BaseException) -> RunLeft:
        """Nothing answers: leave the run to whoever has it when the lease is over."""
        return self.leaving.leave(RunLeft("unavailable", f"nothing answers: {error}"))

    def began(self, step_id: str, spec: StepSpec, attempt: int, seq: int) -> StepRow:
        """The row of a step whose start was accepted."""
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
        """Read the rows as they are at ``seq`` or later. Raises RunLeft when nothing answers while the lease
        is held, or the run is another's."""
        try:
            row = await read_row(self.session, self.run_id, max(seq, self._seq), self.lease.left())
        except (TransientError, UnavailableError) as error:
            self.lease.check()
            raise self.unavailable(error) from error
        if row is None or row.epoch != self.writer.epoch or row.state != "leased":
            self.lease.lose("the run is another's, or over")
            self.lease.check()
        else:
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

    def _lost(self, reason: str) -> None:
        self.leaving.leave(RunLeft("lost", reason))

    def _closed(self) -> RunLeft:
        return self.leaving.leave(RunLeft("draining", "the session is closed"))

    def _heard(self, seq: int) -> None:
        self._seq = max(self._seq, seq)

    async def _renew(self, timeout_s: float) -> Ruling:
        agent = self.agent
        return await self.writer.renew(agent.lease_ms, agent.version, agent.accepts, timeout_s)
