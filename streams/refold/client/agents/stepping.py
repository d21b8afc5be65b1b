"""One step from being asked for to its output: replayed, or begun, run and recorded; retried at most twice.

Order of a step that runs: lease looked at → ``StepStarted`` accepted → lease looked at → body →
``StepCompleted`` accepted → the body goes on. So two processes never run one step at once, and a body never
sees an output that the session does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refold.client.agents.beats import Beats
from refold.client.agents.brief import CurrentStep
from refold.client.agents.handles import Given, StepResult
from refold.client.agents.limits import REPLAY_GRACE_S, RETRIES_MAX, RETRY_PAUSE_S, RETRY_PAUSE_S_MAX
from refold.client.agents.outcomes import BodyChanged, NonRetryable, RunLeft, StaleStep
from refold.client.agents.points import POINTS
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
from refold.client.agents.values import decode, digest, encode, short, summary_of
from refold.client.tools.outcomes import ApprovalPending, Effect
from refold.core.limits import ERROR_CODE_BYTES_MAX, RUN_ERROR_BYTES_MAX, RUN_SUMMARY_BYTES_MAX
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.agents.execution import Execution


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a body is given. ``resumed``: this attempt was begun before, and nobody knows what came of it;
    ``rerun``: one before it had an outcome."""

    step_id: str
    number: int
    resumed: bool
    rerun: bool
    beats: Beats


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A step as the body asks for it. ``summary``: a text, or made of the output; ``None``: its beginning."""

    name: str
    given: Given
    body: Callable[[Attempt], Awaitable[Any]]
    effect: Effect = "none"
    rerunnable: bool = False
    retries: int = RETRIES_MAX
    heartbeat_s: float = 0.0
    summary: str | Callable[[Any], str] | None = None


class _Again(Exception):
    """The attempt failed, and the next may begin."""


class Stepping:
    """The steps of one execution of a body."""

    def __init__(self, execution: Execution) -> None:
        self._run = execution
        self._ids = StepIds()
        self._expected = Expected(execution.rows.values())
        self._asked = asyncio.Event()
        #: Ids asked for, in order.
        self.order: list[str] = []
        #: The step that began last, for the brief.
        self.current: CurrentStep | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Recorded steps that the body has not asked for."""
        return self._expected.missing

    async def perform(self, spec: StepSpec) -> StepResult:
        """The step's output. Raises RunLeft when this process leaves the run, BodyChanged, StaleStep."""
        run = self._run
        run.check()
        step_id = self._ids.next(spec.name)
        self.order.append(step_id)
        self._expected.asked(step_id)
        self._asked.set()
        with run.in_step(step_id):
            row = run.rows.get(step_id)
            said = decide_step(row, spec.given.inputs, rerunnable=spec.rerunnable)
            if isinstance(said, Replay) and row is not None:
                return await self._recorded(row)
            if isinstance(said, Invalidate):
                said = await self._invalidated(step_id, spec)
            return await self._begun(step_id, spec, said)

    async def _recorded(self, row: StepRow) -> StepResult:
        value = await self._run.outputs.of_step(row)
        return StepResult(
            row.step_id, value, row.output_digest or "", row.attempt, row.summary, replayed=True
        )

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

    async def _begun(self, step_id: str, spec: StepSpec, said: Decision) -> StepResult:
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
        pause = RETRY_PAUSE_S
        while True:
            try:
                return await self._attempt(step_id, spec, said)
            except _Again:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_PAUSE_S_MAX)
                said = Begin(said.attempt + 1, again=True, rerun=True)

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

    async def _attempt(self, step_id: str, spec: StepSpec, begin: Begin) -> StepResult:
        run = self._run
        run.check()
        POINTS.reach("before_step", run.run_id, step_id)
        before = run.rows.get(step_id)
        ruling = await run.writer.write(
            "StepStarted",
            {
                "step_id": step_id,
                "name": spec.name,
                "attempt": begin.attempt,
                "inputs": [{"name": name, "digest": made} for name, made in spec.given.inputs],
                "effect": spec.effect,
                "rerunnable": spec.rerunnable,
                "heartbeat_ms": int(spec.heartbeat_s * 1000),
            },
            step=step_id,
            attempt=begin.attempt,
        )
        resumed = before is not None and before.state == "running"
        row = run.started(step_id, spec, begin.attempt, ruling.seq or 0)
        self.current = CurrentStep(step_id, begin.attempt, spec.given.named())
        POINTS.reach("after_step_started", run.run_id, step_id)
        run.lease.check()
        beats = Beats(run.writer, step_id, begin.attempt, spec.heartbeat_s)
        try:
            value = await spec.body(Attempt(step_id, begin.attempt, resumed, begin.rerun, beats))
            POINTS.reach("after_step_body", run.run_id, step_id)
            output = encode(value, f"the output of step {step_id!r}")
            summary = _summary(spec, decode(output))
        except ApprovalPending as pending:
            run.suspend([call.operation_id for call in pending.pending])
            raise run.leaving from None
        except Exception as error:
            await beats.stop()
            raise await self._failed(row, spec, error) from error
        finally:
            await beats.stop()
        return await self._completed(row, spec, output, summary)

    async def _completed(self, row: StepRow, spec: StepSpec, output: bytes, summary: str) -> StepResult:
        run = self._run
        POINTS.reach("before_step_completed", run.run_id, row.step_id)
        made = digest(output)
        ruling = await run.writer.write(
            "StepCompleted",
            {
                "step_id": row.step_id,
                "attempt": row.attempt,
                "output": output,
                "output_digest": made,
                "summary": summary,
                "reads": [{"step_id": step_id, "digest": read} for step_id, read in spec.given.reads],
            },
            step=row.step_id,
            attempt=row.attempt,
        )
        POINTS.reach("after_step_completed", run.run_id, row.step_id)
        if self.current is not None and self.current.step_id == row.step_id:
            self.current = None
        rerun = row.attempt > 1
        row.state, row.output_digest, row.summary, row.output_seq = (
            "completed",
            made,
            summary,
            ruling.seq or 0,
        )
        row.output, row.reads = output, spec.given.reads
        if rerun:
            # What had read the output before is invalid by now (N6).
            await run.refresh(ruling.seq or 0)
        return StepResult(row.step_id, decode(output), made, row.attempt, summary)

    async def _failed(self, row: StepRow, spec: StepSpec, error: Exception) -> BaseException:
        """Record it; what to raise: another attempt, or the end of this process's part in the run."""
        run = self._run
        failures = row.failures + 1
        again = not isinstance(error, NonRetryable | UsageError) and failures <= min(
            spec.retries, run.row.data["retries_max"]
        )
        run.over = not again
        await run.writer.write(
            "StepFailed",
            {
                "step_id": row.step_id,
                "attempt": row.attempt,
                "code": short(code_of(error), ERROR_CODE_BYTES_MAX),
                "error": short(str(error), RUN_ERROR_BYTES_MAX),
                "retryable": again,
            },
            step=row.step_id,
            attempt=row.attempt,
        )
        row.state, row.failures, row.error = "failed", failures, str(error)
        if again:
            return _Again()
        return run.leave(RunLeft("review", f"step {row.step_id!r} failed for good: a person decides"))


def code_of(error: BaseException) -> str:
    """What the error calls itself, else its type."""
    return str(getattr(error, "code", None) or type(error).__name__)


def _summary(spec: StepSpec, value: Any) -> str:
    if spec.summary is None:
        return summary_of(value)
    made = spec.summary if isinstance(spec.summary, str) else spec.summary(value)
    return short(made, RUN_SUMMARY_BYTES_MAX)
