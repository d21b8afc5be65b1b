"""Reading a call back: its row in the ledger, its arguments and its full result in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from refold.client.events import SessionEvent
from refold.client.payloads import load_part, load_parts
from refold.client.snapshots import FINAL_CALL_STATES, SnapshotView
from refold.client.tools.outcomes import CallOutcome, OutcomeState
from refold.client.tools.results import text_of, value_of
from refold.errors import NotFound
from refold.formats.markers import missing_result
from refold.wire.parts import Part
from refold.wire.parts import text as text_part

if TYPE_CHECKING:
    from refold.client.session import Session

Row = Mapping[str, Any]


def find_row(
    view: SnapshotView | None, operation_id: str, call_id: str | None, message_id: str | None
) -> Row | None:
    """The row of an operation; else the one its message's call part opened, which its intent will join."""
    if view is None:
        return None
    asked: Row | None = None
    for row in view.data["tools"]:
        if row["operation_id"] == operation_id:
            found: Row = row
            return found
        if (
            call_id is not None
            and message_id is not None
            and not row["declared"]
            and row["call_id"] == call_id
            and row["message_id"] == message_id
        ):
            asked = row
    return asked


async def event_at(session: Session, seq: int) -> SessionEvent:
    async with aclosing(session.events(after=seq - 1, limit=1)) as source:
        async for event in source:
            return event
    raise NotFound(f"session {session.tenant}/{session.id} has no event {seq}: it was deleted meanwhile")


async def outcome_of(session: Session, row: Row) -> CallOutcome:
    """The recorded outcome of a final row, with the whole result; or what a model is told of an open one."""
    content: list[Part] = []
    extra: bytes | None = None
    if row["result_seq"] and row["state"] in FINAL_CALL_STATES:
        payload = (await event_at(session, row["result_seq"])).payload or {}
        content, extra = list(payload.get("content", ())), payload.get("extra")
        if payload.get("message_id") is not None and "role" in payload:
            # A result that came in as a message: its parts are wrapped, one per call.
            content = _unwrapped(content, row["call_id"])
    content = await load_parts(content, session._connection.blobs)
    said = text_of(content)
    is_error = bool(row["is_error"])
    if not content:
        said, is_error = missing_result(row)
        content = [text_part(said)]
    if row["state"] == "denied" and row["error"]:
        said = f"{said} Reason: {row['error']}"
    return CallOutcome(
        operation_id=row["operation_id"],
        tool=row["tool"],
        state=row["state"],
        text=said,
        is_error=is_error or row["state"] != "done",
        attempt=row["attempt"],
        value=value_of(content, extra),
        content=content,
        reason=row["error"],
    )


def _unwrapped(content: list[Part], call_id: str | None) -> list[Part]:
    for part in content:
        if part.type == "tool_result" and part.fields.get("call_id") == call_id:
            return list(part.content)
    return content


async def full_arguments(session: Session, row: Row) -> str:
    """The raw argument text, from the journal where the state leaves a long one out. Older states say "" of
    what is in the blob store, so that is looked up too."""
    if row["arguments"]:
        return str(row["arguments"])
    for seq in sorted({row["intended_seq"], row["message_seq"]} - {0}):
        payload = (await event_at(session, seq)).payload or {}
        if payload.get("arguments_ref") is not None:
            ref = payload["arguments_ref"]
            data = await _blob(session, ref)
            return data.decode()
        if "arguments" in payload:
            return str(payload["arguments"])
        for part in payload.get("content", ()):
            if part.type == "tool_call" and part.fields.get("call_id") == row["call_id"]:
                loaded = load_part(part, session._connection.blobs) if part.ref is not None else part
                return str(loaded.fields["arguments"])
    raise NotFound(f"the arguments of operation {row['operation_id']} are not in the journal")


async def _blob(session: Session, ref: Mapping[str, Any]) -> bytes:
    return await asyncio.to_thread(session._connection.blobs.get, ref)


async def archived_outcome(session: Session, operation_id: str, tool: str, seq: int) -> CallOutcome:
    """The outcome of an operation whose row has left the ledger, from its event; ``seq`` 0: it ended by a
    message of the transcript that nobody can find by its operation any more."""
    if seq == 0:
        said, is_error = missing_result({"state": "done"})
        return CallOutcome(operation_id, tool, "done", said, is_error, value=said, content=[text_part(said)])
    event = await event_at(session, seq)
    payload = event.payload or {}
    state: OutcomeState = "done"
    if event.type != "ToolCallCompleted":
        state = "denied" if event.type == "ToolCallDenied" else "failed"
    content = await load_parts(payload.get("content", ()), session._connection.blobs)
    reason = payload.get("error") or payload.get("reason")
    if not content:
        said, _ = missing_result({"state": state, "error": reason})
        content = [text_part(said)]
    return CallOutcome(
        operation_id=operation_id,
        tool=tool,
        state=state,
        text=text_of(content),
        is_error=state != "done" or bool(payload.get("is_error")),
        attempt=payload.get("attempt") or 0,
        value=value_of(content, payload.get("extra")),
        content=content,
        reason=reason,
    )
