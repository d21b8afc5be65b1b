"""Operations whose rows have left the ledger: the same key is recognised for ever all the same.

The ledger holds every open call and the newest ``CLOSED_CALLS_MAX`` closed ones (L7) that were not pruned
(O6). A key that is used again after its row has gone would be accepted as a new call and run twice. So when
an operation has no row, and rows may have left this session's ledger, the session's own journal is asked:
once from its beginning, afterwards only for what came since. Sessions with few calls, and calls whose
message is in the ledger, never ask.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections import OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from refold.client.connection import Connection
from refold.client.events import SessionEvent
from refold.client.snapshots import FINAL_CALL_STATES, SnapshotView
from refold.core.limits import CLOSED_CALLS_MAX, PRUNED_CALLS, QUIET_TOOLS_BYTES
from refold.errors import TransientError

if TYPE_CHECKING:
    from refold.client.session import Session

#: Sessions whose operations one client remembers: with ARCHIVED_CALLS_MAX entries of about 200 bytes each at
#: most 130 MB, in practice a few.
ARCHIVED_SESSIONS_MAX: Final = 64
#: Operations and runs remembered per session; a session with more is read from its beginning each time.
ARCHIVED_CALLS_MAX: Final = 10_000

#: Events that say how a call ended.
OUTCOMES: Final = frozenset({"ToolCallCompleted", "ToolCallFailed", "ToolCallDenied"})


def may_have_forgotten(view: SnapshotView | None) -> bool:
    """Whether rows may have left this ledger."""
    if view is None:
        return False
    rows = view.data["tools"]
    closed = sum(1 for row in rows if row["state"] in FINAL_CALL_STATES)
    texts = sum(len(value.encode()) for row in rows for value in row.values() if isinstance(value, str))
    pruned = any(row["operation_id"] == PRUNED_CALLS for row in rows)
    return pruned or closed >= CLOSED_CALLS_MAX or texts >= QUIET_TOOLS_BYTES


class Archive:
    """Declared operations of one life of a session up to an event, and where their outcomes lie."""

    def __init__(self) -> None:
        self.seq = 0
        #: When this life began; a deleted session begins another one at seq 1.
        self._created_ms = 0
        #: Digest of the operation id → seq of its first intent and of its first outcome, 0 while there is
        #: none.
        self._known: dict[bytes, tuple[int, int]] = {}
        #: Digests of the ids of runs that were started.
        self._runs: set[bytes] = set()
        #: Calls that run side by side ask the same archive: half of one reading and half of another would
        #: leave a gap in which an operation is taken for a new one.
        self._reading = asyncio.Lock()

    async def read(self, session: Session, upto: int, created_ms: int) -> None:
        """Take in the events up to ``upto``, at least, of the life that began at ``created_ms``. Raises
        TransientError where the journal does not have them all."""
        async with self._reading:
            full = len(self._known) + len(self._runs) > ARCHIVED_CALLS_MAX
            if created_ms != self._created_ms or full:
                # The session was deleted and began anew, or is too long to be remembered.
                self.seq, self._created_ms = 0, created_ms
                self._known.clear()
                self._runs.clear()
            if upto <= self.seq:
                return
            async with aclosing(session.events(after=self.seq, limit=upto - self.seq)) as source:
                async for event in source:
                    self._take(event)
                    self.seq = event.seq
            if self.seq < upto:
                # What is not in it would be taken for new, and run again.
                raise TransientError(
                    f"the journal of session {session.tenant}/{session.id} ends at seq {self.seq} and not at "
                    f"{upto}: a commit is being finished, or the session was deleted just now. Try again"
                )

    def _take(self, event: SessionEvent) -> None:
        if event.type == "RunStarted" and event.payload is not None:
            self._runs.add(_digest(event.payload["run_id"]))
        if event.type != "ToolCallIntended" and event.type not in OUTCOMES:
            return
        operation = (event.payload or {}).get("operation_id")
        if operation is not None:
            digest = _digest(operation)
            intended, outcome = self._known.get(digest, (0, 0))
            if event.type == "ToolCallIntended":
                self._known[digest] = (intended or event.seq, outcome)
            else:
                self._known[digest] = (intended, outcome or event.seq)

    def outcome_seq(self, operation_id: str, upto: int | None = None) -> int | None:
        """Seq of the outcome; 0: it was declared, and ended by a message; ``None``: never declared, or only
        after ``upto``. What the session held at ``upto`` says which of these have ended."""
        intended, outcome = self._known.get(_digest(operation_id), (0, 0))
        return outcome if intended and (upto is None or intended <= upto) else None

    def had_run(self, run_id: str) -> bool:
        """Whether a run of this id was ever started."""
        return _digest(run_id) in self._runs


def _digest(operation_id: str) -> bytes:
    return hashlib.blake2b(operation_id.encode(), digest_size=16).digest()


_ARCHIVES: Final[weakref.WeakKeyDictionary[Connection, OrderedDict[bytes, Archive]]] = (
    weakref.WeakKeyDictionary()
)


def archive_of(connection: Connection, key: bytes) -> Archive:
    """The client's archive of a session, made if need be; the longest unused one makes room."""
    kept = _ARCHIVES.setdefault(connection, OrderedDict())
    archive = kept.pop(key, None) or Archive()
    kept[key] = archive
    if len(kept) > ARCHIVED_SESSIONS_MAX:
        kept.popitem(last=False)
    return archive


def kept_archive(connection: Connection, key: bytes) -> Archive | None:
    """The client's archive of a session, if it has one."""
    kept = _ARCHIVES.get(connection)
    return None if kept is None else kept.get(key)
