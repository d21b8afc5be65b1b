"""What may go wrong, as one frozen value: the probability of each fault, by name."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """``…_at_point``/``…_in_restore``: per named point reached; ``…_per_s``: per virtual second; the others
    per use.

    A stopped worker goes on when others own its partitions and have restored them (``wake_early``: the chance
    that it is continued before).
    """

    crash_at_point: float = 0.0
    stop_at_point: float = 0.0
    crash_in_restore: float = 0.0
    stop_in_restore: float = 0.0
    crash_in_rebalance: float = 0.0
    stop_in_rebalance: float = 0.0
    crash_per_s: float = 0.0
    stop_per_s: float = 0.0
    wake_early: float = 0.0
    graceful_per_s: float = 0.0
    shuffle_per_s: float = 0.0
    evict_per_s: float = 0.0
    abortable: float = 0.0
    timeout: float = 0.0
    delivery_failure: float = 0.0
    queue_full: float = 0.0
    chunk_twice: float = 0.0
    chunk_lost: float = 0.0
    disk_lost: float = 0.0
    write_failure: float = 0.0
    compaction_per_s: float = 0.0
    hung_per_s: float = 0.0
    interleave_per_s: float = 0.0
    late_markers: float = 0.0
    shuffle_in_restore: float = 0.0
    slow_fetch_per_s: float = 0.0
    cut_per_s: float = 0.0
    disk_full_per_s: float = 0.0
    clock_jump_per_s: float = 0.0
    record_late: float = 0.0
    old_build: float = 0.0

    def kinds(self) -> tuple[str, ...]:
        """The faults that can happen under this plan (``wake_early`` only says how another one ends)."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) > 0 and f.name != "wake_early")

    def row(self) -> str:
        return " ".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self) if getattr(self, f.name))


NONE: Final = FaultPlan()

#: Everything, moderately: the plan of a first look.
ALL: Final = FaultPlan(
    crash_at_point=0.01,
    stop_at_point=0.01,
    crash_in_restore=0.03,
    stop_in_restore=0.03,
    crash_in_rebalance=0.06,
    stop_in_rebalance=0.06,
    crash_per_s=0.05,
    stop_per_s=0.05,
    wake_early=0.3,
    graceful_per_s=0.03,
    shuffle_per_s=0.3,
    evict_per_s=0.1,
    abortable=0.01,
    timeout=0.01,
    delivery_failure=0.001,
    queue_full=0.002,
    chunk_twice=0.005,
    chunk_lost=0.005,
    disk_lost=0.3,
    write_failure=0.004,
    compaction_per_s=1.0,
    hung_per_s=0.03,
    interleave_per_s=0.3,
    late_markers=0.3,
    shuffle_in_restore=0.05,
    slow_fetch_per_s=0.3,
    cut_per_s=0.06,
    disk_full_per_s=0.04,
    clock_jump_per_s=0.3,
    record_late=0.05,
    old_build=0.3,
)

#: A swarm leaves each fault out with this probability: a fault that is always there hides what happens
#: without it.
SWARM_LEAVES_OUT: Final = 0.4
#: … and scales the others by a factor from this list.
SWARM_SCALES: Final = (0.3, 1.0, 3.0)


def swarm(chance: random.Random) -> FaultPlan:
    """A plan drawn from ``chance``: every parameter of it."""
    drawn: dict[str, float] = {}
    for field in fields(ALL):
        keep, scale = chance.random() >= SWARM_LEAVES_OUT, chance.choice(SWARM_SCALES)
        drawn[field.name] = min(0.9, getattr(ALL, field.name) * scale) if keep else 0.0
    return FaultPlan(**drawn)


def only(*names: str, factor: float = 4.0) -> FaultPlan:
    """Only these faults, more often than in :data:`ALL`."""
    return replace(NONE, **{name: min(0.9, getattr(ALL, name) * factor) for name in names})


PLANS: Final = {"none": NONE, "all": ALL}
