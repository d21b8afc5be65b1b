"""What a worker needs of checkpoints, put together; nothing where no store is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refold.engine.checkpoints.remote import Remote
from refold.engine.checkpoints.service import Checkpoints, LoopMetrics, clear
from refold.engine.checkpoints.source import CheckpointSource
from refold.engine.config import EngineConfig
from refold.engine.metrics import Metrics
from refold.engine.points import Points
from refold.engine.store import Memory


@dataclass(frozen=True, slots=True)
class Parts:
    """``memory``: what all DBs of the process share, those opened to look at included."""

    memory: Memory
    source: CheckpointSource | None = None
    service: Checkpoints | None = None


def assemble(
    config: EngineConfig,
    remote: Remote | None,
    memory: Memory,
    points: Points,
    metrics: Metrics,
    *,
    log: Any,
    now_ms: Callable[[], int],
) -> Parts:
    """On the event loop, before anything is restored. Deletes what a killed process left half done."""
    clear(config.store_dir)
    if remote is None:
        return Parts(memory)
    told = LoopMetrics(metrics, asyncio.get_running_loop())
    return Parts(
        memory,
        CheckpointSource(remote, memory, metrics=told, log=log),
        Checkpoints(config, remote, memory, points=points, metrics=metrics, log=log, now_ms=now_ms),
    )
