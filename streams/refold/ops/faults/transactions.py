"""An owner that stands still with an open transaction, and one that is much slower than its input."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

from refold.ops.faults.scenario import Scene, hits, log_size, told
from refold.ops.verify.quiesce import committed_offsets, topic_ends
from refold.ops.verify.stage import Stage
from refold.topology.logends import log_ends

VICTIM: Final = "w0"
REQUEST_S: Final = 10.0
#: The broker would end the transaction by itself after this: long after the others must be done.
TRANSACTION_TIMEOUT_MS: Final = 120_000
#: A slow worker: runs this long of each period. Its heartbeats still get through (session 10 s).
RUNS_S: Final = 0.04
STANDS_S: Final = 1.96
SLOW_S: Final = 12.0
#: What must have piled up on one of its partitions while it stands; the traffic brings 40 records a second to
#: each, and 40 ms may be enough to fold them all.
LAG_MIN: Final = 60


def _held_back(stage: Stage, partitions: tuple[int, ...]) -> int:
    """Records of the journal that an open transaction keeps from its readers, on these partitions."""
    asked = [TopicPartition(stage.names.journal, number) for number in partitions]
    try:
        high = log_ends(stage.admin, asked, REQUEST_S)
        stable = log_ends(stage.admin, asked, REQUEST_S, IsolationLevel.READ_COMMITTED)
    except KafkaException:
        return 0
    return sum(max(0, end - held) for end, held in zip(high, stable, strict=True))


async def hung(scene: Scene) -> None:
    """SIGSTOP inside of a commit whose timeout is two minutes: others must fence it, not wait for it."""
    stage = scene.stage(extra={"REFOLD_WORKER__TRANSACTION_TIMEOUT_MS": str(TRANSACTION_TIMEOUT_MS)})
    worker, other = stage.worker(VICTIM), stage.worker("w1")
    async with stage, scene.acting(stage):
        owned = await scene.until("the victim owns something", lambda: stage.owned(VICTIM))
        scene.held.add(VICTIM)
        since = log_size(other)
        worker.point_path.write_text("after_produce:stop")
        await scene.until("the owner stopped in its commit", lambda: hits(worker))
        began = time.monotonic()
        scene.seen["held_back"] = await scene.until(
            "its open transaction held readers back", lambda: _held_back(stage, owned)
        )
        await scene.until("the others own its partitions", lambda: not stage.owned(VICTIM))
        ticket = stage.watch.died(owned)
        await scene.until("the others committed there", lambda: stage.watch.recovered_ms(ticket))
        scene.seen["stopped_s"] = round(time.monotonic() - began, 1)
        scene.seen["fenced_by_others"] = told(other, "dead_worker_fenced", since) is not None
        before = log_size(worker)
        worker.signal(signal.SIGCONT)
        scene.held.discard(VICTIM)
        await scene.until(
            "it found itself fenced when it woke",
            lambda: b"fenced" in worker.log_path.read_bytes()[before:],
        )
        await scene.until_ready(stage)
    scene.gate(bool(scene.seen.get("fenced_by_others")), "the others fenced it (rule D)")


async def slow(scene: Scene) -> None:
    """One worker runs 2 % of the time: it lags, keeps its partitions, and nobody else waits for it."""
    stage = scene.stage()
    worker = stage.worker(VICTIM)
    async with stage, scene.acting(stage):
        owned = await scene.until("both workers own something", lambda: _both(stage))
        others = [number for number in range(stage.plan.partitions) if number not in owned]
        ticket = stage.watch.died(others)
        end = time.monotonic() + SLOW_S
        try:
            while True:
                worker.signal(signal.SIGSTOP)
                await asyncio.sleep(STANDS_S)
                if time.monotonic() >= end:
                    break
                worker.signal(signal.SIGCONT)
                await asyncio.sleep(RUNS_S)
            scene.seen["lag_records"] = max(_lags(stage, owned).values())
            scene.seen["lag_of_others"] = max(_lags(stage, tuple(others)).values())
        finally:
            worker.signal(signal.SIGCONT)
        scene.seen["kept_its_partitions"] = stage.owned(VICTIM) == owned
        scene.gate(stage.watch.recovered_ms(ticket) is not None, "the other worker went on meanwhile")
        scene.gate(scene.seen["lag_records"] >= LAG_MIN, f"{LAG_MIN} records piled up on a partition")


def _both(stage: Stage) -> tuple[int, ...]:
    return stage.owned(VICTIM) if len(set(stage.owners().values())) == 2 else ()


def _lags(stage: Stage, partitions: tuple[int, ...]) -> dict[int, int]:
    names, count = stage.names, stage.plan.partitions
    ends = topic_ends(stage.admin, names.inbox, count)
    done = committed_offsets(stage.offsets, names.inbox, count)
    return {number: ends[number] - max(done[number], 0) for number in partitions}
