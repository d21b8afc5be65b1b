"""The demo's agent: the one of ``refold verify effects``, with whatever model the user has set."""

from __future__ import annotations

from refold.demo.model import model_from_environment
from refold.ops.effects import agent
from refold.ops.effects.protocol import AgentTurn


async def play(turn: AgentTurn) -> None:
    """One turn; see :func:`refold.ops.effects.agent.play`."""
    await agent.play(turn, model_from_environment())
