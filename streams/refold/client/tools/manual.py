"""``async with session.tool(...) as call``: the steps of a call around a block of the caller's code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from refold.client.tools.acquire import acquire, give_back
from refold.client.tools.aftermath import finish, settle
from refold.client.tools.call import ManualCall
from refold.client.tools.clocks import lease_clock
from refold.client.tools.execute import cancelled, conclude, ms_since
from refold.client.tools.operation import Grant, Operation
from refold.client.tools.outcomes import (
    AlreadySettled,
    ApprovalPending,
    CallOutcome,
    LeaseLost,
    OutcomeUnknown,
)
from refold.client.tools.points import POINTS
from refold.client.tools.record import record_done


@asynccontextmanager
async def manual(op: Operation, values: Mapping[str, Any]) -> AsyncGenerator[ManualCall, None]:
    """Enter only with the right to run; what the block says, or how it ends, is recorded."""
    grant = await _enter(op)
    call = ManualCall(
        op.session, op.operation_id, op.tool, values, grant.key, grant.attempt, grant.lease, op.timeout_s,
        op.call_id,
    )  # fmt: skip
    started_at = lease_clock()
    try:
        try:
            async with asyncio.timeout(op.timeout_s):
                yield call
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            # What the block said counts although it was cancelled after.
            await settle(
                _conclude_said(grant, call, started_at) if call.said else cancelled(grant, began=True)
            )
            raise
        except Exception as error:
            POINTS.reach("after_effect", op.operation_id, op.tool)
            await finish(
                _conclude_said(grant, call, started_at)
                if call.said
                else conclude(grant, error, started_at, may_retry=False, again=not grant.fresh)
            )
            raise
        POINTS.reach("after_effect", op.operation_id, op.tool)
        if not call.said:
            call.done()
        await finish(_conclude_said(grant, call, started_at))
    finally:
        await grant.lease.stop()


async def _enter(op: Operation) -> Grant:
    while True:
        got = await acquire(op)
        if isinstance(got, CallOutcome):
            raise _nothing_to_run(got)
        if got is None:
            raise LeaseLost(f"operation {op.operation_id} is held by another runner")
        POINTS.reach("before_effect", op.operation_id, op.tool)
        if got.lease.held():
            return got
        await got.lease.stop()
        if got.ours_alone:
            await give_back(op, got.attempt)


def _nothing_to_run(outcome: CallOutcome) -> Exception:
    if outcome.state == "awaiting_approval":
        return ApprovalPending([outcome])
    return OutcomeUnknown(outcome) if outcome.state == "unknown" else AlreadySettled(outcome)


async def _conclude_said(grant: Grant, call: ManualCall, started_at: float) -> None:
    op = grant.operation
    if isinstance(call.verdict, BaseException):
        call.outcome = await conclude(grant, call.verdict, started_at, may_retry=False, again=not grant.fresh)
    else:
        _, result, is_error = call.verdict
        call.outcome = await record_done(op, grant.attempt, result, ms_since(started_at), is_error=is_error)
