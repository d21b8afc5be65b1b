"""Operations of a session that this client knows without asking, so that a new call needs no read before it.

A key may have been used before, so a call begins with a read of its session. But a client that has read the
session once, and whose own events are all that came since, knows every operation the session has ever had:
those it read (in the ledger, or in the archive where rows may have left), and its own. Rulings carry seqs,
so a gap in them is somebody else's event, and the knowledge ends. So it does with an event of ours that may
have added calls by other ways, as messages do.

It is looked at twice: before the intent is sent, and when the intent was accepted, because only its seq says
that nobody came in between. Where somebody did, the session is read then, before the body runs. The second
look is also that of a call whose session was read: its process may have been stopped behind the read. What
cannot be told apart by seqs is a session that another process deleted and filled anew up to the very event;
within ``KNOWN_S`` of our last one, this key among them and its row dropped again.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from typing import Final

from refold.client.connection import Connection
from refold.client.receipts import Ruling
from refold.client.snapshots import SnapshotView
from refold.client.tools.archive import Archive, kept_archive
from refold.client.tools.operation import Operation

#: Sessions remembered per client. With a ledger's 128 ids and KNOWN_CALLS_MAX more of about 100 bytes each at
#: most 40 MB, in practice a tenth.
KNOWN_SESSIONS_MAX: Final = 1_024
#: Operations remembered per session beside those that were read; then it is read again.
KNOWN_CALLS_MAX: Final = 256
#: Knowledge to which nothing was added for so long is not relied on.
KNOWN_S: Final = 60.0

#: Events that change rows of calls that are known and open no others; an intent opens its own.
CALL_TYPES: Final = frozenset(
    {
        "ToolCallIntended",
        "ToolCallApprovalRequested",
        "ToolCallApproved",
        "ToolCallDenied",
        "ToolCallStarted",
        "ToolCallReconciled",
        "ToolCallCompleted",
        "ToolCallFailed",
        "ToolCallOutcomeUnknown",
    }
)


class Known:
    """Everything up to ``seq`` of one session, as long as it is ``whole``."""

    __slots__ = (
        *("archive", "asked", "asked_seqs", "complete", "full", "operations", "read_seq", "seq", "since"),
        "whole",
    )

    def __init__(self, view: SnapshotView | None, archive: Archive | None, complete: bool) -> None:
        rows = () if view is None else view.data["tools"]
        self.seq = self.read_seq = 0 if view is None else view.seq
        #: Where rows may have left the ledger, those it has read.
        self.archive = archive
        #: Every operation there has been is in one of the two; else only who came in between is known.
        self.complete = complete
        self.operations = {row["operation_id"] for row in rows}
        #: So many are too many.
        self.full = len(self.operations) + KNOWN_CALLS_MAX
        #: Call ids of rows that messages opened: an intent joins them, or must not be sent any more.
        self.asked = {row["call_id"] for row in rows if not row["declared"]}
        #: Seqs of those messages: a row of one of them that is declared now has not been made anew.
        self.asked_seqs = frozenset(row["message_seq"] for row in rows if not row["declared"])
        self.since = time.monotonic()
        self.whole = True

    def heard(self, event_type: str, operation_id: str | None, seq: int) -> None:
        """An event of this client was accepted."""
        declares = event_type == "ToolCallIntended"
        if seq != self.seq + 1 or event_type not in CALL_TYPES or (declares and operation_id is None):
            self.end()
            return
        self.seq = seq
        self.since = time.monotonic()
        if declares and operation_id is not None:
            self.operations.add(operation_id)

    def reaches(self, seq: int) -> bool:
        """Whether all up to ``seq`` is known."""
        return self.whole and self.seq >= seq

    def covers(self, intended: Ruling) -> bool:
        """Whether all up to an intent that was sent upon it is known."""
        return intended.accepted and self.reaches(intended.seq or 0)

    def end(self) -> None:
        """Something else may have happened in the session."""
        self.whole = False
        self.operations.clear()
        self.asked.clear()


_KNOWN: Final[weakref.WeakKeyDictionary[Connection, OrderedDict[bytes, Known]]] = weakref.WeakKeyDictionary()


def remember(
    op: Operation, view: SnapshotView | None, archive: Archive | None, *, complete: bool = True
) -> Known:
    """The session was just read. ``archive`` as of the view; ``None`` where no row can have left, or
    (``complete`` is false) where it was not asked."""
    connection, key = op.session._connection, op.session.key
    kept = _KNOWN.setdefault(connection, OrderedDict())
    known = kept.get(key)
    seq = 0 if view is None else view.seq
    if known is None or not known.reaches(seq) or (complete and not known.complete and known.seq == seq):
        if known is not None:
            known.end()
        known = kept[key] = Known(view, archive, complete)
        connection.memory(key).heard = known.heard
    known.operations.add(op.operation_id)
    kept.move_to_end(key)
    if len(kept) > KNOWN_SESSIONS_MAX:
        kept.popitem(last=False)[1].end()
    return known


def as_new(op: Operation) -> Known | None:
    """What says that this operation has never been in its session; ``None`` when it may have been."""
    connection, key = op.session._connection, op.session.key
    kept = _KNOWN.get(connection)
    known = None if kept is None else kept.get(key)
    if known is None or not (known.whole and known.complete) or time.monotonic() - known.since > KNOWN_S:
        return None
    if op.operation_id in known.operations or (op.call_id is not None and op.call_id in known.asked):
        return None
    if known.archive is not None:
        # One that is being read again from the beginning does not know all yet.
        if kept_archive(connection, key) is not known.archive or known.archive.seq < known.read_seq:
            return None
        if known.archive.outcome_seq(op.operation_id) is not None:
            return None
    if len(known.operations) >= known.full:
        known.end()
        return None
    # From now on it may be there, whatever becomes of our intent.
    known.operations.add(op.operation_id)
    return known
