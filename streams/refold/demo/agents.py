"""The conversations of the demo: agent processes play them through the tools SDK, and die too.

The same crew, gateway and operator as ``refold verify effects`` uses, at a reader's pace: one agent dies
about every eight seconds, at each boundary of a tool call in turn, one of them frozen and woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from refold.client import Refold
from refold.demo.dataset import Conversation
from refold.errors import UnavailableError
from refold.ops.effects import ledger
from refold.ops.effects.crew import Crew
from refold.ops.effects.gatewayclient import GatewayClient
from refold.ops.effects.gatewayprocess import GatewayProcess
from refold.ops.effects.killer import AgentEnd, Killer
from refold.ops.effects.operator import Operator
from refold.ops.effects.plan import EffectsPlan
from refold.ops.fleet.environment import place_of
from refold.settings import Settings

Say = Callable[[str], None]

AGENT: Final = "refold.demo.chat:play"
#: With 200 conversations over 90 s nearly all are open at once, each mostly waiting for its next turn.
AGENTS: Final = 3
#: One round of deaths, one of them a freeze, fits into this part of the run.
DEATHS_FRACTION: Final = 0.8
#: The last lease, the last review, a worker's restart.
FINISH_S_MAX: Final = 90.0
#: Not the user's to choose: two demos show the same tools and failures.
SEED: Final = 1


@dataclass(frozen=True, slots=True)
class PlayedByAgents:
    """``waits_ms``: how long each event waited for refold, of turns that ended."""

    ends: Sequence[AgentEnd]
    entries: Sequence[ledger.Entry]
    waits_ms: Sequence[float]


def plan_of(settings: Settings, conversations: int, seconds: float) -> EffectsPlan:
    """One death per boundary and one freeze, evenly over the run."""
    plan = EffectsPlan(
        seed=SEED,
        conversations=conversations,
        seconds=seconds,
        agents=AGENTS,
        per_agent=conversations,
        partitions=settings.partitions or 1,
        kills_per_boundary=1,
        kills_per_recovery=0,
        freezes=1,
        worker_kills=0,
        agent=AGENT,
        paced_s=seconds,
        spacing_s=0.0,
    )
    return replace(plan, spacing_s=seconds * DEATHS_FRACTION / len(plan.deaths()))


async def play(
    settings: Settings, directory: Path, conversations: Sequence[Conversation], seconds: float, say: Say
) -> PlayedByAgents:
    """Returns when every conversation ended. Raises :class:`UnavailableError` when they do not."""
    plan = plan_of(settings, len(conversations), seconds)
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    gateway = GatewayProcess(plan, directory)
    await asyncio.to_thread(gateway.start)
    try:
        async with GatewayClient(gateway.url) as books, Refold(settings=settings) as client:
            sessions = [c.session for c in conversations]
            crew = Crew(plan, directory, gateway.url, place_of(settings), sessions, say)
            try:
                await crew.start()
                killer = Killer(plan, crew, client, say)
                operator = asyncio.create_task(Operator(client, books, killer.held).watch())
                try:
                    await killer.run(lambda _done, _of: None)
                    over = await crew.finish(seconds + FINISH_S_MAX)
                finally:
                    operator.cancel()
                    await asyncio.gather(operator, return_exceptions=True)
            finally:
                await crew.stop()
    finally:
        gateway.stop()
    if not over:
        raise UnavailableError(
            f"{len(sessions) - len(crew.progress.ended)} conversations did not end; the agents' logs are in "
            f"{directory}"
        )
    return PlayedByAgents(killer.ends, list(ledger.read(gateway.ledger)), crew.progress.waits_ms)
