"""Jumps of one worker's wall clock, by libfaketime: days ahead, then behind.

Covered is the wall clock of the whole worker process (Python, librdkafka, RocksDB). Not covered: the
monotonic clock, which does not jump; the clocks of brokers and producers, because topics carry the broker's
append time.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Final

from refold.ops.faults.scenario import Scene, log_rows, log_size, told
from refold.ops.fleet import WorkerProcess

LIBRARIES: Final = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
)
#: Beyond any `delete.retention.ms` of ours: a local copy that old may have missed deletions (rule Z).
AHEAD_DAYS: Final = 400
BEHIND_HOURS: Final = 3
#: The worker's clock must be seen this far off.
OFF_S_MIN: Final = 3_600.0
VICTIM: Final = "w0"


def _library() -> Path | None:
    return next((path for text in LIBRARIES for path in sorted(Path("/").glob(text[1:]))), None)


def unavailable() -> str | None:
    return None if _library() else "needs libfaketime (Debian: apt install libfaketime)"


def _off_s(worker: WorkerProcess, since: int) -> float | None:
    """How far the clock of the worker's last log line is from ours."""
    stamps = [row["timestamp"] for row in log_rows(worker, since) if "timestamp" in row]
    if not stamps:
        return None
    return (dt.datetime.fromisoformat(stamps[-1]) - dt.datetime.now(dt.UTC)).total_seconds()


async def jump(scene: Scene) -> None:
    """Ahead while it works, a kill, ahead at its start; then back, behind the true time, and a kill again."""
    stage = scene.stage()
    worker = stage.worker(VICTIM)
    offset = scene.directory / "offset"
    offset.write_text("+0\n")
    worker.configure(
        {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    )

    async def to(text: str) -> float:
        """Jump, commit under the new time, be killed, start; how far the clock was off."""
        partial = offset.with_suffix(".new")
        partial.write_text(text + "\n")
        partial.replace(offset)
        owned = await scene.until(
            "the worker with the false clock owns something", lambda: stage.owned(VICTIM)
        )
        ticket = stage.watch.died(owned)
        await scene.until("it committed under the new time", lambda: stage.watch.recovered_ms(ticket))
        scene.held.add(VICTIM)
        since = log_size(worker)
        await asyncio.to_thread(worker.kill)
        worker.start()
        scene.held.discard(VICTIM)
        await scene.until("it served again", lambda: told(worker, "partition_live", since))
        return _off_s(worker, since) or 0.0

    async with stage, scene.acting(stage):
        scene.seen["ahead_s"] = round(await to(f"+{AHEAD_DAYS}d"))
        aside = told(worker, "local_store_set_aside")
        scene.seen["set_aside"] = None if aside is None else aside.get("reason")
        scene.seen["behind_s"] = round(await to(f"-{BEHIND_HOURS}h"))
        await scene.until_ready(stage)
    scene.gate(scene.seen.get("ahead_s", 0) > OFF_S_MIN, "the worker's clock was ahead")
    scene.gate(scene.seen.get("behind_s", 0) < -OFF_S_MIN, "the worker's clock was behind")
