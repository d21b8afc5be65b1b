"""One attempt of a step: begun, run, and its outcome recorded.

Order: lease looked at → ``StepStarted`` accepted → lease looked at → body → ``StepCompleted`` accepted → the
run's body goes on. So two processes never run one step at once, and a body never sees an output that the
session does not hold.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from refold.client.agents.beats import Beats
from refold.client.agents.brief import CurrentStep
from refold.client.agents.handles import StepResult
from refold.client.agents.outcomes import NonRetryable, RunLeft
from refold.client.agents.points import POINTS
from refold.client.agents.replay import Begin
from refold.client.agents.rows import StepRow
from refold.client.agents.specs import Attempt, StepSpec
from refold.client.agents.values import decode, digest, encode, short
from refold.client.receipts import Refused
from refold.client.tools.outcomes import ApprovalPending
from refold.core.limits import ERROR_CODE_BYTES_MAX, RUN_ERROR_BYTES_MAX
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.agents.execution import Execution


log = logging.getLogger("refold.client")


class TryAgain(Exception):
    """The attempt failed, is recorded as failed, and the next may begin."""


async def attempt(run: Execution, step_id: str, spec: StepSpec, begin: Begin) -> StepResult:
    """The output. Raises TryAgain, or RunLeft when this process's part in the run is over."""
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
    row = run.began(step_id, spec, begin.attempt, ruling.seq or 0)
    run.stepping.current = CurrentStep(step_id, begin.attempt, spec.given.named())
    POINTS.reach("after_step_started", run.run_id, step_id)
    run.lease.check()
    beats = Beats(run.writer, step_id, begin.attempt, spec.heartbeat_s)
    try:
        body = spec.body(Attempt(step_id, begin.attempt, resumed, begin.rerun, beats))
        value = await run.running.body(step_id, body)
        POINTS.reach("after_step_body", run.run_id, step_id)
        output = encode(value, f"the output of step {step_id!r}")
        summary = spec.summary_of(decode(output))
    except ApprovalPending as pending:
        raise run.leaving.suspend([call.operation_id for call in pending.pending]) from None
    except Exception as error:
        await beats.stop()
        raise await _failed(run, row, spec, error) from error
    finally:
        await beats.stop()
    return await _completed(run, row, spec, output, summary)


async def _completed(run: Execution, row: StepRow, spec: StepSpec, output: bytes, summary: str) -> StepResult:
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
    run.stepping.ended(row.step_id)
    row.state, row.output_seq, row.reads = "completed", ruling.seq or 0, spec.given.reads
    row.output, row.output_digest, row.summary = output, made, summary
    run.rows[row.step_id] = row
    if row.attempt > 1:
        # What had read the output before is invalid by now (N6).
        await run.refresh(ruling.seq or 0)
    return StepResult(row.step_id, decode(output), made, row.attempt, summary)


async def _failed(run: Execution, row: StepRow, spec: StepSpec, error: Exception) -> BaseException:
    """Record it; what to raise: another attempt, or the end of this process's part in the run."""
    log.warning(
        "step_failed run=%s step=%s attempt=%d: %s", run.run_id, row.step_id, row.attempt, code_of(error)
    )
    # An exception's text may be what a person wrote.
    log.debug("step_failed run=%s step=%s", run.run_id, row.step_id, exc_info=error)
    failures = row.failures + 1
    retries = min(spec.retries, run.row.data["retries_max"])
    again = not isinstance(error, NonRetryable | UsageError) and failures <= retries
    if not again:
        # It takes the run from us: steps that run beside it are recorded first.
        run.leaving.leave(RunLeft("review", f"step {row.step_id!r} failed for good: a person decides"))
        await run.stepping.others_ended()
        run.leaving.over = True
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
    row.state, row.failures = "failed", failures
    run.rows[row.step_id] = row
    return TryAgain() if again else run.leaving.reason


def code_of(error: BaseException) -> str:
    """What the error calls itself, or the fold's word; else its type."""
    if isinstance(error, Refused) and error.ruling.code:
        return error.ruling.code
    return str(getattr(error, "code", None) or type(error).__name__)
