"""Reading a run's row, for as long as there is a lease to read it under."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from refold.client.agents.rows import RunRow, find_run
from refold.errors import TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.session import Session

#: Between two tries, where nothing answers.
PAUSE_S: Final = 0.2


async def read_row(session: Session, run_id: str, seq: int, patience_s: float) -> RunRow | None:
    """The row as it is at ``seq`` or later; ``None`` where the session holds none. Raises TransientError or
    UnavailableError where nothing has answered for ``patience_s``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            return find_run(await session.state(min_seq=seq), run_id)
        except (TransientError, UnavailableError):
            if loop.time() + PAUSE_S >= deadline:
                raise
        await asyncio.sleep(PAUSE_S)
