"""The whole active path of a session, folded from its journal and kept up to date by what came since.

The state holds a window; the Agents SDK wants everything. The first read is a pass over the session's events,
each later one over the new events only. Kept in memory: the content of every message of the session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from refold.client.events import SessionEvent
from refold.client.operations.past import Past, Placed, fold_past
from refold.client.session import Session
from refold.client.snapshots import SnapshotView
from refold.errors import TransientError


@dataclass(frozen=True, slots=True)
class Path:
    """``messages``: of the active path with the pinned system messages among them, in the order of the
    journal. ``head``: its last message that is not pinned; ``before``: the one before that, empty where there
    is none, or none that the journal has."""

    seq: int
    messages: list[Placed]
    head: str
    before: str


class History:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._past: Past | None = None
        self._life = 0

    async def path(self, view: SnapshotView | None) -> Path:
        """As of ``view``; empty where there is no session. Raises NotFound where retention has cut the
        journal's beginning, TransientError where its end is not readable yet."""
        if view is None:
            self._past = None
            return Path(0, [], "", "")
        life, past = int(view.data["created_at_ms"]), self._past
        if past is None or life != self._life or past.state.seq > view.seq:
            # Not folded yet; or deleted and begun anew since.
            past = None
        self._past, self._life = None, life
        past = await fold_past(self._events_of, view.tenant, view.session, view.seq, messages=True, into=past)
        self._past = past
        if past.state.seq < view.seq:
            # Without an owner the journal is read to the last stable offset. What is behind that is not lost,
            # and a history without it would leave turns out.
            raise TransientError(
                f"the journal of session {view.tenant}/{view.session} ends at seq {past.state.seq} and not "
                f"at {view.seq}: a commit is being finished, or the session was deleted just now. Try again"
            )
        return _path(past)

    def _events_of(self, session: str, after: int, limit: int | None) -> AsyncGenerator[SessionEvent, None]:
        one = self._session if session == self._session.id else self._session.sibling(session)
        return one.events(after, limit)


def _path(past: Past) -> Path:
    placed, state = past.placed, past.state
    tree: list[Placed] = []
    seen: set[str] = set()
    name = state.head
    while name in placed and name not in seen:
        seen.add(name)
        tree.append(placed[name])
        name = placed[name].message.parent
    before = tree[0].message.parent if tree else ""
    pinned = [placed[one.id] for one in state.system if one.id in placed]
    return Path(
        state.seq,
        sorted([*tree, *pinned], key=lambda one: one.message.seq),
        state.head,
        before if before in placed else "",
    )
