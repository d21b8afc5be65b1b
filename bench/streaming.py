"""Token streams: provider chunk → follower's chunk, beside a bare transaction of the same run.

``python -m bench.streaming [--json] [--seconds 15] [--generations 50] [--rate 20] [--followers 200]``

- ``--generations`` recorders in one process, each ``--rate`` chunks a second (open loop), each followed by
  one follower in another process: p50/p99 from the provider's chunk to the follower's, ``strict`` and
  ``relaxed`` (strict p99 should be at most 15 times the bare transaction's median);
- bytes of the generations changelog per batch (at most 400), CPU of the recording process per batch, of
  which the loop without refold is taken off (at most 25 µs);
- ``--followers`` on one generation in one process: every one gets every chunk.

Chunks carry the monotonic clock, which processes of one machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.harness import REPO, Stack, median, one_worker, percentile, report
from bench.latency import bare_transaction_ms
from refold.client import Refold
from refold.settings import Settings

PARTITIONS = 4
TENANT = "bench"
#: Of the measured seconds, the first tenth is warm-up.
WARM_SHARE = 0.1
#: The follower process has imported, connected and joined every stream by then.
FOLLOWERS_READY_S = 60.0


async def ticking(rate: float, seconds: float) -> AsyncIterator[str]:
    """A provider: one chunk every ``1 / rate`` s whatever the reader does, each with the time it was due."""
    start, number = time.monotonic(), 0
    while number < rate * seconds:
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield f"{time.monotonic_ns()} word "
        number += 1


async def record(
    rf: Refold, names: list[str], rate: float, seconds: float, durability: str
) -> dict[str, Any]:
    """Run one generation per name; returns what recording cost."""

    async def answer(g: Any) -> None:
        # Spread over one period, as independent users would be.
        await asyncio.sleep(hash(g.session.id) % 1000 / 1000 / rate)
        async for _ in g.record(ticking(rate, seconds), format="text"):
            pass

    handles = [
        await rf.session(name).generate(answer, key="bench", durability=durability, lease=30.0)
        for name in names
    ]
    cpu, start = time.process_time(), time.monotonic()
    outcomes = [await handle.result() for handle in handles]
    used, took = time.process_time() - cpu, time.monotonic() - start
    return {
        "states": sorted({outcome.state for outcome in outcomes}),
        "chunks": sum(outcome.text.count("word") for outcome in outcomes),
        "cpu_s": used,
        "seconds": took,
    }


async def idle_cpu(count: int, rate: float, seconds: float) -> float:
    """CPU seconds of the same providers read by nobody but a loop."""

    async def read() -> None:
        async for _ in ticking(rate, seconds):
            pass

    cpu = time.process_time()
    await asyncio.gather(*(read() for _ in range(count)))
    return time.process_time() - cpu


def start_followers(stack: Stack, names: list[str], each: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.follow_child",
            stack.bootstrap,
            stack.prefix,
            TENANT,
            str(each),
            *names,
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    )


def topic_bytes(stack: Stack, topic: str) -> tuple[int, int]:
    """(records, bytes of keys and values) of a whole topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap,
            "group.id": "bench-none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    records = size = 0
    try:
        places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = {tp.partition: consumer.get_watermark_offsets(tp, timeout=10)[1] for tp in places}
        consumer.assign(places)
        quiet = time.monotonic() + 3
        while time.monotonic() < quiet and any(
            position.offset < ends[position.partition] for position in consumer.position(places)
        ):
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    records += 1
                    size += len(message.key() or b"") + len(message.value() or b"")
                    quiet = time.monotonic() + 3
    finally:
        consumer.close()
    return records, size


async def part(
    stack: Stack, rf: Refold, label: str, names: list[str], each: int, rate: float, seconds: float
) -> dict[str, Any]:
    child = start_followers(stack, names, each)
    assert child.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), FOLLOWERS_READY_S)
    if line.strip() != "ready":
        raise RuntimeError(f"the follower process said {line!r}")
    cost = await record(rf, names, rate, seconds, label)
    followed = json.loads(await asyncio.to_thread(child.stdout.readline))
    child.wait(30)
    if cost["states"] != ["finished"]:
        raise RuntimeError(f"generations ended as {cost['states']}")
    waits = followed["waits_ms"]
    waits = waits[int(len(waits) * WARM_SHARE) :]
    return {
        "chunks": cost["chunks"],
        "followed": followed["chunks"],
        "lost": cost["chunks"] * each - followed["chunks"],
        "p50_ms": round(median(waits), 2),
        "p99_ms": round(percentile(waits, 0.99), 2),
        "cpu_s": cost["cpu_s"],
    }


async def measure(stack: Stack, options: argparse.Namespace) -> dict[str, Any]:
    bare = bare_transaction_ms(stack)
    result: dict[str, Any] = {
        "benchmark": "streaming",
        "generations": options.generations,
        "rate_per_s": options.rate,
        "bare_transaction_ms": {"p50": round(median(bare), 2), "p99": round(percentile(bare, 0.99), 2)},
    }
    settings = Settings(topic_prefix=stack.prefix)
    async with Refold(settings, bootstrap=stack.bootstrap, tenant=TENANT) as rf:
        await (await rf.session("warm-up").append("hello")).ruling(timeout=60)
        idle = await idle_cpu(options.generations, options.rate, options.seconds)
        for label in ("strict", "relaxed"):
            before = topic_bytes(stack, f"{stack.prefix}.generations")
            names = [f"{label}-{number}" for number in range(options.generations)]
            found = await part(stack, rf, label, names, 1, options.rate, options.seconds)
            after = topic_bytes(stack, f"{stack.prefix}.generations")
            batches = found["chunks"]
            found["p99_to_bare_median"] = round(found["p99_ms"] / median(bare), 2)
            found["changelog_bytes_per_batch"] = round((after[1] - before[1]) / batches, 1)
            found["recorder_cpu_us_per_batch"] = round(1e6 * (found.pop("cpu_s") - idle) / batches, 1)
            result[label] = found
        many = await part(
            stack, rf, "strict", ["crowd"], options.followers, options.rate, options.seconds / 2
        )
        many.pop("cpu_s")
        result["followers"] = {"count": options.followers, **many}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each stream")
    parser.add_argument("--generations", type=int, default=50)
    parser.add_argument("--rate", type=float, default=20.0, help="chunks a second and generation")
    parser.add_argument("--followers", type=int, default=200, help="followers of one generation")
    parser.add_argument("--bootstrap", help="an existing cluster instead of an embedded broker")
    options = parser.parse_args()
    with one_worker(options.bootstrap, "benchs", PARTITIONS) as stack:
        result = asyncio.run(measure(stack, options))
    report(result, options.json, [f"{name}: {value}" for name, value in result.items()])


if __name__ == "__main__":
    main()
