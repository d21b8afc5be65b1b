"""Durable agents: a body whose steps are remembered, so that any process can go on with it.

::

    agent = refold.Agent("reporter", version="1")

    @agent.run
    async def report(run):
        outline = await run.step("outline", make_outline, run.input)
        return await run.step("draft", draft, outline)

    await agent.serve(rf)                                  # in any number of processes
    handle = await agent.start(rf, "chat-1", input="tides")
    await handle.result()

Guide: ``docs/guides/agents.md``; rules: ``docs/concepts/runs.md``.
"""

from __future__ import annotations

from refold.client.agents.agent import Agent
from refold.client.agents.answers import Answer, Calls
from refold.client.agents.brief import Brief, BriefStep, CurrentStep
from refold.client.agents.current import Step
from refold.client.agents.handle import RunHandle
from refold.client.agents.handles import StepResult
from refold.client.agents.outcomes import (
    BodyChanged,
    NonRetryable,
    RunFailed,
    RunInReview,
    RunLeft,
    RunStopped,
    StaleStep,
)
from refold.client.agents.plans import PlannedStep
from refold.client.agents.run import Run

__all__ = [
    "Agent",
    "Answer",
    "BodyChanged",
    "Brief",
    "BriefStep",
    "Calls",
    "CurrentStep",
    "NonRetryable",
    "PlannedStep",
    "Run",
    "RunFailed",
    "RunHandle",
    "RunInReview",
    "RunLeft",
    "RunStopped",
    "StaleStep",
    "Step",
    "StepResult",
]
