"""The life of one owned partition, as a table.

::

    ASSIGNED ──► WAITING ──► RESTORING ──► LIVE
                    ▲            │  ▲        │      LIVE -> WAITING: its RocksDB could not be written or read,
                    └────────────┘  │        │      or differs from the changelogs: close, restore again.
                    │               │        │
                    └─────────◄─────┴────────┘      RESTORING -> WAITING: the takeover is tried again, also
                                                    from a checkpoint that came while it was served.

    any of them ──► REVOKED   taken politely (rule R)         both are ends: a partition that comes back is
    any of them ──► LOST      taken while presumed dead       a new Partition with a new assignment epoch

Only a LIVE partition is fed, and one that is served while it is RESTORING (``worker.hot_first``,
``Partition.fed``); the others' source is paused. Every step is a line ``partition_moved`` in the
log with its reason and the time spent before it, and counts in ``refold_partition_transitions_total``; the
present is ``refold_partition_state``, ``/healthz/partitions`` and ``refold worker status --partitions``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from refold.errors import InvariantViolation


class State(enum.Enum):
    ASSIGNED = "assigned"
    WAITING = "waiting"
    RESTORING = "restoring"
    LIVE = "live"
    REVOKED = "revoked"
    LOST = "lost"


class Reopened(enum.Enum):
    """Why a live partition is closed and restored."""

    WRITE = "its store could not be written after a commit"
    READ = "its store could not be read"
    DIFFERS = "its store is not what the changelogs say (rule V1)"
    OLD = "its restore took longer than deletions are kept (rule Z)"
    ARRIVED = "a checkpoint of it has come while it was served (rule H10)"


#: The log's event, and why the copy is set aside if it is for that.
REOPENED: Final[Mapping[Reopened, tuple[str, str | None]]] = {
    Reopened.WRITE: ("store_write_failed", None),
    Reopened.READ: ("store_unreadable", None),
    Reopened.DIFFERS: ("store_differs", "differs"),
    Reopened.OLD: ("store_too_old", "too_old"),
    Reopened.ARRIVED: ("checkpoint_arrived", None),
}


_GONE: Final[Mapping[State, str]] = {
    State.REVOKED: "given up: the group or a stop asked for it (rule R)",
    State.LOST: "the group gave it away while this worker was presumed dead",
}

#: What may follow, and why it does: the reason in the log.
TABLE: Final[Mapping[State, Mapping[State, str]]] = {
    State.ASSIGNED: {State.WAITING: "waits for its jitter and its turn", **_GONE},
    State.WAITING: {State.RESTORING: "its turn has come", **_GONE},
    State.RESTORING: {
        State.LIVE: "restored, and the claim is committed",
        State.WAITING: "the takeover is tried again",
        **_GONE,
    },
    State.LIVE: {State.WAITING: "; or ".join(why.value for why in Reopened), **_GONE},
    State.REVOKED: {},
    State.LOST: {},
}

LEGAL: Final[Mapping[State, frozenset[State]]] = {now: frozenset(after) for now, after in TABLE.items()}


def move(partition: int, now: State, to: State) -> State:
    """The next state, or :class:`InvariantViolation` for a step the table does not know."""
    if to not in LEGAL[now]:
        raise InvariantViolation(f"partition {partition} cannot go from {now.value} to {to.value}")
    return to
