"""Plans: what a body says will come. A plan binds nobody; it is what readers and the brief show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refold.client.agents.replay import OCCURRENCE, StepIds
from refold.client.agents.rows import StepRow
from refold.client.agents.values import short
from refold.core.limits import RUN_SUMMARY_BYTES_MAX

if TYPE_CHECKING:
    from refold.client.agents.execution import Execution


@dataclass(frozen=True, slots=True)
class PlannedStep:
    name: str
    summary: str | None = None


def planned_steps(steps: Iterable[str | PlannedStep | Mapping[str, Any]]) -> list[PlannedStep]:
    made = []
    for step in steps:
        if isinstance(step, PlannedStep):
            made.append(step)
        elif isinstance(step, str):
            made.append(PlannedStep(step))
        else:
            made.append(PlannedStep(str(step["name"]), step.get("summary")))
    return made


async def set_plan(execution: Execution, steps: list[PlannedStep]) -> None:
    """Send it, where the rows are not what it says already (a body is executed again)."""
    ids = StepIds()
    plan = [
        {
            "step_id": ids.next(step.name),
            "name": step.name,
            "summary": None if step.summary is None else short(step.summary, RUN_SUMMARY_BYTES_MAX),
        }
        for step in steps
    ]
    if fits(execution.rows, [str(step["step_id"]) for step in plan]):
        return
    ruling = await execution.writer.write("PlanSet", {"steps": plan})
    await execution.refresh(ruling.seq or 0)


def fits(rows: Mapping[str, StepRow], planned: list[str]) -> bool:
    """Whether all that is planned has a row, and nothing else is pending."""
    pending = {
        name for name, row in rows.items() if row.state == "pending" and not name.startswith(OCCURRENCE)
    }
    return all(name in rows for name in planned) and pending <= set(planned)
