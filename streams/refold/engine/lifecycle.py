"""The life of one owned partition, as a table.

::

    ASSIGNED ──► WAITING ──► RESTORING ──► LIVE
                    ▲            │  ▲        │      LIVE -> WAITING: its RocksDB could not be written after a
                    └────────────┘  │        │      commit, or its claim was refused: close, restore again.
                    │               │        │
                    └─────────◄─────┴────────┘      RESTORING -> WAITING: the takeover is tried again.

    any of them ──► REVOKED   taken politely (rule R)         both are ends: a partition that comes back is
    any of them ──► LOST      taken while presumed dead       a new Partition with a new assignment epoch

Only a LIVE partition is fed; the others' source is paused.
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


_GONE: Final = frozenset({State.REVOKED, State.LOST})

LEGAL: Final[Mapping[State, frozenset[State]]] = {
    State.ASSIGNED: frozenset({State.WAITING}) | _GONE,
    State.WAITING: frozenset({State.RESTORING}) | _GONE,
    State.RESTORING: frozenset({State.LIVE, State.WAITING}) | _GONE,
    State.LIVE: frozenset({State.WAITING}) | _GONE,
    State.REVOKED: frozenset(),
    State.LOST: frozenset(),
}


def move(partition: int, now: State, to: State) -> State:
    """The next state, or :class:`InvariantViolation` for a step the table does not know."""
    if to not in LEGAL[now]:
        raise InvariantViolation(f"partition {partition} cannot go from {now.value} to {to.value}")
    return to
