"""Which worker of a stage dies next: one that works, or a run would only measure starts."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from refold.ops.fleet import Death, DeathKind, WorkerProcess
from refold.ops.verify.stage import Stage

POLL_S: Final = 0.1


async def find_victim(stage: Stage, first: int, death: Death, seconds_max: float) -> WorkerProcess | None:
    """From number ``first`` on, one that owns something and is ready; for a zombie or a take-over the others
    are ready too. ``None`` where there was none for ``seconds_max``. Revives meanwhile."""
    workers = stage.fleet.workers
    order = workers[first:] + workers[:first]
    alone = death.kind is DeathKind.ZOMBIE or death.takeover
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        stage.revive()
        ready = [worker for worker in order if await worker.ready()]
        owning = set((await asyncio.to_thread(stage.owners)).values())
        candidates = [worker for worker in ready if worker.name in owning]
        if candidates and (not alone or len(ready) == len(order)):
            return candidates[0]
        await asyncio.sleep(POLL_S)
    return None
