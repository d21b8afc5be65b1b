"""A step from being asked for to its output: replayed, or attempted, at most twice again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from refold.client.agents.attempting import TryAgain, attempt
from refold.client.agents.brief import CurrentStep
from refold.client.agents.handles import StepResult
from refold.client.agents.limits import REPLAY_GRACE_S, RETRY_PAUSE_S, RETRY_PAUSE_S_MAX
from refold.client.agents.outcomes import BodyChanged, StaleStep
from refold.client.agents.replay import (
    Begin,
    Decision,
    Expected,
    Invalidate,
    Refuse,
    Replay,
    StepIds,
    decide_step,
)
from refold.client.agents.rows import StepRow
from refold.client.agents.specs import StepSpec
from refold.errors import StorageError, TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.agents.execution import Execution


class Stepping:
    """The steps of one execution of a body."""

    def __init__(self, execution: Execution) -> None:
        self._run = execution
        self._ids = StepIds()
        self._expected = Expected(execution.rows.values())
        self._asked = asyncio.Event()
        #: Ids asked for, in order.
        self.order: list[str] = []
        #: The step that began last and has not ended, for the brief.
        self.current: CurrentStep | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Recorded steps that the body has not asked for."""
        return self._expected.missing

    def ended(self, step_id: str) -> None:
        if self.current is not None and self.current.step_id == step_id:
            self.current = None

    async def others_ended(self) -> None:
        """Until no step runs here but those that have failed for good."""
        running, moved = self._run.running, self._run.leaving.moved
        running.ending()
        while not running.alone:
            # Shared with who watches the body: it looks again whatever happened.
            await moved.wait()
            await asyncio.sleep(0)

    async def perform(self, spec: StepSpec) -> StepResult:
        """The step's output. Raises RunLeft when this process leaves the run, BodyChanged, StaleStep."""
        run = self._run
        with run.running.step():
            run.check()
            step_id = self._ids.next(spec.name)
            self.order.append(step_id)
            self._expected.asked(step_id)
            self._asked.set()
            row = run.rows.get(step_id)
            said = decide_step(row, spec.given.inputs, rerunnable=spec.rerunnable)
            if isinstance(said, Replay) and row is not None:
                return await self._recorded(row)
            if isinstance(said, Invalidate):
                said = await self._invalidated(step_id, spec)
            return await self._attempts(step_id, spec, await self._begin(step_id, said))

    async def _recorded(self, row: StepRow) -> StepResult:
        try:
            value = await self._run.outputs.of_step(row)
        except (TransientError, UnavailableError, StorageError) as error:
            raise self._run.unavailable(error) from error
        made = row.output_digest or ""
        return StepResult(row.step_id, value, made, row.attempt, row.summary, replayed=True)

    async def _invalidated(self, step_id: str, spec: StepSpec) -> Decision:
        payload = {
            "steps": [step_id],
            "mode": "by_digest",
            "by": self._run.holder,
            "reason": "its inputs have changed",
            "approved": False,
        }
        ruling = await self._run.writer.write("StepInvalidated", payload, step=step_id)
        await self._run.refresh(ruling.seq or 0)
        return decide_step(self._run.rows.get(step_id), spec.given.inputs, rerunnable=spec.rerunnable)

    async def _begin(self, step_id: str, said: Decision) -> Begin:
        """Where the step may begin; raises what keeps it from that."""
        if isinstance(said, Refuse):
            if said.why == "stale":
                raise StaleStep(
                    f"step {step_id!r} had an effect outside, and what it read has changed since: say "
                    "whether it may run again with `refold run retry --rerun`, or declare it rerunnable=True"
                )
            raise BodyChanged(
                f"step {step_id!r} was begun with other inputs, and may have had its effect with those: "
                "bring back the version that began it"
            )
        if not isinstance(said, Begin):
            raise BodyChanged(f"step {step_id!r} cannot begin: its row changed while it was asked for")
        if not said.again:
            await self._nothing_missing(step_id)
        elif said.rerun:
            self._expected.let_go()
        return said

    async def _attempts(self, step_id: str, spec: StepSpec, begin: Begin) -> StepResult:
        pause = RETRY_PAUSE_S
        while True:
            try:
                return await attempt(self._run, step_id, spec, begin)
            except TryAgain:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_PAUSE_S_MAX)
                begin = Begin(begin.attempt + 1, again=True, rerun=True)

    async def _nothing_missing(self, step_id: str) -> None:
        """Wait until the body has asked for all that is recorded; raises BodyChanged when it does not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REPLAY_GRACE_S
        while self._expected.missing:
            self._asked.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._asked.wait()
            except TimeoutError:
                raise BodyChanged(self._run.changed(step_id, self._expected.missing)) from None
