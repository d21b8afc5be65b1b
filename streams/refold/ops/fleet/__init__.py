"""Worker processes under a harness: start, let them die in chosen ways, measure when work goes on.

Used by ``refold demo`` and ``refold verify``. Everything is observed from outside the workers: exit codes,
the group description, health endpoints, and the topics themselves.
"""

from __future__ import annotations

from refold.ops.fleet.asker import GroupAsker
from refold.ops.fleet.death import IN_FLIGHT_POINTS, Death, DeathKind, Reaper
from refold.ops.fleet.group import owned_by, owners
from refold.ops.fleet.journalwatch import JournalWatch
from refold.ops.fleet.worker import READY_S_MAX, Fleet, WorkerProcess

__all__ = [
    "IN_FLIGHT_POINTS",
    "READY_S_MAX",
    "Death",
    "DeathKind",
    "Fleet",
    "GroupAsker",
    "JournalWatch",
    "Reaper",
    "WorkerProcess",
    "owned_by",
    "owners",
]
