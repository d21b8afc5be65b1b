"""``run.model``: a generation in the run's session, as a step of the run.

The generation's key is ``run/step`` (``run/step/attempt`` from the second attempt on), so whoever executes
the step again finds the same generation: it is followed, taken over when its process fell silent, or read
back. Its parameters are those it was started with, whatever the body says by now; a step that runs *again* is
a new generation, asked with temperature 0. Both stand in the journal, in ``GenerationStarted``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from refold.client.agents.answers import answer_value
from refold.client.agents.current import RERUN_TEMPERATURE
from refold.client.agents.handles import Given
from refold.client.agents.limits import LEASE_S_DEFAULT
from refold.client.agents.outcomes import NonRetryable
from refold.client.agents.specs import Attempt, StepSpec
from refold.client.generations.ids import generation_id
from refold.client.generations.limits import LEASE_S_DEFAULT as GENERATION_LEASE_S
from refold.client.generations.places import row_of
from refold.client.generations.terms import terms_of
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.client.agents.beats import Beats
    from refold.client.agents.execution import Execution
    from refold.client.generations.generation import Generation, Outcome
    from refold.client.generations.registry import Answer as Generator
    from refold.client.session import Session

#: How often it is looked whether a generation of this process has gone on.
PRODUCED_LOOK_S: Final = 1.0

#: Of the run's lease: a generation whose process died can be gone on with before its run is taken over.
GENERATION_LEASE_SHARE: Final = 0.5


class GenerationFailed(RefoldError):
    """The provider, or the generator, failed: the step may be tried again."""

    exit_code = 75

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code


def generation_lease_s(run_lease_s: float = LEASE_S_DEFAULT) -> float:
    return min(GENERATION_LEASE_S, run_lease_s * GENERATION_LEASE_SHARE)


def model_step(
    execution: Execution,
    name: str,
    inputs: Given,
    *,
    generator: Generator | str,
    params: Mapping[str, Any] | None,
    reply_to: str | None,
    heartbeat_s: float,
) -> StepSpec:
    """``inputs``: what the answer rests on beside the session; in ``params`` as ``inputs``."""
    wanted = dict(params or {})
    if inputs.values:
        wanted["inputs"] = list(inputs.values)

    async def body(attempt: Attempt) -> Any:
        return await _generate(execution, attempt, generator, wanted, reply_to)

    return StepSpec(
        name,
        inputs,
        body,
        rerunnable=True,
        heartbeat_s=heartbeat_s,
        summary=lambda value: " ".join(value["text"].split()) or f"{len(value['calls'])} tool calls",
    )


async def _generate(
    execution: Execution,
    attempt: Attempt,
    generator: Generator | str,
    params: dict[str, Any],
    reply_to: str | None,
) -> dict[str, Any]:
    session = execution.session
    key = f"{execution.run_id}/{attempt.step_id}"
    if attempt.number > 1:
        key = f"{key}/{attempt.number}"
    if attempt.rerun:
        params["temperature"] = RERUN_TEMPERATURE
    pinned = await _pinned(execution, generation_id(session.key, key)) if attempt.resumed else None
    given_params, given_reply = (params or None, reply_to) if pinned is None else pinned
    handle = await session.generate(
        generator,
        key=key,
        params=given_params,
        reply_to=given_reply,
        lease=generation_lease_s(execution.agent.lease_s),
    )
    outcome = await _ended(handle, attempt.beats)
    if outcome.state == "failed":
        raise GenerationFailed(f"generation {handle.id} failed: {outcome.error}", outcome.error or "failed")
    if outcome.message_id is None:
        raise NonRetryable(f"generation {handle.id} ended without a message", code="no_message")
    return await answer_value(session, handle.id, outcome.seq)


async def _ended(handle: Generation, beats: Beats) -> Outcome:
    """Its end. Every piece of text is a sign of life, whichever process produces it."""
    if not handle.recording:
        async with aclosing(handle.follow().events(None)) as frames:
            async for frame in frames:
                if frame is not None:
                    beats.beat()
        return await handle.result()
    ending = asyncio.create_task(handle.result())
    produced = handle.produced
    try:
        while not ending.done():
            await asyncio.wait({ending}, timeout=PRODUCED_LOOK_S)
            if handle.produced != produced:
                produced = handle.produced
                beats.beat()
        return ending.result()
    finally:
        ending.cancel()


async def _pinned(execution: Execution, generation: str) -> tuple[Any, str | None] | None:
    """Parameters and place of a generation that was started before; ``None`` where there is none."""
    session: Session = execution.session
    row = await row_of(session._connection, session, generation)
    if row is None:
        return None
    async with aclosing(session.events(row["started_seq"] - 1, 1)) as events:
        async for event in events:
            terms = terms_of(event)
            return None if terms is None else (terms.values, terms.reply_to)
    return None
