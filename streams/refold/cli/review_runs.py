"""Runs in the review queue: one of their steps failed for good, and a person says retry or fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from refold.client import Refused, Session
from refold.errors import NotFound
from refold.missing import no_session

RunVerb = Literal["retry", "fail"]

#: Refusals that mean: somebody else was faster.
SETTLED: Final = frozenset({"illegal_transition", "already_final", "unknown_run"})


async def waiting_run(session: Session, name: str) -> Mapping[str, Any] | None:
    """The row of a run that waits for a person; ``None`` where no run of this id does. Raises NotFound where
    there is no session."""
    view = await session.state(min_seq=0)
    if view is None:
        raise no_session(session.tenant, session.id)
    run = view.run(name)
    return run if run is not None and run["state"] == "review" else None


def told_of(session: Session, run: Mapping[str, Any]) -> dict[str, Any]:
    """What a person needs to rule: which step failed how, never what it was given."""
    return {
        "tenant": session.tenant,
        "session": session.id,
        "operation_id": run["run_id"],
        "kind": "run",
        "tool": run["agent"],
        "attempt": run["epoch"],
        "version": run["version"],
        "reason": run["error"],
        "code": run["error_code"],
        "steps": [
            {
                "step": step["step_id"],
                "state": step["state"],
                "attempt": step["attempt"],
                "effect": step["effect"],
                "why": step["error"] or step["error_code"],
            }
            for step in run["steps"]
        ],
    }


async def resolve_run(
    session: Session, name: str, verb: RunVerb, by: str, reason: str | None
) -> dict[str, Any]:
    """Rule on the run; waits until it is accepted. Raises NotFound when no such run waits (any more)."""
    run = await waiting_run(session, name)
    if run is None:
        raise NotFound(
            f"session {session.id!r} holds no run {name!r} that waits for a person: `refold review list` "
            f"shows what waits, `refold run show {session.id} {name}` how a run stands."
        )
    try:
        receipt = await session.run_resolved(name, verb, by=by, reason=reason)
        seq = await receipt.accepted()
    except Refused as refused:
        if refused.ruling.code not in SETTLED:
            raise
        raise NotFound(
            f"run {name!r} was settled by somebody else meanwhile: {refused.ruling.reason}."
        ) from None
    return {
        "tenant": session.tenant,
        "session": session.id,
        "operation_id": name,
        "tool": run["agent"],
        "ruling": verb,
        "attempt": run["epoch"],
        "by": by,
        "reason": reason,
        "seq": seq,
    }
