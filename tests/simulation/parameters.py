"""What a run is made of, and what comes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from . import faults
from .faults import FaultPlan

#: Restart after a death: shorter than the session timeout (static membership holds) or longer (a takeover).
RESTART_US: Final = (50_000, 2_500_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    seed: int
    ticks: int = 4_000
    workers: int = 3
    partitions: int = 4
    sessions: int = 10
    events: int = 250
    #: After a death: from … to ….
    restart_us: tuple[int, int] = RESTART_US
    #: Mean of the virtual time between two bursts of the workload.
    pause_us: int = 30_000
    plan: FaultPlan = faults.NONE
    plan_name: str = "none"
    sabotage: str | None = None
    outcomes_only: bool = False
    #: Restores are hot first (rules H); ``None``: drawn in a swarm, off otherwise.
    hot_first: bool | None = None
    #: Usage is recorded besides (rules W). Off, so that recorded seeds stay what they are.
    usage: bool = False

    def banner(self) -> str:
        return (
            f"seed={self.seed} ticks={self.ticks} workers={self.workers} partitions={self.partitions}"
            f" sessions={self.sessions} events={self.events} pause_us={self.pause_us}"
            f" restart_us={self.restart_us[0]}-{self.restart_us[1]} faults={self.plan_name}"
            f" sabotage={self.sabotage or '-'}"
            f" hot_first={'drawn' if self.hot_first is None else 'on' if self.hot_first else 'off'}"
        )

    def command(self) -> str:
        sabotage = f" --sabotage {self.sabotage}" if self.sabotage else ""
        hot = "" if self.hot_first is None else f" --hot-first {'on' if self.hot_first else 'off'}"
        return (
            f"python -m tests.simulation --seed {self.seed} --ticks {self.ticks} --workers {self.workers}"
            f" --partitions {self.partitions} --sessions {self.sessions} --events {self.events}"
            f" --faults {self.plan_name}{sabotage}{hot}"
        )


@dataclass(slots=True)
class Result:
    parameters: Parameters
    digest: str
    failures: list[str]
    steps: int
    virtual_ms: int
    commits: int
    events: int
    faults: Counter[str]
    happened: Counter[str]
    compared: Counter[str]
    #: What was drawn from the seed besides the parameters.
    drawn: str = ""
    workers: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
