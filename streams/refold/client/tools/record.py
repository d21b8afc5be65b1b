"""Recording an outcome. What happened is recorded whatever it takes; what stands is the first final one."""

from __future__ import annotations

from typing import Any, Final

from refold.client.receipts import Receipt
from refold.client.snapshots import FINAL_CALL_STATES
from refold.client.tools.operation import Operation
from refold.client.tools.outcomes import CallOutcome
from refold.client.tools.points import POINTS
from refold.client.tools.results import content_of, summary_of, text_of, value_of, whole
from refold.client.tools.rows import find_row, outcome_of
from refold.core.limits import ERROR_BYTES_MAX, ERROR_CODE_BYTES_MAX, RESULT_SUMMARY_BYTES_MAX
from refold.errors import InvalidRecord, NotFound, StorageError, UsageError
from refold.formats.markers import MARK, missing_result
from refold.wire.parts import text as text_part

#: Of a result in the row: the whole is in the journal.
SUMMARY_BYTES: Final = RESULT_SUMMARY_BYTES_MAX


async def record_done(
    op: Operation,
    attempt: int,
    result: Any,
    duration_ms: int | None,
    *,
    is_error: bool = False,
    error_code: str | None = None,
    reconciled: bool = False,
) -> CallOutcome | None:
    """The call took effect and this is its answer. Raises TransientError when it cannot be recorded: then it
    stays *started*, and whoever reconciles it asks the external system."""
    content, extra = content_of(result)
    said = text_of(content)

    async def append(parts: Any, short: str, more: bytes | None) -> Receipt:
        return await op.send(
            lambda: op.session.tool_completed(
                op.operation_id,
                parts,
                call_id=op.call_id,
                call_attempt=attempt,
                summary=summary_of(short, SUMMARY_BYTES),
                is_error=is_error,
                error_code=None if error_code is None else summary_of(error_code, ERROR_CODE_BYTES_MAX),
                duration_ms=duration_ms,
                reconciled=reconciled,
                extra=more,
                **op.options(attempt),
            )
        )

    POINTS.reach("before_result", op.operation_id, op.tool)
    try:
        receipt = await append(content, said, extra)
    except (StorageError, UsageError, InvalidRecord) as error:
        # The result cannot be kept (blob store away, too large, foreign parts); that it happened must be.
        said = f"{MARK}done: the result could not be kept ({type(error).__name__})]"
        content, extra = [text_part(said)], None
        receipt = await append(content, said, extra)
    POINTS.reach("after_result", op.operation_id, op.tool)
    return await _standing(
        op,
        receipt,
        CallOutcome(
            op.operation_id, op.tool, "done", said, is_error, attempt, value_of(content, extra), content
        ),
    )


async def record_failed(
    op: Operation,
    attempt: int | None,
    code: str,
    reason: str,
    *,
    retryable: bool = False,
    reconciled: bool = False,
) -> CallOutcome | None:
    """The call is known not to have taken effect, and is not tried again."""
    said = whole(reason)
    content = [text_part(said)]
    POINTS.reach("before_result", op.operation_id, op.tool)
    receipt = await op.send(
        lambda: op.session.tool_failed(
            op.operation_id,
            summary_of(said, ERROR_BYTES_MAX),
            content=content,
            call_id=op.call_id,
            call_attempt=attempt,
            summary=summary_of(said, SUMMARY_BYTES),
            error_code=summary_of(whole(code), ERROR_CODE_BYTES_MAX),
            retryable=retryable,
            reconciled=reconciled,
            **op.options(attempt),
        )
    )
    POINTS.reach("after_result", op.operation_id, op.tool)
    return await _standing(
        op,
        receipt,
        CallOutcome(op.operation_id, op.tool, "failed", said, True, attempt or 0, said, content, said),
    )


async def record_unknown(op: Operation, attempt: int, reason: str) -> CallOutcome | None:
    """Nobody can tell: the review queue. Never run again by itself."""
    POINTS.reach("before_result", op.operation_id, op.tool)
    receipt = await op.send(
        lambda: op.session.tool_unknown(
            op.operation_id,
            summary_of(whole(reason), ERROR_BYTES_MAX),
            call_attempt=attempt,
            **op.options(attempt),
        )
    )
    POINTS.reach("after_result", op.operation_id, op.tool)
    said, _ = missing_result({"state": "unknown"})
    return await _standing(
        op,
        receipt,
        CallOutcome(
            op.operation_id, op.tool, "unknown", said, True, attempt, None, [text_part(said)], reason
        ),
    )


async def _standing(op: Operation, receipt: Receipt, made: CallOutcome) -> CallOutcome | None:
    """What stands in the ledger: ours, or what somebody recorded before us. ``None``: neither, the call is
    another runner's by now."""
    if not op.wait_accepted:
        return made
    if (await op.rule(receipt)).status == "accepted":
        return made
    view = await op.session.state()
    row = find_row(view, op.operation_id, op.call_id, op.message_id)
    if row is None:
        raise NotFound(f"operation {op.operation_id} has no row: its session was deleted meanwhile")
    if row["state"] not in FINAL_CALL_STATES and row["state"] != "unknown":
        return None
    return await outcome_of(op.session, row)
