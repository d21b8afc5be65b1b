"""Peak memory of one worker: 100 000 sessions, 5 000 of them hot.

``python -m bench.memory [--json] [--sessions 100000] [--hot 5000] [--bootstrap …]``

Every session gets one message, then the hot ones get 20 more each, then the worker is restarted without its
disk (a restore is where memory peaks). Prints the peak of
resident memory (VmHWM) of both runs and the largest state record.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench import events
from bench.harness import Stack, broker, load, peak_rss_mib, report, wait_until
from refold.core.slots import SlotMap

PARTITIONS = 4
HOT_MESSAGES = 20


def records(sessions: int, hot: int) -> Iterator[tuple[int, bytes, bytes]]:
    slots, chance = SlotMap(PARTITIONS), random.Random(5)
    number = 0
    for which in range(sessions):
        number += 1
        yield events.message(slots, "bench", f"s-{which:06d}", number, 1, chance)
    for turn in range(HOT_MESSAGES):
        for which in range(hot):
            number += 1
            yield events.message(slots, "bench", f"s-{which:06d}", number, turn + 2, chance)


def largest_state_record(stack: Stack) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap,
            "group.id": "bench-none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    topic, largest, left = f"{stack.prefix}.state", 0, set(range(PARTITIONS))
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in left])
        while left:
            for message in consumer.consume(5000, 1.0):
                if message.error() is not None:
                    left.discard(message.partition())
                elif message.value() is not None:
                    largest = max(largest, len(message.value()))
        return largest
    finally:
        consumer.close()


def run(stack: Stack, sessions: int, hot: int) -> dict[str, Any]:
    stack.create_topics()
    count = load(stack.bootstrap, f"{stack.prefix}.inbox", records(sessions, hot))
    instance = f"{stack.prefix}-w"
    worker = stack.start_worker(instance)
    wait_until(lambda: stack.committed() >= count, f"folding {count} events")
    folding = peak_rss_mib(worker.pid)
    stack.stop()
    shutil.rmtree(stack.directory / stack.prefix / instance)
    worker = stack.start_worker(instance)
    # One more event is only committed by a worker that has restored its partition.
    probes = [
        events.message(SlotMap(PARTITIONS), "probe", f"p{i}", count + i, 1, random.Random(i))
        for i in range(64)
    ]
    load(stack.bootstrap, f"{stack.prefix}.inbox", iter(probes))
    wait_until(lambda: stack.committed() >= count + len(probes), "restoring")
    restoring = peak_rss_mib(worker.pid)
    stack.stop()
    return {
        "benchmark": "memory",
        "sessions": sessions,
        "hot_sessions": hot,
        "peak_rss_mib": round(max(folding, restoring), 1),
        "peak_rss_folding_mib": round(folding, 1),
        "peak_rss_restoring_mib": round(restoring, 1),
        "largest_state_record_bytes": largest_state_record(stack),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--hot", type=int, default=5_000)
    parser.add_argument("--bootstrap", help="an existing cluster instead of an embedded broker")
    options = parser.parse_args()
    with broker(options.bootstrap) as (address, _), tempfile.TemporaryDirectory() as directory:
        stack = Stack(address, f"benchm{os.getpid()}", PARTITIONS, Path(directory))
        try:
            result = run(stack, options.sessions, options.hot)
        finally:
            stack.stop()
    report(result, options.json, [f"{name}: {value}" for name, value in result.items()])


if __name__ == "__main__":
    main()
