"""One operation from wherever it stands to its outcome: acquire, run, and again when it has moved on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.client.tools.acquire import ROUNDS_MAX, acquire, ask_archive, does_not_settle
from refold.client.tools.archive import may_have_forgotten
from refold.client.tools.call import ToolCall
from refold.client.tools.declare import Tool
from refold.client.tools.execute import execute
from refold.client.tools.operation import Grant, Operation
from refold.client.tools.outcomes import CallOutcome, NotDone, OutcomeNotKnown
from refold.client.tools.record import record_failed
from refold.client.tools.rows import Row, find_row, outcome_of
from refold.client.tools.schema import BadArguments


async def perform(op: Operation, tool: Tool, arguments: dict[str, Any] | BadArguments) -> CallOutcome | None:
    """``None``: another runner holds it and ``op.patient`` is off. ``arguments`` that no longer fit a tool
    which was started with them (it has changed since) are an error of the attempt, not of this process."""
    while True:
        got = await acquire(op)
        if not isinstance(got, Grant):
            return got
        outcome = await execute(got, _body(got, tool, arguments), retry_on=tool.retry_on)
        if outcome is not None:
            return outcome


def _body(grant: Grant, tool: Tool, arguments: dict[str, Any] | BadArguments) -> Any:
    op = grant.operation

    async def body(check: Callable[[], None]) -> Any:
        if isinstance(arguments, BadArguments):
            check()
            if grant.fresh:
                raise NotDone(str(arguments), code="invalid_arguments")
            raise OutcomeNotKnown(str(arguments))
        call = ToolCall(
            op.session, op.operation_id, op.tool, arguments, grant.key, grant.attempt, grant.lease,
            op.timeout_s, op.call_id,
        )  # fmt: skip
        return await tool.run(call, arguments, check)

    return body


async def refuse(op: Operation, code: str, reason: str) -> CallOutcome:
    """A call that cannot be run (no such tool, arguments that do not fit): the model gets an error, the raw
    text stays in the ledger. A call that has an outcome, or was started by a process that knew better, keeps
    what it has."""
    for _ in range(ROUNDS_MAX):
        view = await op.session.state()
        row: Row | None = find_row(view, op.operation_id, op.call_id, op.message_id)
        if row is None and view is not None and may_have_forgotten(view):
            _, first = await ask_archive(op, view, view.seq)
            if first is not None:
                return first
        if row is not None and row["state"] != "intended":
            return await outcome_of(op.session, row)
        if row is None or not row["declared"]:
            await op.rule(await op.intend(approval_required=False))
        if (outcome := await record_failed(op, None, code, reason)) is not None:
            return outcome
    raise does_not_settle(op)
