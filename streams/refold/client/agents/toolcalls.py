"""``run.tools``: what a model asked for, run through the tool ledger as one step of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from refold.client.agents.answers import Answer, Calls
from refold.client.agents.beats import Beats
from refold.client.agents.handles import StepResult, given
from refold.client.agents.limits import BEATS_PER_HEARTBEAT
from refold.client.agents.specs import Attempt, StepSpec
from refold.client.tools.declare import Tool
from refold.client.tools.outcomes import EFFECTS, Effect
from refold.client.tools.providers import read_calls

if TYPE_CHECKING:
    from refold.client.agents.execution import Execution


def tools_step(
    execution: Execution,
    name: str,
    calls: StepResult | Sequence[Any],
    *,
    message_id: str | None,
    heartbeat_s: float,
) -> StepSpec:
    """Raises UsageError for what is no list of calls."""
    source: StepResult | None = None
    if isinstance(calls, Answer):
        calls = calls.calls
    if isinstance(calls, Calls):
        source, message_id = calls.source, message_id or calls.message_id
        raw = list(calls)
    elif isinstance(calls, StepResult):
        source, raw = calls, list(calls.value)
    else:
        raw = list(calls)
    asked = read_calls(raw)
    wanted = [{"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in asked]
    names, inputs = ["calls"], [wanted]
    if source is not None:
        names, inputs = ["calls", "answer"], [wanted, source]  # type: ignore[list-item]
    agent, run_id = execution.agent, execution.run_id

    async def body(attempt: Attempt) -> Any:
        # Each call is bounded by its own time-out, so a process that waits for them is not stuck.
        beating = asyncio.create_task(_beat(attempt.beats, heartbeat_s), name="refold-tools-heartbeat")
        try:
            return await execution.session.run_tools(
                raw,
                tools=agent.tools,
                message_id=message_id or attempt.step_id,
                run=run_id,
                step=attempt.step_id,
                lease=agent.tool_lease_s,
            )
        finally:
            beating.cancel()

    return StepSpec(
        name,
        given(names, inputs),
        body,
        effect=strictest((call.name for call in asked), agent.tools),
        heartbeat_s=heartbeat_s,
        summary=", ".join(call.name for call in asked) or "no calls",
    )


def strictest(asked: Iterable[str], tools: Sequence[Tool]) -> Effect:
    """What running these calls may do to the world."""
    declared = {tool.name: tool.effect for tool in tools}
    return max((declared.get(name, "none") for name in asked), key=EFFECTS.index, default="none")


async def _beat(beats: Beats, heartbeat_s: float) -> None:
    while True:
        await asyncio.sleep(heartbeat_s / BEATS_PER_HEARTBEAT)
        beats.beat()
