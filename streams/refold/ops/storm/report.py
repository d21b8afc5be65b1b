"""What a run came to: figures of each arm, their ratios, the differences; as JSON, as tables, as a chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from refold.ops.storm.arms import Arm
from refold.ops.storm.chart import POINTS_MAX, Line, Panel, draw
from refold.ops.storm.curves import Live, ReadRate
from refold.ops.storm.plan import StormPlan
from refold.ops.storm.ratios import ratios
from refold.ops.verify.judge import Verdict

if TYPE_CHECKING:
    from refold.cli.output import Output

MB: Final = 1_000_000
SHARES: Final = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
MEASURED: Final = "the workers' refold_restore_bytes_total, every 0.1 s"


@dataclass(slots=True)
class ArmResult:
    """One arm on real workers. Times in seconds since its processes were started. ``rebalances``: ``None``
    where the group's generations cannot be read."""

    arm: Arm
    rate: ReadRate
    assigned_s: float
    hot: Live
    new: Live
    partitions: Live
    rebalances: int | None
    events: int

    def as_json(self) -> dict[str, Any]:
        return {
            "read_peak_bytes_per_s": round(self.rate.peak),
            "read_mean_bytes_per_s": round(self.rate.mean),
            "read_bytes": round(self.rate.total),
            "assigned_s": round(self.assigned_s, 3),
            "hot": self.hot.as_json(),
            "new": self.new.as_json(),
            "partitions": self.partitions.as_json(),
            "rebalances": self.rebalances,
            "events": self.events,
        }


@dataclass(slots=True)
class Outcome:
    """The result of ``refold verify storm`` on real workers."""

    plan: StormPlan
    results: Sequence[ArmResult]
    verdict: Verdict
    cap_bytes_per_s: int
    hot_first: bool
    seconds: float
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return self.verdict.clean

    def as_json(self) -> dict[str, Any]:
        """Exactly the documented keys."""
        plan, arms = self.plan, {one.arm.name: one.as_json() for one in self.results}
        return {
            "workers": plan.workers,
            "sessions": plan.sessions,
            "partitions": plan.partitions,
            "hot_partitions": plan.hot_partitions or plan.partitions,
            "cap_bytes_per_s": self.cap_bytes_per_s,
            "hot_first": self.hot_first,
            "read_rate": MEASURED,
            "arms": arms,
            "ratios": ratios(arms),
            "mismatches": self.verdict.mismatches,
            "regressions": self.verdict.regressions,
            "rpo_events": self.verdict.rpo_events,
            "seconds": round(self.seconds, 1),
            "seed": plan.seed,
            "files": dict(self.files),
        }

    def show(self, out: Output) -> None:
        found = self.as_json()
        show_arms(out, found["arms"])
        show_ratios(out, found["ratios"])
        if not self.hot_first:
            out.say("this build has no worker.hot_first: the polite arm is jitter, turns and order only")
        out.say(f"mismatches        {found['mismatches']}")
        out.say(f"regressions       {found['regressions']}")
        out.say(f"lost events       {found['rpo_events']}")
        for line in self.verdict.differences:
            out.say(f"  {line}")


def show_arms(out: Output, arms: Mapping[str, Any]) -> None:
    columns = (
        "arm",
        "peak MB/s",
        "mean MB/s",
        "hot first",
        "50 %",
        "99 %",
        "new 99 %",
        "all live",
        "rebalances",
    )
    rows = []
    for name, one in arms.items():
        hot, new = one["hot"], one.get("new", {})
        rows.append(
            (
                name,
                f"{one['read_peak_bytes_per_s'] / MB:.1f}",
                f"{one['read_mean_bytes_per_s'] / MB:.1f}",
                *(_seconds(at) for at in (hot["first_s"], hot["p50_s"], hot["p99_s"], new.get("p99_s"))),
                _seconds(one["partitions"]["all_s"]),
                one.get("rebalances"),
            )
        )
    out.table(columns, rows)


def show_ratios(out: Output, found: Mapping[str, float | None]) -> None:
    texts = {
        "hot_p99": "99 % of hot sessions live: polite sooner than capped, times",
        "hot_p99_assigned": "  the same, since the first assignment",
        "read_peak": "peak read rate: without a cap over with it, times",
    }
    for name, text in texts.items():
        if found.get(name) is not None:
            out.say(f"{text:<66}{found[name]}")


def show_curve(out: Output, curves: Sequence[tuple[str, Live]]) -> None:
    """When which share of the hot sessions is live, arm by arm."""
    rows = [(f"{share:.0%}", *(_seconds(live.at(share)) for _, live in curves)) for share in SHARES]
    out.table(("hot sessions live", *(name for name, _ in curves)), rows)


def chart(title: str, curves: Sequence[tuple[str, ReadRate, Live]]) -> str:
    """SVG of the read rates and of the hot sessions' live curves."""
    rates = [Line(name, [(x, y / MB) for x, y in rate.points(POINTS_MAX)]) for name, rate, _ in curves]
    live = [Line(name, [(0.0, 0.0), *_steps(hot.points(POINTS_MAX))]) for name, _, hot in curves]
    return draw(title, [Panel("read by restores, MB/s", rates), Panel("hot sessions live", live, top=1.0)])


def write(directory: Path, report: Mapping[str, Any], svg: str) -> dict[str, str]:
    """``report.json`` and ``chart.svg``; their paths. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = {"report": directory / "report.json", "chart": directory / "chart.svg"}
    paths["chart"].write_text(svg, encoding="utf-8")
    files = {name: str(path) for name, path in paths.items()}
    paths["report"].write_text(json.dumps({**report, "files": files}, indent=2) + "\n", encoding="utf-8")
    return files


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Corners of the step function: nothing is live between two points that was not at the first."""
    out: list[tuple[float, float]] = []
    before = 0.0
    for x, y in points:
        out += [(x, before), (x, y)]
        before = y
    return out


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
