"""Which operation a step with an effect runs as. Pure, over what the journal says of the step's past.

A step with an effect is one call of the ledger, so that its effect is known three ways after a crash. The
call's operation is ``run/step/body:n``; ``n`` rises only where the effect is to happen again:

- the operation before is known to have *failed* (nothing took effect), and the step is tried again,
- its result was the output of a completed step that was then invalidated, and the step runs again.

A result that no step was completed with is this attempt's: its process died between the two records. An
operation whose outcome is not known stays the step's operation, whoever retries the run.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Final

from refold.client.events import SessionEvent
from refold.client.tools.keys import operation_id

#: The call of a step's own body.
BODY: Final = "body"

_ENDS: Final = {"ToolCallCompleted": "done", "ToolCallFailed": "failed", "ToolCallDenied": "denied"}


def body_operation(run_id: str, step_id: str, number: int) -> str:
    return operation_id(BODY, str(number), run=run_id, step=step_id)


@dataclass(slots=True)
class StepPast:
    """``completions``: StepCompleted events of the step. ``ends``: by operation, the first one stands."""

    completions: int = 0
    ends: dict[str, str] = field(default_factory=dict)

    def take(self, event: SessionEvent, run_id: str, step_id: str) -> None:
        payload = event.payload or {}
        if event.type == "StepCompleted":
            if payload["run_id"] == run_id and payload["step_id"] == step_id:
                self.completions += 1
        elif event.type in _ENDS and (operation := payload.get("operation_id")) is not None:
            self.ends.setdefault(operation, _ENDS[event.type])

    def number(self, run_id: str, step_id: str) -> int:
        """Of the operation that the step's next attempt is to run, from 1."""
        consumed, number = 0, 1
        while (end := self.ends.get(body_operation(run_id, step_id, number))) is not None:
            if end == "done":
                consumed += 1
                if consumed > self.completions:
                    return number
            elif end == "denied":
                return number
            number += 1
        return number


async def read_past(events: AsyncIterable[SessionEvent], run_id: str, step_id: str) -> StepPast:
    past = StepPast()
    async for event in events:
        if event.type == "StepCompleted" or event.type in _ENDS:
            past.take(event, run_id, step_id)
    return past
