"""A worker that keeps copies stands still for longer than tombstones are kept (rule Z), and is promoted."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import Final

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from refold.ops.faults.scenario import Scene, log_size, told
from refold.ops.fleet import WorkerProcess
from refold.ops.verify.stage import Stage

VICTIM: Final = "w0"
#: What is left of ``delete.retention.ms`` after rule Z's margin: the topology does not go below a day, so the
#: topic is changed behind its back.
LIFETIME_S: Final = 6.0
REQUEST_S: Final = 10.0


async def stopped(scene: Scene) -> None:
    """SIGSTOP until others own all and tombstones may be gone; woken, it must begin its copies again. Then
    the other dies, and the copies are what the sessions are served from."""
    stage = scene.stage(extra={"REFOLD_WORKER__STANDBY_REPLICAS": "1"})
    worker, other = stage.worker(VICTIM), stage.worker("w1")
    async with stage, scene.acting(stage):
        await asyncio.to_thread(_shorten, stage)
        scene.held.add(VICTIM)
        await asyncio.to_thread(worker.kill)
        since = log_size(worker)
        # What tombstones' life is, a worker learns when it starts.
        worker.start()
        await scene.until("it keeps copies", lambda: told(worker, "standby_opened", since))
        await scene.until_ready(stage)
        worker.signal(signal.SIGSTOP)
        began = time.monotonic()
        await scene.until("the others own its partitions", lambda: not stage.owned(VICTIM))
        await asyncio.sleep(max(0.0, LIFETIME_S + 2 - (time.monotonic() - began)))
        since = log_size(worker)
        worker.signal(signal.SIGCONT)
        scene.seen["stopped_s"] = round(time.monotonic() - began, 1)
        # It may have found itself fenced before it looked at its copies.
        scene.held.discard(VICTIM)
        scene.seen["found"] = await scene.until("its copies began anew", partial(_too_old, worker, since))
        await scene.until_ready(stage)
        since = log_size(worker)
        scene.held.add(other.name)
        await asyncio.to_thread(other.kill)
        await scene.until("it owns everything", lambda: len(stage.owned(VICTIM)) == stage.plan.partitions)
        await scene.until("it was promoted", lambda: told(worker, "partition_live", since))
        other.start()
        scene.held.discard(other.name)
        await scene.until_ready(stage)
    scene.gate(bool(scene.seen.get("found")), "a copy was too old")


def _too_old(worker: WorkerProcess, since: int) -> str | None:
    """Whether it was found by the process that stood still, or by the next one in the same directory."""
    if told(worker, "standby_lost", since, reason="too_old") is not None:
        return "when it woke"
    return None if told(worker, "standby_opened", since, set_aside="too_old") is None else "when it started"


def _shorten(stage: Stage) -> None:
    # RocksDB comes with it: not for who only wants the list of scenarios.
    from refold.engine.restore import TOMBSTONE_MARGIN_MS

    retention_ms = TOMBSTONE_MARGIN_MS + int(LIFETIME_S * 1000)
    entry = ConfigEntry("delete.retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, stage.names.state, incremental_configs=[entry])
    for future in stage.admin.incremental_alter_configs([resource], request_timeout=REQUEST_S).values():
        future.result(REQUEST_S)
