"""The report: one JSON file for programs, one summary for people."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.demo.controlled import ControlResult
from refold.demo.judge import Verdict
from refold.demo.opening import Opening
from refold.ops.effects.killer import AgentEnd
from refold.ops.fleet import Death
from refold.ops.verify.chaos import percentiles

if TYPE_CHECKING:
    from refold.cli.output import Output


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a run found out. ``waits_ms``: how long each step of the conversations waited for refold."""

    verdict: Verdict
    deaths: Sequence[Death]
    agent_ends: Sequence[AgentEnd]
    control: ControlResult
    turns: int
    seconds: float
    waits_ms: Sequence[float]
    model: str
    bootstrap: str
    prefix: str
    workers: int
    opening: Opening | None = None

    @property
    def clean(self) -> bool:
        return self.verdict.clean and (self.opening is None or not self.opening.wrong)

    @property
    def in_flight(self) -> int:
        return sum(death.in_flight for death in self.deaths)

    def as_json(self) -> dict[str, Any]:
        v, times = self.verdict, [d.recovered_ms for d in self.deaths if d.recovered_ms is not None]
        return {
            "sessions": v.sessions,
            "turns": self.turns,
            "events": v.events,
            "operations": v.operations,
            "workers": self.workers,
            "seconds": round(self.seconds, 1),
            "throughput": {
                "events_per_s": round(v.events / self.seconds, 1),
                "operations_per_s": round(v.operations / self.seconds, 1),
                "paced": True,
            },
            "kills": len(self.deaths),
            "kills_in_flight": self.in_flight,
            "kill_points": dict(Counter(d.point or "outside" for d in self.deaths)),
            "kill_list": [
                {
                    "at_s": d.at_s,
                    "worker": d.worker,
                    "point": d.point,
                    "events_in_flight": d.events if d.in_flight else 0,
                    "partitions": list(d.partitions),
                    "then": "takeover" if d.takeover else "restart",
                    "recovered_ms": None if d.recovered_ms is None else round(d.recovered_ms, 1),
                }
                for d in self.deaths
            ],
            "agent_kills": len(self.agent_ends),
            "agent_kill_points": dict(Counter(end.death.boundary for end in self.agent_ends)),
            "calls": {
                "done_by_lookup": v.done_by_lookup,
                "not_done": v.not_done,
                "unknown": v.unknown,
            },
            "mismatches": v.mismatches,
            "lost": v.lost,
            "doubled": v.doubled,
            "differences": v.differences,
            "rto_ms": percentiles(times),
            "rto_restart_ms": percentiles(
                [d.recovered_ms for d in self.deaths if not d.takeover and d.recovered_ms is not None]
            ),
            "rto_takeover_ms": percentiles(
                [d.recovered_ms for d in self.deaths if d.takeover and d.recovered_ms is not None]
            ),
            "step_wait_ms": percentiles(list(self.waits_ms)),
            "control": {
                "events": self.control.events,
                "lost": self.control.lost,
                "doubled": self.control.doubled,
                "rto_ms": percentiles(self.control.continue_ms),
            },
            "model": self.model,
            "bootstrap": self.bootstrap,
            "prefix": self.prefix,
            "opening": None if self.opening is None else self.opening.as_json(),
        }

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def show(self, out: Output) -> None:
        """The summary table and what stands around it."""
        v = self.verdict
        out.say("")
        out.say(
            f"{v.sessions} conversations, {self.turns} turns, {v.operations} tool calls, {v.events} events "
            f"in {self.seconds:.0f} s ({v.events / self.seconds:.0f} events/s, paced)"
        )
        points = ", ".join(
            f"{n} x {p}" for p, n in Counter(d.point or "outside" for d in self.deaths).items()
        )
        kills = "1 kill" if len(self.deaths) == 1 else f"{len(self.deaths)} kills"
        out.say(f"{kills}, {self.in_flight} with folded, uncommitted events: {points}")
        boundaries = ", ".join(end.death.boundary for end in self.agent_ends)
        out.say(f"{len(self.agent_ends)} deaths of agents: {boundaries or 'none'}")
        out.say(
            f"calls left without an answer, by deaths and by the gateway: {v.done_by_lookup} found done by a "
            f"lookup, {v.not_done} not done (run again), {v.unknown} unknown (ruled on in the review queue)"
        )
        out.say("")
        ours = [d.recovered_ms for d in self.deaths if d.recovered_ms is not None]
        out.table(
            ("", "refold", "plain consumer"),
            (
                ("lost", v.lost, self.control.lost),
                ("doubled", v.doubled, self.control.doubled),
                ("seconds to continue, median", _seconds(ours), _seconds(self.control.continue_ms)),
                ("seconds to continue, worst", _worst(ours), _worst(self.control.continue_ms)),
            ),
        )
        out.say(
            f"plain consumer: lost are those of {self.control.events} records that its final counts lack, "
            "doubled its outputs beyond one per record"
        )
        ways = (("the worker restarted", False), ("another took over", True))
        went_on = [
            f"{_seconds(times)} s when {way}"
            for way, takeover in ways
            if (
                times := [
                    d.recovered_ms
                    for d in self.deaths
                    if d.takeover is takeover and d.recovered_ms is not None
                ]
            )
        ]
        out.say("")
        if went_on:  # A short run may have had no kill of one kind, or none.
            out.say(f"refold went on after {', '.join(went_on)} (median)")
        equal = v.sessions - v.mismatches
        out.say(
            f"stored state = fold(journal), conversation = the uninterrupted run's, operations as expected: "
            f"{equal} of {v.sessions} sessions"
        )
        for line in v.differences[:20]:
            out.say(f"  {line}")
        for line in () if self.opening is None else self.opening.wrong:
            out.say(f"  opening: not so: {line}")


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values) / 1000:.1f}" if values else "-"


def _worst(values: Sequence[float]) -> str:
    return f"{max(values) / 1000:.1f}" if values else "-"
