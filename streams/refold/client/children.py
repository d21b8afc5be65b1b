"""Child sessions: a sub-agent with a context of its own, whose result is its parent's call's (rule Y4).

Invariants:

- The child's id and the events that make it follow from the parent and its call, so whoever begins it again
  (another process, after a crash) has the same child.
- The parent knows the child before the child exists, so what closes or deletes the parent reaches it.
- The result is the parent's ``ToolCallCompleted`` of that call: the fold takes one, from whichever process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from refold.client.receipts import Receipt, Refused, Ruling
from refold.client.siblings import SiblingWrites
from refold.client.snapshots import FINAL_CALL_STATES, SnapshotView
from refold.client.writes import ResultContent
from refold.core.envelope import SessionLink
from refold.errors import NotFound, UsageError
from refold.missing import no_session

if TYPE_CHECKING:
    from refold.client.session import Session

#: Of the SHA-256 of parent and call, in a child's id and in the ids of the events that make it.
DIGEST_CHARS: Final = 24

#: A parent's id longer than this is left out of its children's names.
PARENT_BYTES_MAX: Final = 200

#: The call had its result: what another process, or this one, said first stands.
SETTLED: Final = frozenset({"already_final", "conflict"})


def digest_of(*names: str) -> str:
    raw = "\0".join(names).encode("utf-8", "surrogatepass")
    return hashlib.sha256(raw).hexdigest()[:DIGEST_CHARS]


def find_call(view: SnapshotView, call: str) -> Mapping[str, Any] | None:
    """The row with this operation id; else the newest of this call id, an open one first."""
    rows = list(view.data["tools"])
    for row in rows:
        if row["operation_id"] == call:
            found: Mapping[str, Any] = row
            return found
    named = [row for row in reversed(rows) if row["call_id"] == call]
    named.sort(key=lambda row: row["state"] in FINAL_CALL_STATES)
    return named[0] if named else None


class SessionChildren(SiblingWrites):
    """Mixed into :class:`refold.client.session.Session`."""

    async def child(self, call: str, session_id: str | None = None, *, title: str | None = None) -> Self:
        """The child session of one of this session's calls, begun if it is not there yet.

        ``call``: its operation id, or its call id (then the newest of that id, an open one first; the call is
        declared, so that it has an operation id of its own). ``session_id``: else made from both names.

        The message that asked for the call has to be accepted by then (``append(…, wait="accepted")``). Waits
        until the fold has accepted the link and the child. Raises NotFound where there is no such
        session or call, Refused where the link is refused (``session_closed``, ``children_full``,
        ``conflict``: the id is another call's child), UsageError for a session that is there already and is
        no child of this call; else as ``publish``.
        """
        view = await self.state()
        if view is None:
            raise no_session(self.tenant, self.id)
        row = find_call(view, call)
        if row is None:
            raise NotFound(
                f"session {self.tenant}/{self.id} has no call {call!r}: append the message that asks for it, "
                "or declare it (tool_intended), first"
            )
        operation_id = await self._declared(row)
        digest = digest_of(self.id, operation_id)
        if session_id is None:
            short = len(self.id.encode()) <= PARENT_BYTES_MAX
            session_id = f"{self.id}.{digest}" if short else f"child-{digest}"
        linked = await self.publish(
            "ChildLinked",
            {"session": session_id, "kind": "child", "call": operation_id},
            event_id=f"child/{digest_of(session_id, operation_id)}",
        )
        seq = await linked.accepted()
        child = self.sibling(session_id)
        link = SessionLink("child", self.id, seq, operation_id)
        opened = await child.open(title=title, link=link, event_id=f"child-open/{digest}")
        await opened.accepted()
        held = await child.state()
        if held is None or not _is_child(held, self.id, operation_id):
            raise UsageError(
                f"session {session_id!r} is there already and is no child of call {operation_id!r}: "
                "choose another session_id, or leave it out"
            )
        return child

    async def _declared(self, row: Mapping[str, Any]) -> str:
        """The call's operation id; a call known from a message alone gets one."""
        operation_id = str(row["operation_id"])
        if not operation_id.startswith("@"):
            return operation_id
        operation_id = f"child-{digest_of(self.id, str(row['message_id']), operation_id)}"
        receipt = await self.tool_intended(
            operation_id,
            row["tool"],
            row["arguments"] or "",
            call_id=row["call_id"],
            asked_by=row["message_id"],
            index=row["order"],
        )
        await receipt.accepted()
        return operation_id

    async def children(self) -> list[Mapping[str, Any]]:
        """Rows of the child sessions and forks: ``session``, ``kind``, ``call`` and ``seq`` of the link."""
        view = await self.state()
        return [] if view is None else view.children

    async def parent(self) -> tuple[Self, str] | None:
        """Of a child session: its parent, and the call it answers (operation id; the bare call id where the
        link says no more, ``""`` where it says none). ``None`` for any other session."""
        view = await self.state()
        link = None if view is None else view.data["link"]
        if link is None or link["kind"] != "child":
            return None
        return self.sibling(link["session"]), link["call"] or ""

    async def finish(
        self,
        content: ResultContent,
        *,
        summary: str | None = None,
        is_error: bool = False,
        close: bool = True,
    ) -> Ruling:
        """Give this child's result to its parent, then close the child (``close``).

        From any process and as often as wanted: the parent's call gets one result. ``accepted``: this one;
        ``duplicate``: this one, earlier; ``rejected`` with ``already_final`` or ``conflict``: another one
        came first and stands. Raises UsageError where this session is no child, NotFound where the parent is
        gone, Refused for any other refusal (then the child stays open); else as ``publish``.
        """
        parent, operation_id, call_id = await self._asked()
        receipt = await parent.tool_completed(
            operation_id,
            content,
            call_id=call_id,
            summary=summary,
            is_error=is_error,
            event_id=self._result_id(),
        )
        return await self._settled(receipt, close)

    async def fail(self, error: str, *, error_code: str | None = None, close: bool = True) -> Ruling:
        """As :meth:`finish`, for a child that is known to have had no effect."""
        parent, operation_id, call_id = await self._asked()
        receipt = await parent.tool_failed(
            operation_id, error, call_id=call_id, error_code=error_code, event_id=self._result_id()
        )
        return await self._settled(receipt, close)

    def _result_id(self) -> str:
        return f"child-result/{digest_of(self.id)}"

    async def _asked(self) -> tuple[Self, str | None, str | None]:
        """The parent, and its call's operation id, or the call id where that is all there is."""
        found = await self.parent()
        if found is None or not found[1]:
            raise UsageError(
                f"session {self.tenant}/{self.id} is no child of a call: there is nobody to tell"
            )
        parent, call = found
        view = await parent.state()
        if view is None:
            raise NotFound(f"session {self.tenant}/{parent.id}, the parent of {self.id}, was deleted")
        row = find_call(view, call)
        bare = row is not None and row["operation_id"] != call
        return (parent, None, call) if bare else (parent, call, None)

    async def _settled(self, receipt: Receipt, close: bool) -> Ruling:
        ruling = await receipt.ruling()
        if not ruling.in_effect and ruling.code not in SETTLED:
            raise Refused(receipt.event_id, ruling)
        if close:
            closed = await self.close("its result was given to the parent")
            await closed.accepted()
        return ruling


def _is_child(view: SnapshotView, parent: str, operation_id: str) -> bool:
    link = view.data["link"]
    return link is not None and (link["kind"], link["session"], link["call"]) == (
        "child", parent, operation_id,
    )  # fmt: skip


if TYPE_CHECKING:

    def _fits(session: Session) -> SessionChildren:
        return session
