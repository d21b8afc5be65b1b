"""How a held run ends here: the body's result, its failure, or this process leaving it.

============================  ====================================================================
the body                      what is recorded
============================  ====================================================================
returns                       ``RunCompleted``, unless a step it used was invalidated meanwhile:
                              then it is executed again under the same lease
raises RunFailed              ``RunFailed``
raises anything else          a failed step ``@body``: the run waits for a person and, mostly, for
                              another version (``refold run retry``)
waits for approvals           ``RunSuspended``; ``RunReleased`` where they were given meanwhile
is drained                    ``RunReleased``: another process goes on at once
loses its lease               nothing: another process has the run, or will
============================  ====================================================================
"""

from __future__ import annotations

import logging
from typing import Final, Literal, TypeAlias

from refold.client.agents.attempting import code_of
from refold.client.agents.execution import Execution
from refold.client.agents.outcomes import RunFailed, RunLeft
from refold.client.agents.points import POINTS
from refold.client.agents.replay import OCCURRENCE
from refold.client.agents.values import encode, short, summary_of
from refold.core.limits import ERROR_CODE_BYTES_MAX, RUN_ERROR_BYTES_MAX, RUN_WAITING_MAX
from refold.errors import RefoldError

log = logging.getLogger("refold.client")

Ended: TypeAlias = Literal["completed", "failed", "review", "suspended", "released", "left"]

#: The step that stands for the body itself when the body is what failed.
BODY_STEP: Final = f"{OCCURRENCE}body"

#: The fold's word where a run has too many steps, or its session too much of them.
NO_ROOM: Final = frozenset({"runs_full"})
#: The fold's word for a suspension whose calls wait no more.
NOTHING_WAITS: Final = frozenset({"illegal_transition", "unknown_call"})


async def completed(run: Execution, value: object) -> Ended:
    """The body returned ``value``, and what it used still holds."""
    try:
        output = encode(value, "the run's result")
    except RefoldError as error:
        return await fault(run, error)
    POINTS.reach("before_run_completed", run.run_id)
    run.leaving.over = True
    await run.writer.write("RunCompleted", {"output": output, "summary": summary_of(value)})
    POINTS.reach("after_run_completed", run.run_id)
    return "completed"


async def failed(run: Execution, error: RunFailed) -> Ended:
    run.leaving.over = True
    payload = {
        "code": short(error.code, ERROR_CODE_BYTES_MAX),
        "error": short(str(error), RUN_ERROR_BYTES_MAX),
    }
    await run.writer.write("RunFailed", payload)
    return "failed"


async def fault(run: Execution, error: BaseException) -> Ended:
    """The body's own fault: as a failed step, so that the run goes to the review queue and can be retried."""
    log.warning("run_body_failed run=%s: %s", run.run_id, type(error).__name__)
    log.debug("run_body_failed run=%s", run.run_id, exc_info=error)
    run.leaving.over = True
    before = run.rows.get(BODY_STEP)
    attempt = 1 if before is None else before.attempt + (0 if before.state == "running" else 1)
    step = {"step_id": BODY_STEP, "attempt": attempt}
    code, text = code_of(error), str(error) or type(error).__name__
    started = await run.writer.write(
        "StepStarted",
        {**step, "name": BODY_STEP, "inputs": [], "effect": "none", "rerunnable": True, "heartbeat_ms": 0},
        step=BODY_STEP,
        allowed=NO_ROOM,
    )
    if not started.in_effect:
        # There is no room for it, as for no further step: no version could go on with this run.
        return await failed(run, RunFailed(text, code=code))
    failure = {
        **step,
        "code": short(code, ERROR_CODE_BYTES_MAX),
        "error": short(text, RUN_ERROR_BYTES_MAX),
        "retryable": False,
    }
    await run.writer.write("StepFailed", failure, step=BODY_STEP)
    return "review"


async def left(run: Execution, why: RunLeft) -> Ended:
    """This process leaves the run, at the boundary it has reached."""
    if why.why == "review":
        return "review"
    if why.why == "suspended":
        POINTS.reach("before_suspended", run.run_id)
        run.leaving.over = True
        waiting = list(run.leaving.waiting_for)[:RUN_WAITING_MAX]
        ruling = await run.writer.write("RunSuspended", {"waiting_for": waiting}, allowed=NOTHING_WAITS)
        return "suspended" if ruling.in_effect else await released(run, "approved")
    if why.why == "draining":
        return await released(run, "drained")
    return gone(run, why)


async def released(run: Execution, reason: str) -> Ended:
    """Give the run back, unless a body still runs that cannot be cancelled: its lease runs out then."""
    if run.running.unstoppable:
        return gone(run, RunLeft("lost", "a body runs in a thread and cannot be stopped"))
    POINTS.reach("before_released", run.run_id)
    run.leaving.over = True
    await run.writer.write("RunReleased", {"reason": reason})
    return "released"


def gone(run: Execution, why: RunLeft) -> Ended:
    log.info("run_left run=%s epoch=%d: %s", run.run_id, run.writer.epoch, why)
    return "left"
