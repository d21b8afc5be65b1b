"""Recovery of an agent: the newest state, the events behind it, and what to do with each open call.

The plan is advice read off the ledger's rule: the body of a call runs only after *started* was accepted. So
an intended call without *started* provably never ran; a started one may have; an unknown one is never re-run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from refold.client.events import SessionEvent
from refold.client.folding import fold_event
from refold.client.snapshots import SnapshotView
from refold.core.session import initial
from refold.errors import InvariantViolation
from refold.reducers import install
from refold.wire.snapshot import decode_session, encode_snapshot

Action = Literal[
    # The model asked for it, nobody has recorded an intent: record it (tool_intended), then start.
    "intend",
    # Recorded and never started, so it never ran: start it (tool_started), then run it.
    "start",
    # Somebody must approve first.
    "await_approval",
    # Started by a process that may be dead: ask the external system by the operation id, then record what it
    # says (tool_completed, tool_failed, or tool_unknown when it cannot tell).
    "reconcile",
    # Nobody could tell whether it ran. Never re-run it: a person decides.
    "review",
]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One open call. ``row`` is its ledger row as in the snapshot."""

    operation_id: str
    tool: str
    action: Action
    row: Mapping[str, Any] = field(repr=False)

    @property
    def call_id(self) -> str | None:
        call_id: str | None = self.row["call_id"]
        return call_id

    @property
    def arguments(self) -> str | None:
        """Raw argument text; ``None`` when it was too long for the state (the intent's event has it)."""
        arguments: str | None = self.row["arguments"]
        return arguments


@dataclass(frozen=True, slots=True)
class Recovery:
    """``snapshot``: folded to the journal's end. ``events``: those that were folded onto the stored snapshot;
    empty when it was the newest already. ``plan``: one step per open call, in the order asked."""

    snapshot: SnapshotView
    events: Sequence[SessionEvent]
    plan: Sequence[PlanStep]
    #: Reducers' parts that this process could not fold on, having no such reducer in that version: they are
    #: as stored, and may lack what the events have for them.
    parts_behind: Sequence[str] = ()

    @property
    def seq(self) -> int:
        return self.snapshot.seq

    @property
    def open_calls(self) -> list[Mapping[str, Any]]:
        return self.snapshot.open_calls


def recover(tenant: str, session: str, view: SnapshotView | None, events: Sequence[SessionEvent]) -> Recovery:
    """Fold ``events`` onto the snapshot with the same code as the worker, and plan."""
    if view is not None and not events:
        return Recovery(view, events, [_step(row) for row in view.open_calls])
    registry = install()
    snapshot = _fold(tenant, session, view, events)
    known = {} if registry is None else registry.versions
    rows = snapshot.data["reduced"]
    behind = [row["name"] for row in rows if known.get(row["name"], 0) < row["version"]]
    return Recovery(snapshot, events, [_step(row) for row in snapshot.open_calls], behind)


def _fold(
    tenant: str, session: str, view: SnapshotView | None, events: Sequence[SessionEvent]
) -> SnapshotView:
    state = initial(tenant, session) if view is None else decode_session(view.raw)
    for event in events:
        if event.seq != state.seq + 1:
            raise InvariantViolation(
                f"event {event.seq} of {tenant}/{session} follows {state.seq} in the journal: "
                "report this as a bug of refold"
            )
        fold_event(state, event)
    return SnapshotView.of(encode_snapshot(state), stale=view is not None and view.stale)


def _step(row: Mapping[str, Any]) -> PlanStep:
    return PlanStep(row["operation_id"], row["tool"], action_for(row), row)


def action_for(row: Mapping[str, Any]) -> Action:
    """What to do with an open call, from its row alone."""
    if row["state"] == "started":
        return "reconcile"
    if row["state"] == "unknown":
        return "review"
    if row["state"] == "awaiting_approval" or row["approval"] in ("required", "requested"):
        return "await_approval"
    return "start" if row["declared"] else "intend"
