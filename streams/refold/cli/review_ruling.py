"""A person's ruling on a call that waits, as the event that says it.

======== ================= ============================= =============================================
ruling   for a call that   event                         then
======== ================= ============================= =============================================
approve  awaits approval   ToolCallApproved              it runs when its agent asks for it next
deny     awaits approval   ToolCallDenied                final; the model is told
done     is unknown        ToolCallCompleted, reconciled final, with this result
failed   is unknown        ToolCallFailed, reconciled    final; it had no effect
not_done is unknown        ToolCallReconciled, not_done  it runs as the next attempt
======== ================= ============================= =============================================

Every event bears the operator as its actor (kind ``user``) and the reason, so the journal is the audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from refold.cli.review_items import WAITING, waiting_row
from refold.client import Actor, Refused, Session
from refold.core.limits import ERROR_BYTES_MAX, ID_BYTES_MAX, RESULT_SUMMARY_BYTES_MAX
from refold.errors import NotFound, UsageError

Verb = Literal["approve", "deny", "done", "failed", "not_done"]

#: Which rulings a waiting call takes.
FOR: Final[Mapping[str, tuple[Verb, ...]]] = {
    "approval": ("approve", "deny"),
    "unknown": ("done", "failed", "not_done"),
}

#: Refusals that mean: somebody else was faster.
SETTLED: Final = frozenset({"illegal_transition", "already_final", "stale_holder"})


@dataclass(frozen=True, slots=True)
class Ruling:
    """``text``: the result of ``done``, the reason of ``failed``."""

    verb: Verb
    text: str | None
    by: str
    reason: str | None

    def __post_init__(self) -> None:
        if not self.by or len(self.by.encode()) > ID_BYTES_MAX - len("operator/"):
            raise UsageError("--by: a name of 1 to 247 bytes is needed; it is kept in the journal.")
        for given, option in (
            (self.reason, "--reason"),
            (self.text if self.verb == "failed" else None, "--failed"),
        ):
            if given is not None and len(given.encode()) > ERROR_BYTES_MAX:
                raise UsageError(f"{option} is longer than {ERROR_BYTES_MAX} bytes: say it shorter.")


async def resolve(session: Session, operation: str, ruling: Ruling) -> dict[str, Any]:
    """Rule on the call; waits until it is accepted. Raises UsageError for a ruling that does not fit,
    NotFound when the call waits no more."""
    row = await waiting_row(session, operation)
    kind = WAITING[row["state"]]
    if ruling.verb not in FOR[kind]:
        fitting = " or ".join(f"--{verb.replace('_', '-')}" for verb in FOR[kind])
        waits = "for approval" if kind == "approval" else "because its outcome is unknown"
        raise UsageError(f"call {operation!r} waits {waits}: rule {fitting}.")
    try:
        receipt = await _append(session, operation, row, ruling)
        seq = await receipt.accepted()
    except Refused as refused:
        if refused.ruling.code not in SETTLED:
            raise
        raise NotFound(
            f"call {operation!r} was settled by somebody else meanwhile: {refused.ruling.reason}."
        ) from None
    return {
        "tenant": session.tenant,
        "session": session.id,
        "operation_id": operation,
        "tool": row["tool"],
        "ruling": ruling.verb,
        "attempt": row["attempt"],
        "by": ruling.by,
        "reason": ruling.reason,
        "seq": seq,
    }


async def _append(session: Session, operation: str, row: Mapping[str, Any], ruling: Ruling) -> Any:
    actor = Actor("user", ruling.by)
    attempt = row["attempt"]
    if ruling.verb == "approve":
        return await session.approve(operation, by=ruling.by, reason=ruling.reason, actor=actor)
    if ruling.verb == "deny":
        return await session.deny(operation, by=ruling.by, reason=ruling.reason, actor=actor)
    if ruling.verb == "not_done":
        return await session.tool_reconciled(
            operation,
            "not_done",
            holder=f"operator/{ruling.by}",
            call_attempt=attempt,
            detail=ruling.reason or "ruled in a review",
            actor=actor,
        )
    # The outcome events have no place of their own for a reason.
    audit = orjson.dumps({"review": {"by": ruling.by, "reason": ruling.reason}})
    common: dict[str, Any] = {
        "call_id": row["call_id"],
        "call_attempt": attempt,
        "reconciled": True,
        "extra": audit,
        "actor": actor,
    }
    text = ruling.text or ""
    if ruling.verb == "done":
        summary = text.encode()[:RESULT_SUMMARY_BYTES_MAX].decode("utf-8", "ignore")
        return await session.tool_completed(operation, text, summary=summary, **common)
    return await session.tool_failed(operation, text, content=text, error_code="review", **common)
