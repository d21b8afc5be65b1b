"""What a run of ``refold verify runs`` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.ops.runs.judge import Verdict
from refold.ops.runs.leases import all_hand_overs, quantile
from refold.ops.runs.plan import RunsPlan


@dataclass(frozen=True, slots=True)
class AgentDeath:
    """``at_ms``: wall clock."""

    kind: str
    process: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """``drained``: exit statuses of the rolling deploy; ``unfinished``: why it was compared too early."""

    plan: RunsPlan
    verdict: Verdict
    book: dict[str, Any]
    deaths: list[AgentDeath]
    worker_kills: int
    drained: list[int | None]
    unfinished: list[str]
    seconds: float

    @property
    def undrained(self) -> int:
        """Agents that a SIGTERM did not end in good order."""
        return sum(code != 0 for code in self.drained)

    @property
    def clean(self) -> bool:
        return not (self.verdict.mismatches or self.undrained or self.unfinished)

    def as_json(self) -> dict[str, Any]:
        verdict, leases = self.verdict, self.verdict.leases
        deaths = [(death.process, death.at_ms) for death in self.deaths]
        took = all_hand_overs(leases, deaths)
        bound_ms = self.plan.lease_s * 1000 + 2_000
        return {
            "seed": self.plan.seed,
            "sabotage": self.plan.sabotage,
            "runs": self.plan.runs,
            "completed": len(leases.completed),
            "kills": sum(death.kind == "kill" for death in self.deaths),
            "freezes": sum(death.kind == "freeze" for death in self.deaths),
            "worker_kills": self.worker_kills,
            "deploy_exits": self.drained,
            "unended": verdict.unended,
            "together": verdict.together,
            "doubled_effects": verdict.doubled_effects,
            "lost_effects": verdict.lost_effects,
            "state_mismatches": verdict.state_mismatches,
            "work_left": verdict.work_left,
            "lease_differences": verdict.lease_differences,
            "mismatches": verdict.mismatches,
            "leases": sum(map(len, leases.holds.values())),
            "step_starts": sum(leases.steps.values()),
            "keys_refused": self.book.get("refused", 0),
            "effects_repeated_by_key": self.book.get("repeated", 0),
            "lease_s": self.plan.lease_s,
            "hand_overs": len(took),
            "hand_over_p50_s": _seconds(quantile(took, 0.5)),
            "hand_over_p99_s": _seconds(quantile(took, 0.99)),
            "hand_overs_over_lease_and_2_s": sum(ms > bound_ms for ms in took),
            "unfinished": self.unfinished,
            "differences": verdict.told,
            "seconds": round(self.seconds, 1),
        }


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else round(ms / 1000, 2)
