"""A step as the body asks for it, and what its body is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from refold.client.agents.beats import Beats
from refold.client.agents.handles import Given
from refold.client.agents.limits import RETRIES_MAX
from refold.client.agents.values import short, summary_of
from refold.client.tools.outcomes import Effect
from refold.core.limits import RUN_SUMMARY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Attempt:
    """``resumed``: this attempt was begun before, and nobody knows what came of it; ``rerun``: one before it
    had an outcome."""

    step_id: str
    number: int
    resumed: bool
    rerun: bool
    beats: Beats


@dataclass(frozen=True, slots=True)
class StepSpec:
    """``summary``: a text, or made of the output; ``None``: its beginning."""

    name: str
    given: Given
    body: Callable[[Attempt], Awaitable[Any]]
    effect: Effect = "none"
    rerunnable: bool = False
    retries: int = RETRIES_MAX
    heartbeat_s: float = 0.0
    summary: str | Callable[[Any], str] | None = None

    def summary_of(self, value: Any) -> str:
        if self.summary is None:
            return summary_of(value)
        made = self.summary if isinstance(self.summary, str) else self.summary(value)
        return short(made, RUN_SUMMARY_BYTES_MAX)
