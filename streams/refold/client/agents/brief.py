"""The task brief: what a process that goes on with a run needs to know of what was done before it. Pure.

Summaries of the *valid* completed steps in the order they were begun, and the current step's input. Outputs
that are invalid or stale, and their summaries, are in no brief (rule N6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from refold.client.agents.limits import BRIEF_BYTES_MAX, BRIEF_INPUT_BYTES_MAX
from refold.client.agents.rows import StepRow
from refold.client.agents.values import cut, short


@dataclass(frozen=True, slots=True)
class BriefStep:
    step_id: str
    summary: str


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """``input``: by name; values are known in the process that begins the step, ``None`` elsewhere (the
    journal has digests only)."""

    step_id: str
    attempt: int
    input: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Brief:
    """``text``: ready for a prompt, at most ``BRIEF_BYTES_MAX`` bytes."""

    text: str
    steps: tuple[BriefStep, ...]
    current: CurrentStep | None

    def __str__(self) -> str:
        return self.text


def make_brief(agent: str, task: Any, rows: Iterable[StepRow], current: CurrentStep | None) -> Brief:
    done = tuple(BriefStep(row.step_id, row.summary or "") for row in rows if row.valid)
    lines = [f"Task of {agent}: {short(task, BRIEF_INPUT_BYTES_MAX)}"]
    lines += ["Done so far:"] if done else ["Nothing is done yet."]
    lines += [f"- {step.step_id}: {step.summary}" if step.summary else f"- {step.step_id}" for step in done]
    if current is not None:
        again = f" (attempt {current.attempt})" if current.attempt > 1 else ""
        lines.append(f"Now: {current.step_id}{again}")
        for name, value in (current.input or {}).items():
            lines.append(f"  {name}: {short(value, BRIEF_INPUT_BYTES_MAX)}")
    return Brief(cut("\n".join(lines), BRIEF_BYTES_MAX), done, current)
