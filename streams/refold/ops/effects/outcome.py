"""The result of a run: one JSON object for programs, lines for people, and whether it proved anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from refold.ops.effects.boundaries import BOUNDARIES, CALL, RECOVERY
from refold.ops.effects.judge import Verdict
from refold.ops.effects.killer import AgentEnd
from refold.ops.effects.plan import EffectsPlan
from refold.ops.fleet import Death
from refold.ops.verify.chaos import percentiles

if TYPE_CHECKING:
    from refold.cli.output import Output

#: Part of the planned deaths that must have been carried out: a boundary is not always reached in time.
KILLS_SHARE_MIN: Final = 0.9


@dataclass(frozen=True, slots=True)
class Outcome:
    """``unfinished``: why not every conversation ended; empty when all did."""

    plan: EffectsPlan
    verdict: Verdict
    ends: Sequence[AgentEnd]
    worker_deaths: Sequence[Death]
    counters: Mapping[str, int]
    reviews: Mapping[str, int]
    ended: int
    unfinished: Sequence[str]
    seconds: float

    @property
    def kills(self) -> int:
        return len(self.ends) + len(self.worker_deaths)

    @property
    def boundaries(self) -> dict[str, int]:
        hit = Counter(end.death.boundary for end in self.ends)
        return {name: hit[name] for name in BOUNDARIES}

    @property
    def woken(self) -> list[AgentEnd]:
        """Frozen processes that others had taken over from and that then ran into the effect."""
        return [end for end in self.ends if end.death.action == "stop" and end.taken_over and end.then]

    @property
    def vacuous(self) -> list[str]:
        """What the run did not show. A run that met no danger proves nothing, whatever it counted. Under a
        sabotage only differences count: it must be found, not missed.
        """
        verdict, plan = self.verdict, self.plan
        if plan.sabotage is not None:
            return []
        hit = self.boundaries
        missing = [f"boundary {name} was never hit" for name in CALL if not hit[name]]
        if plan.kills_per_recovery and not any(hit[name] for name in RECOVERY):
            missing.append("nobody died while looking after a dead runner's call")
        if not verdict.unknown:
            missing.append("no call's outcome was unknown")
        if not verdict.not_done:
            missing.append("no call was found not done")
        if not verdict.done_by_lookup:
            missing.append("no call was found done by a lookup")
        if plan.freezes and not self.woken:
            missing.append("no frozen process was woken after others had taken over")
        if self.kills < plan.kills * KILLS_SHARE_MIN:
            missing.append(
                f"{self.kills} of {plan.kills} planned kills were carried out: give it more --seconds"
            )
        return missing

    @property
    def clean(self) -> bool:
        return self.verdict.clean and not self.unfinished and not self.vacuous

    def as_json(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "executed_twice": verdict.executed_twice,
            "lost": verdict.lost,
            "unknown_not_in_review": verdict.unknown_not_in_review,
            "ledger_mismatches": verdict.ledger_mismatches,
            "state_mismatches": verdict.state_mismatches,
            "kills": self.kills,
            "kills_agents": len(self.ends),
            "kills_workers": len(self.worker_deaths),
            "boundaries": self.boundaries,
            "zombies_woken": len(self.woken),
            "zombie_effects": dict(Counter(end.then for end in self.woken)),
            "conversations": self.plan.conversations,
            "conversations_ended": self.ended,
            "operations": verdict.operations,
            "events": verdict.events,
            "unknown": verdict.unknown,
            "not_done": verdict.not_done,
            "done_by_lookup": verdict.done_by_lookup,
            "reviews": dict(self.reviews),
            "gateway": dict(self.counters),
            "rto_ms": percentiles([d.recovered_ms for d in self.worker_deaths if d.recovered_ms is not None]),
            "seconds": round(self.seconds, 1),
            "unfinished": list(self.unfinished),
            "not_shown": self.vacuous,
            "seed": self.plan.seed,
        }

    def show(self, out: Output) -> None:
        """For a person."""
        row = self.as_json()
        out.say(f"conversations          {row['conversations_ended']} of {row['conversations']} ended")
        out.say(f"operations             {row['operations']} in the gateway's ledger, {row['events']} events")
        out.say(f"kills                  {row['kills_agents']} agents, {row['kills_workers']} workers")
        out.say("  at                   " + ", ".join(f"{n} x {name}" for name, n in self.boundaries.items()))
        woken = ", ".join(f"{n} x {then}" for then, n in row["zombie_effects"].items())
        out.say(f"  woken at the effect  {row['zombies_woken']}" + (f": {woken}" if woken else ""))
        out.say(
            f"outcomes               {row['done_by_lookup']} done by lookup, {row['not_done']} not done, "
            f"{row['unknown']} unknown"
        )
        out.say(f"executed twice         {row['executed_twice']}")
        out.say(f"lost                   {row['lost']}")
        out.say(f"unknown, not in review {row['unknown_not_in_review']}")
        out.say(f"ledger mismatches      {row['ledger_mismatches']}")
        out.say(f"state mismatches       {row['state_mismatches']}")
        out.say(f"time                   {row['seconds']} s")
        for line in self.verdict.differences:
            out.say(f"  {line}")
        for line in (*self.unfinished, *(f"not shown: {text}" for text in self.vacuous)):
            out.say(f"  {line}")
