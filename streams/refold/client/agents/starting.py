"""Beginning a run: one event, from any process; whoever serves the agent hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refold.client.agents.handle import RunHandle
from refold.client.agents.limits import RETRIES_MAX
from refold.client.agents.values import encode
from refold.client.ids import new_id
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.session import Session


async def start(
    agent: str, session: Session, *, input: Any, run_id: str | None, pin: str | None,  # noqa: A002
    title: str | None, retries: int,
) -> RunHandle:  # fmt: skip
    """As ``agent.start``."""
    if not 0 <= retries <= RETRIES_MAX:
        raise UsageError(f"retries={retries!r}: 0 to {RETRIES_MAX}")
    chosen = run_id or f"r-{new_id()}"
    data = None if input is None else encode(input, "the run's input")
    await session.run_started(
        chosen, agent, input=data, pin=pin, title=title, retries_max=retries, wait="accepted"
    )
    return RunHandle(session, chosen)
