"""Beginning a run: one event, from any process; whoever serves the agent hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refold.client.agents.handle import RunHandle
from refold.client.agents.limits import RETRIES_MAX
from refold.client.agents.values import encode
from refold.client.ids import new_id
from refold.client.snapshots import ENDED_RUN_STATES
from refold.client.tools.archive import archive_of
from refold.core.limits import ENDED_RUNS_MAX
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.session import Session


async def _started_before(session: Session, run_id: str) -> bool:
    """Whether it was started, and its row may have made room for newer ones: then the fold cannot know it.
    While the session has fewer ended runs than it keeps, it does."""
    view = await session.state()
    if view is None or view.run(run_id) is not None:
        return False
    if sum(row["state"] in ENDED_RUN_STATES for row in view.data["runs"]) < ENDED_RUNS_MAX:
        return False
    archive = archive_of(session._connection, session.key)
    await archive.read(session, view.seq, view.data["created_at_ms"])
    return archive.had_run(run_id)


async def start(
    agent: str, session: Session, *, input: Any, run_id: str | None, pin: str | None,  # noqa: A002
    title: str | None, retries: int,
) -> RunHandle:  # fmt: skip
    """As ``agent.start``."""
    if not 0 <= retries <= RETRIES_MAX:
        raise UsageError(f"retries={retries!r}: 0 to {RETRIES_MAX}")
    chosen = run_id or f"r-{new_id()}"
    data = None if input is None else encode(input, "the run's input")
    if run_id is not None and await _started_before(session, run_id):
        return RunHandle(session, chosen)
    await session.run_started(
        chosen, agent, input=data, pin=pin, title=title, retries_max=retries, wait="accepted"
    )
    return RunHandle(session, chosen)
