"""Workers that die where the chaos run does not look: in a restore, in a checkpoint's upload, in a drain; and
a rolling restart, in which nobody should notice anything."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Final

from refold.engine.points import CHECKPOINT, RESTORE
from refold.ops.faults.scenario import NotMet, Scene, hits, log_size, told
from refold.ops.fleet import WorkerProcess
from refold.ops.storm.grouplog import GroupLog
from refold.ops.verify.stage import Stage

VICTIM: Final = "w0"
#: A restore of a few hundred kilobytes takes seconds then.
SLOW_RESTORE_BYTES_PER_S: Final = 20_000
CHECKPOINT_INTERVAL_MS: Final = 1_000
#: After a point was armed; a checkpoint is due every second, and a restore begins with the start.
POINT_S_MAX: Final = 40.0
DIE_S_MAX: Final = 20.0
#: The rolling restart's session: a restart fits in.
ROLLING_SESSION_MS: Final = 30_000


async def _die_at(scene: Scene, worker: WorkerProcess, point: str, data: Path | None = None) -> None:
    """Start with the point armed and wait until it has died of it. ``data`` is deleted before."""
    before = len(hits(worker))
    if data is not None:
        await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
    worker.configure({"REFOLD_POINT": f"{point}:kill"})
    worker.start()
    worker.configure({"REFOLD_POINT": ""})
    code = await scene.until(f"it died at {point}", lambda: worker.wait_end(0.1), POINT_S_MAX)
    if code != -signal.SIGKILL or hits(worker)[before:] != [point]:
        raise NotMet(f"it died at {point} (exit code {code}, points {hits(worker)[before:]})")
    scene.seen.setdefault("died_at", []).append(point)


async def in_restore(scene: Scene) -> None:
    """Its disk gone, killed at each step of the take-over, and once more in the middle of a slow restore."""
    stage = scene.stage()
    worker = stage.worker(VICTIM)
    async with stage, scene.acting(stage):
        await scene.until("the victim owns something", lambda: stage.owned(VICTIM))
        scene.held.add(VICTIM)
        await asyncio.to_thread(worker.kill)
        for point in RESTORE:
            await _die_at(scene, worker, point, worker.data_path)
        await asyncio.to_thread(shutil.rmtree, worker.data_path, ignore_errors=True)
        worker.configure({"REFOLD_WORKER__RESTORE_BYTES_PER_S_MAX": str(SLOW_RESTORE_BYTES_PER_S)})
        since = log_size(worker)
        worker.start()
        await scene.until(
            "a slow restore began", lambda: told(worker, "partition_moved", since, state="restoring")
        )
        await asyncio.to_thread(worker.kill)
        if told(worker, "partition_live", since) is None:
            scene.seen.setdefault("died_at", []).append("restoring")
        worker.configure({"REFOLD_WORKER__RESTORE_BYTES_PER_S_MAX": "0"})
        worker.start()
        scene.held.discard(VICTIM)
        await scene.until_ready(stage)
    scene.gate(len(scene.seen.get("died_at", [])) >= len(RESTORE), "it died at each step of a take-over")


async def in_checkpoint(scene: Scene) -> None:
    """Killed at each step of publishing a checkpoint; then all workers restore from the store alone."""
    store = scene.directory / "checkpoints"
    stage = scene.stage(
        extra={
            "REFOLD_WORKER__CHECKPOINT_URL": f"file://{store}",
            "REFOLD_WORKER__CHECKPOINT_INTERVAL_MS": str(CHECKPOINT_INTERVAL_MS),
        }
    )
    worker = stage.worker(VICTIM)
    async with stage, scene.acting(stage):
        await scene.until("the victim owns something", lambda: stage.owned(VICTIM))
        scene.held.add(VICTIM)
        await asyncio.to_thread(worker.kill)
        for point in CHECKPOINT:
            await _die_at(scene, worker, point)
        worker.start()
        await scene.until_ready(stage)
        for one in stage.fleet.workers:
            scene.held.add(one.name)
            await asyncio.to_thread(one.kill)
            await asyncio.to_thread(shutil.rmtree, one.data_path, ignore_errors=True)
        sizes = {one.name: log_size(one) for one in stage.fleet.workers}
        stage.fleet.start()
        scene.held.clear()
        await scene.until_ready(stage)
        scene.seen["restored_from_checkpoints"] = sum(
            told(one, "checkpoint_fetched", sizes[one.name]) is not None for one in stage.fleet.workers
        )
    scene.gate(
        scene.seen.get("restored_from_checkpoints", 0) > 0,
        "a worker without a disk restored from a checkpoint",
    )


async def in_drain(scene: Scene) -> None:
    """SIGTERM while a commit is on its way, then SIGKILL before the drain can end."""
    stage = scene.stage()
    worker = stage.worker(VICTIM)
    async with stage, scene.acting(stage):
        await scene.until("the victim owns something", lambda: stage.owned(VICTIM))
        scene.held.add(VICTIM)
        worker.point_path.write_text("after_produce:hold")
        await scene.until("a commit was on its way", lambda: hits(worker))
        since = log_size(worker)
        worker.signal(signal.SIGTERM)
        await scene.until("the drain began", lambda: told(worker, "worker_draining", since))
        await asyncio.to_thread(worker.kill)
        scene.seen["drain_ended"] = told(worker, "worker_stopped", since) is not None
        worker.start()
        scene.held.discard(VICTIM)
        await scene.until_ready(stage)
    scene.gate(scene.seen.get("drain_ended") is False, "it was killed while it drained")


async def rolling(scene: Scene) -> None:
    """SIGTERM and start, one worker after the other, twice. Static members keep their partitions."""
    stage = scene.stage()
    async with stage, scene.acting(stage):
        await scene.until("both workers own something", lambda: len(set(stage.owners().values())) == 2)
        log = GroupLog(stage.kafka, stage.names.group)
        try:
            before, owners = await asyncio.to_thread(log.look), stage.owners()
            restarts, longest = 0, 0.0
            for worker in stage.fleet.workers * 2:
                scene.held.add(worker.name)
                began = time.monotonic()
                worker.tell_to_stop()
                code = await scene.until("it drained", partial(_code, worker), DIE_S_MAX)
                scene.gate(code == "0", f"a worker drained with exit code 0, not {code}")
                worker.start()
                scene.held.discard(worker.name)
                await scene.until_ready(stage)
                restarts += 1
                longest = max(longest, time.monotonic() - began)
            after = await asyncio.to_thread(log.look)
            scene.seen |= {"restarts": restarts, "longest_restart_s": round(longest, 1)}
            scene.seen["rebalances"] = None if None in (before, after) else (after or 0) - (before or 0)
            scene.seen["partitions_moved"] = _moved(stage, owners)
        finally:
            await asyncio.to_thread(log.close)
    scene.gate(scene.seen.get("restarts") == 2 * stage.plan.workers, "every worker was restarted twice")


def _code(worker: WorkerProcess) -> str | None:
    """As text: 0 is an answer too."""
    code = worker.wait_end(0.1)
    return None if code is None else str(code)


def _moved(stage: Stage, before: object) -> int:
    now = stage.owners()
    return sum(now.get(partition) != owner for partition, owner in dict(before).items())  # type: ignore[call-overload]
