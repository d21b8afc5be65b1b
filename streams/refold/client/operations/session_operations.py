"""``session.fork``, ``at``, ``switch_branch`` and ``prune``: mixed into the client's ``Session``.

Rules O1 to O6, docs/concepts/session-operations.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Self

from refold.client.events import SessionEvent
from refold.client.ids import new_id as make_id
from refold.client.operations.past import fold_past, lineage
from refold.client.operations.window import restored_payload
from refold.client.publishing import Wait
from refold.client.receipts import Receipt
from refold.client.siblings import SiblingWrites
from refold.client.snapshots import SnapshotView
from refold.core.envelope import SessionLink
from refold.core.forkbase import strip
from refold.errors import NotFound, UsageError
from refold.missing import no_session
from refold.reducers import install
from refold.wire.snapshot import decode_session, encode_snapshot


def fork_payload(source: str, raw: bytes) -> dict[str, Any]:
    """``SessionForked`` of a state record. Raises UsageError for a session in quarantine."""
    base = decode_session(raw)
    if base.status in ("quarantined", "releasing"):
        raise UsageError(
            f"session {base.key} is {base.status} at seq {base.seq}, so its state may be wrong: release it "
            f"first (`refold session release`), or fork at a seq below {base.status_seq}"
        )
    strip(base)
    return {"source": source, "source_seq": base.seq, "base": encode_snapshot(base)}


class SessionOperations(SiblingWrites):
    def _events_of(self, session: str, after: int, limit: int | None) -> AsyncGenerator[SessionEvent, None]:
        raise NotImplementedError

    async def at(self, seq: int) -> SnapshotView:
        """The state as of ``seq``, folded anew from the journal of the session's present life: byte for byte
        what the owner's state was then. Costs a pass over the session's events up to there.

        Parts of reducers are folded by those that this process declares. Raises UsageError for a seq below 1,
        NotFound where the session has not come that far or the journal no longer has its beginning.
        """
        if seq < 1:
            raise UsageError(f"seq {seq}: a session's first event has seq 1")
        install()
        past = await fold_past(self._events_of, self.tenant, self.id, seq)
        if past.state.seq != seq:
            if not past.state.seq:
                raise no_session(self.tenant, self.id)
            raise NotFound(
                f"session {self.tenant}/{self.id} is at seq {past.state.seq}: it has no state as of seq {seq}"
            )
        return SnapshotView.of(encode_snapshot(past.state))

    async def lineage(self) -> list[SessionEvent]:
        """The session's events; of a fork, behind those that its source had when it was forked, and so on."""
        return await lineage(self._events_of, self.id)

    async def fork(
        self, new_id: str | None = None, *, at: int | None = None, wait: Wait = "accepted"
    ) -> Self:
        """A new session that begins as this one was at seq ``at``, by default as it is now.

        It has the messages, branches, summary, facts, configuration, settings and policy; not what acts:
        calls, generations, runs, children. Nothing is copied beside one state record; content kept outside
        stays where it is. This session is not changed and does not know of it. ``new_id``: made if not given;
        with one, forking again at the same seq is absorbed.

        Raises NotFound, UsageError for a session in quarantine, and with ``wait="accepted"`` Refused
        (``conflict``: a session of that id exists). With ``at`` in the past as :meth:`at`.
        """
        view = await self.state()
        if view is None:
            raise no_session(self.tenant, self.id)
        if at is not None and at != view.seq:
            view = await self.at(at)
        payload = fork_payload(self.id, view.raw)
        made = self.sibling(new_id or make_id())
        link = SessionLink("fork", self.id, view.seq)
        await made.publish("SessionForked", payload, link=link, wait=wait)
        return made

    async def switch_branch(self, head_message_id: str, *, rebuild: bool = False, **options: Any) -> Receipt:
        """Make the path that ends in this message the active one.

        ``rebuild``: also where the state no longer holds it, or not its beginning: the window is made from
        the journal (a pass over the session's events) and waits for *accepted*. Raises NotFound where the
        session never had the message, Refused (``conflict``) where what changed meanwhile does not fit.
        """
        if not rebuild:
            return await super().switch_branch(head_message_id, **options)
        past = await fold_past(self._events_of, self.tenant, self.id, messages=True)
        payload = restored_payload(past, head_message_id)
        return await self.publish("ContextRestored", payload, **{"wait": "accepted", **options})

    async def prune(
        self,
        *,
        branches: Sequence[str] = (),
        all_branches: bool = False,
        ended: bool = False,
        facts: Sequence[str] = (),
        by: str | None = None,
        reason: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Take out of the state what the session no longer needs; the journal keeps it.

        ``branches``: last messages of paths that are not active; ``all_branches``: all of them. ``ended``:
        rows of calls, generations and runs that have ended. ``facts``: by name. What something open refers to
        stays: named, it is refused (``conflict``), else it is passed over. Where nothing is left to prune it
        is a duplicate. Waits for *accepted*.
        """
        payload = {
            "branches": list(branches),
            "all_branches": all_branches,
            "ended": ended,
            "facts": list(facts),
            "by": by,
            "reason": reason,
        }
        return await self.publish("SessionPruned", payload, **{"wait": "accepted", **options})
