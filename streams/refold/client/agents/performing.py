"""Executing a held run's body, from its start, until the run has ended here."""

from __future__ import annotations

import asyncio

from refold.client.agents.ending import Ended, completed, failed, fault, gone, left
from refold.client.agents.execution import Execution
from refold.client.agents.handles import plain
from refold.client.agents.limits import ROUNDS_MAX
from refold.client.agents.outcomes import BodyChanged, RunFailed, RunLeft
from refold.client.agents.run import Run
from refold.client.agents.stepping import Stepping
from refold.errors import (
    InvariantViolation,
    RefoldError,
    StorageError,
    TransientError,
    UnavailableError,
    UsageError,
)


async def perform(run: Execution) -> Ended:
    """Returns how it ended here; the lease is renewed meanwhile."""
    run.lease.start()
    try:
        try:
            return await _rounds(run)
        except RefoldError as error:
            # The fold refused what ends the run; a person has to see that, and not every lease again.
            return await fault(run, error)
    except RunLeft as why:
        return gone(run, why)
    finally:
        await run.lease.stop()


async def _rounds(run: Execution) -> Ended:
    for _ in range(ROUNDS_MAX):
        ended = await _execute(run)
        if ended is not None:
            return ended
        run.stepping = Stepping(run)
    return await fault(
        run, InvariantViolation(f"its steps were invalidated in {ROUNDS_MAX} executions in a row")
    )


async def _execute(run: Execution) -> Ended | None:
    """Once. ``None``: again, something it used does not hold any more."""
    try:
        given = await run.outputs.input(run.row)
    except (TransientError, UnavailableError, StorageError) as error:
        raise run.unavailable(error) from error
    except RefoldError as error:
        return await fault(run, error)
    body = asyncio.create_task(run.agent.body(Run(run, given)), name=f"refold-run-{run.run_id}")
    try:
        await _watch(run, body)
    finally:
        await run.running.cancel(body)
    raised = asyncio.CancelledError() if body.cancelled() else body.exception()
    left_for = run.leaving.left
    if raised is None and (left_for is None or left_for.why == "draining"):
        # A drain that comes after the last step has nothing to wait for.
        return await _returned(run, body.result())
    if isinstance(raised, RunFailed):
        return await failed(run, raised)
    if left_for is not None or raised is None:
        return await left(run, run.leaving.reason)
    if isinstance(raised, TransientError | UnavailableError | asyncio.CancelledError):
        raise run.unavailable(raised)
    return await fault(run, raised)


async def _watch(run: Execution, body: asyncio.Task[object]) -> None:
    """Until the body has ended, or has to."""
    leaving = run.leaving
    while not body.done() and not leaving.due(busy=run.running.busy):
        leaving.moved.clear()
        moved = asyncio.create_task(leaving.moved.wait())
        try:
            await asyncio.wait({body, moved}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()


async def _returned(run: Execution, result: object) -> Ended | None:
    if run.stepping.missing:
        return await fault(run, BodyChanged(run.changed("", run.stepping.missing)))
    await run.refresh()
    if running := [row.step_id for row in run.rows.values() if row.state == "running"]:
        return await fault(run, UsageError(f"the body returned while step {running[0]!r} runs: await it"))
    if any(not row.valid for name in run.stepping.order if (row := run.rows.get(name)) is not None):
        return None
    return await completed(run, plain(result))
