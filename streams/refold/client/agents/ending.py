"""How a held run ends here: the body's result, its failure, or this process leaving it.

============================  ====================================================================
the body                      what is recorded
============================  ====================================================================
returns                       ``RunCompleted``, unless a step it used was invalidated meanwhile:
                              then it runs again under the same lease
raises RunFailed              ``RunFailed``
raises anything else          a failed step ``@body``: the run waits for a person and, mostly, for
                              another version (``refold run retry``)
waits for approvals           ``RunSuspended``; ``RunReleased`` where they were given meanwhile
is drained                    ``RunReleased``: another process goes on at once
loses its lease               nothing: another process has the run, or will
============================  ====================================================================
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal, TypeAlias

from refold.client.agents.execution import AT_ONCE, Execution
from refold.client.agents.handles import plain
from refold.client.agents.limits import ROUNDS_MAX
from refold.client.agents.outcomes import BodyChanged, RunFailed, RunLeft
from refold.client.agents.points import POINTS
from refold.client.agents.replay import OCCURRENCE
from refold.client.agents.run import Run
from refold.client.agents.stepping import Stepping
from refold.client.agents.values import encode, short, summary_of
from refold.core.limits import ERROR_CODE_BYTES_MAX, RUN_ERROR_BYTES_MAX, RUN_WAITING_MAX
from refold.errors import InvariantViolation, RefoldError

log = logging.getLogger("refold.client")

Ended: TypeAlias = Literal["completed", "failed", "review", "suspended", "released", "left"]

#: The step that stands for the body itself when the body is what failed.
BODY_STEP: Final = f"{OCCURRENCE}body"

#: The fold's word where a run has too many steps, or its session too much of them.
NO_ROOM: Final = frozenset({"runs_full"})

#: The fold's word for a suspension whose calls wait no more.
NOTHING_WAITS: Final = frozenset({"illegal_transition", "unknown_call"})


async def perform(execution: Execution) -> Ended:
    """Run the body to one of the ends above; the lease is renewed meanwhile."""
    execution.lease.start()
    try:
        for _ in range(ROUNDS_MAX):
            ended = await _round(execution)
            if ended is not None:
                return ended
            execution.stepping = Stepping(execution)
        return await _fault(
            execution, InvariantViolation(f"its steps were invalidated in {ROUNDS_MAX} executions in a row")
        )
    except RunLeft as left:
        return _gone(execution, left)
    finally:
        await execution.lease.stop()


def _gone(execution: Execution, left: RunLeft) -> Ended:
    log.info("run_left run=%s epoch=%d: %s", execution.run_id, execution.writer.epoch, left)
    return "left"


async def _round(execution: Execution) -> Ended | None:
    """One execution of the body. ``None``: again."""
    task = await Run.make(execution)
    body = asyncio.create_task(execution.agent.body(task), name=f"refold-run-{execution.run_id}")
    try:
        await _watch(execution, body)
    finally:
        await execution.cancel(body)
    error = None if body.cancelled() else body.exception()
    left = execution.left
    if left is not None and (left.why != "draining" or body.cancelled() or error is not None):
        if left.why == "draining" and isinstance(error, RunFailed):
            return await _failed(execution, error)
        return await _left(execution, left)
    if isinstance(error, RunFailed):
        return await _failed(execution, error)
    if error is not None:
        return await _fault(execution, error)
    if body.cancelled():
        raise execution.leave(RunLeft("unavailable", "the body was cancelled"))
    return await _returned(execution, body.result())


async def _watch(execution: Execution, body: asyncio.Task[object]) -> None:
    """Until the body has ended, or has to."""
    while not body.done():
        left = execution.left
        if left is not None and (left.why in AT_ONCE or execution.hurry or not execution.busy):
            return
        execution.moved.clear()
        moved = asyncio.create_task(execution.moved.wait())
        try:
            await asyncio.wait({body, moved}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()


async def _returned(execution: Execution, result: object) -> Ended | None:
    stepping = execution.stepping
    if stepping.missing:
        return await _fault(execution, BodyChanged(execution.changed("", stepping.missing)))
    try:
        value = plain(result)
        output = encode(value, "the run's result")
    except RefoldError as error:
        return await _fault(execution, error)
    await execution.refresh()
    if any(not row.valid for name in stepping.order if (row := execution.rows.get(name)) is not None):
        return None
    POINTS.reach("before_run_completed", execution.run_id)
    execution.over = True
    await execution.writer.write("RunCompleted", {"output": output, "summary": summary_of(value)})
    POINTS.reach("after_run_completed", execution.run_id)
    return "completed"


async def _failed(execution: Execution, error: RunFailed) -> Ended:
    execution.over = True
    await execution.writer.write(
        "RunFailed",
        {
            "code": short(error.code, ERROR_CODE_BYTES_MAX),
            "error": short(str(error), RUN_ERROR_BYTES_MAX),
        },
    )
    return "failed"


async def _fault(execution: Execution, error: BaseException) -> Ended:
    """The body's own fault: as a failed step, so that the run goes to the review queue and can be retried."""
    log.warning("run_body_failed run=%s: %s", execution.run_id, type(error).__name__)
    before = execution.rows.get(BODY_STEP)
    attempt = 1 if before is None else before.attempt + (0 if before.state == "running" else 1)
    step = {"step_id": BODY_STEP, "attempt": attempt}
    code = type(error).__name__
    execution.over = True
    started = await execution.writer.write(
        "StepStarted",
        {**step, "name": BODY_STEP, "inputs": [], "effect": "none", "rerunnable": True, "heartbeat_ms": 0},
        step=BODY_STEP,
        allowed=NO_ROOM,
    )
    if not started.in_effect:
        # There is no room for it, as for no further step: no version could go on with this run.
        return await _failed(execution, RunFailed(str(error) or code, code=code))
    await execution.writer.write(
        "StepFailed",
        {
            **step,
            "code": short(code, ERROR_CODE_BYTES_MAX),
            "error": short(str(error) or code, RUN_ERROR_BYTES_MAX),
            "retryable": False,
        },
        step=BODY_STEP,
    )
    return "review"


async def _left(execution: Execution, left: RunLeft) -> Ended:
    if left.why == "review":
        return "review"
    if left.why == "suspended":
        POINTS.reach("before_suspended", execution.run_id)
        execution.over = True
        waiting = list(execution.waiting_for)[:RUN_WAITING_MAX]
        ruling = await execution.writer.write("RunSuspended", {"waiting_for": waiting}, allowed=NOTHING_WAITS)
        if ruling.in_effect:
            return "suspended"
        return await release(execution, "approved")
    if left.why == "draining":
        return await release(execution, "drained")
    return _gone(execution, left)


async def release(execution: Execution, reason: str) -> Ended:
    """Give the run back, unless a body still runs that cannot be cancelled: its lease runs out then."""
    if execution.unstoppable:
        return _gone(execution, RunLeft("lost", "a body runs in a thread and cannot be stopped"))
    POINTS.reach("before_released", execution.run_id)
    execution.over = True
    await execution.writer.write("RunReleased", {"reason": reason})
    return "released"
