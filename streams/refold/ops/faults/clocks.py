"""Jumps of one worker's wall clock: 400 days ahead, then three hours behind, at its start and at work.

The clock is the one that Python code sees (``time.time``, ``time.time_ns``): a ``sitecustomize`` module,
which the worker's interpreter finds, adds an offset from a file. Not covered: the clocks inside of
librdkafka and RocksDB, which decide nothing of ours; the monotonic clock, which does not jump; those of
brokers and producers, because topics carry the broker's append time. (libfaketime will not do: it fakes the
time by which librdkafka computes the end of a timed wait, but not the wait, which lasts as long as the
jump; measured.)
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from refold.ops.faults.scenario import Scene, log_size, told

#: Beyond any `delete.retention.ms` of ours: a local copy that old may have missed deletions (rule Z).
AHEAD_DAYS: Final = 400
BEHIND_HOURS: Final = 3
STOP_S_MAX: Final = 25.0
VICTIM: Final = "w0"

#: The environment variable that names the file with the offset, in seconds.
OFFSET_FILE: Final = "VERIFY_CLOCK_OFFSET_FILE"

#: A partial write cannot be read: the file is replaced, never changed.
SITECUSTOMIZE: Final = f'''
import os, time

_time, _time_ns, _path = time.time, time.time_ns, os.environ["{OFFSET_FILE}"]

def _offset():
    with open(_path) as file:
        return int(file.read())

time.time = lambda: _time() + _offset()
time.time_ns = lambda: _time_ns() + _offset() * 1_000_000_000
'''


async def jump(scene: Scene) -> None:
    """Each start finds a local copy of a time that cannot be: 400 days old, then of the far future."""
    stage = scene.stage()
    worker = stage.worker(VICTIM)
    path, offset = scene.directory / "python", scene.directory / "offset"
    path.mkdir()
    (path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    there = os.environ.get("PYTHONPATH")
    worker.configure(
        {
            "PYTHONPATH": os.pathsep.join([str(path), there] if there else [str(path)]),
            OFFSET_FILE: str(offset),
        }
    )

    def now_off_by(seconds: int) -> None:
        partial = offset.with_suffix(".new")
        partial.write_text(str(seconds))
        partial.replace(offset)

    async def committed() -> tuple[int, ...]:
        owned: tuple[int, ...] = await scene.until("the victim owns something", lambda: stage.owned(VICTIM))
        ticket = stage.watch.died(owned)
        await scene.until("its partitions go on", lambda: stage.watch.recovered_ms(ticket))
        return owned

    async def start_off_by(seconds: int) -> Any:
        """Stop in order, let the others commit for its partitions, start under the new time; why its copy was
        set aside."""
        owned = await committed()
        scene.held.add(VICTIM)
        worker.tell_to_stop()
        await asyncio.to_thread(worker.wait_stopped, STOP_S_MAX)
        await scene.until("the others own its partitions", lambda: not stage.owned(VICTIM))
        ticket = stage.watch.died(owned)
        await scene.until("the others committed there", lambda: stage.watch.recovered_ms(ticket))
        now_off_by(seconds)
        since = log_size(worker)
        worker.start()
        scene.held.discard(VICTIM)
        row = await scene.until(
            "its copy was set aside", lambda: told(worker, "local_store_set_aside", since)
        )
        return row["reason"]

    now_off_by(0)
    async with stage, scene.acting(stage):
        scene.seen["at_a_start_400_days_ahead"] = await start_off_by(AHEAD_DAYS * 86_400)
        scene.seen["at_a_start_back_again"] = await start_off_by(-BEHIND_HOURS * 3_600)
        for seconds in (AHEAD_DAYS * 86_400, -BEHIND_HOURS * 3_600, 0):
            # While it works: nothing is to be seen of it but that it goes on.
            await committed()
            now_off_by(seconds)
            await committed()
            scene.seen["jumps_at_work"] = scene.seen.get("jumps_at_work", 0) + 1
        await scene.until_ready(stage)
    starts = ("at_a_start_400_days_ahead", "at_a_start_back_again")
    too_old = all(scene.seen.get(name) == "too_old" for name in starts)
    scene.gate(too_old, "its copy counted as too old (rule Z)")
    scene.gate(scene.seen.get("jumps_at_work") == 3, "it went on after each of three jumps")
