"""Saturated throughput of one worker, full fold, beside stock Faust doing the same fold.

``python -m bench.throughput [--json] [--rounds 3] [--events 60000] [--bootstrap …]``

Both read the same inbox of messages: decode, rule, fold, one journal record per event, state, offsets.
refold: journal, dedup and rejected path on, exactly once; timed from the first to the last committed inbox
offset as the broker reports it. Stock Faust: at least once, timed from its first to its last folded event
(which favours it: neither its producer's flush nor its commit counts). Rounds alternate; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import events
from bench.harness import (
    REPO,
    STEP_SECONDS_MAX,
    Stack,
    broker,
    cpu_seconds,
    load,
    median,
    report,
    wait_until,
)
from bench.stages import stage_costs
from refold.broker import EmbeddedBroker

PARTITIONS = 4
SESSIONS = 3_000
#: Stock Faust folds about a tenth as fast: with fewer events its round takes as long as ours.
PEER_SHARE = 4


def refold_round(stack: Stack, count: int, embedded: EmbeddedBroker | None) -> dict[str, float]:
    """Restart a worker on a full inbox and time it until everything is committed."""
    stack.create_topics()
    load(stack.bootstrap, f"{stack.prefix}.inbox", events.messages(count, SESSIONS, PARTITIONS))
    broker_cpu = embedded.cpu_seconds() if embedded else 0.0
    worker = stack.start_worker(f"{stack.prefix}-w")
    wait_until(lambda: _alive(worker) and stack.committed() > 0, "the first commit")
    start, first, cpu = time.perf_counter(), stack.committed(), cpu_seconds(worker.pid)
    wait_until(lambda: _alive(worker) and stack.committed() >= count, f"committing {count} events")
    seconds = time.perf_counter() - start
    folded = count - first
    result = {
        "events_per_second": folded / seconds,
        "cpu_us_per_event": 1e6 * (cpu_seconds(worker.pid) - cpu) / folded,
        "peak_seconds": seconds,
    }
    if embedded:
        result["broker_cpu_us_per_event"] = 1e6 * (embedded.cpu_seconds() - broker_cpu) / count
    result["transactions_per_second"] = _transactions(stack) / seconds
    stack.stop()
    return result


def _alive(worker: subprocess.Popen[bytes]) -> bool:
    if worker.poll() is not None:
        raise RuntimeError(f"the worker ended with exit code {worker.returncode}; see its log")
    return True


def _transactions(stack: Stack) -> int:
    """Markers on partition 0 of the journal: one per transaction that wrote to it."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap,
            "group.id": "bench-none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    topic = f"{stack.prefix}.journal"
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = 0
        while True:
            batch = consumer.consume(5000, 5.0)
            records += sum(message.error() is None for message in batch)
            if not batch or any(message.error() is not None for message in batch):
                return end - records
    finally:
        consumer.close()


def faust_round(stack: Stack, count: int) -> dict[str, float]:
    """The peer on its own copy of the inbox."""
    inbox = f"{stack.prefix}.faust-inbox"
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": stack.bootstrap})
    app = f"{stack.prefix}-faust"
    for future in admin.create_topics(
        [NewTopic(inbox, PARTITIONS, 1), NewTopic(f"{app}-journal", PARTITIONS, 1)]
    ).values():
        future.result()
    load(stack.bootstrap, inbox, events.messages(count, SESSIONS, PARTITIONS))
    environment = {
        **os.environ,
        "BENCH_BOOTSTRAP": stack.bootstrap,
        "BENCH_INBOX": inbox,
        "BENCH_APP": app,
        "BENCH_EVENTS": str(count),
        "BENCH_PARTITIONS": str(PARTITIONS),
        "BENCH_DATADIR": str(stack.directory / app),
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.stock_faust", "worker", "-l", "error", "--without-web"],
        env=environment,
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"events"'):
            got = json.loads(line)
            return {
                "events_per_second": got["events"] / got["seconds"],
                "cpu_us_per_event": 1e6 * got["cpu_seconds"] / got["events"],
            }
    raise RuntimeError(f"stock Faust printed no result; exit {done.returncode}: {done.stderr[-2000:]}")


def run(rounds: int, count: int, bootstrap: str | None) -> dict[str, Any]:
    ours: list[dict[str, float]] = []
    peers: list[dict[str, float]] = []
    with broker(bootstrap) as (address, embedded), tempfile.TemporaryDirectory() as directory:
        for number in range(rounds):
            for which in ("refold", "faust") if number % 2 == 0 else ("faust", "refold"):
                stack = Stack(address, f"bench{os.getpid()}-{number}{which[0]}", PARTITIONS, Path(directory))
                try:
                    if which == "refold":
                        ours.append(refold_round(stack, count, embedded))
                        print(f"round {number + 1} refold: {ours[-1]}", file=sys.stderr)
                    else:
                        peers.append(faust_round(stack, count // PEER_SHARE))
                        print(f"round {number + 1} stock Faust: {peers[-1]}", file=sys.stderr)
                finally:
                    stack.stop()
    middle = {name: round(median([r[name] for r in ours]), 2) for name in ours[0]}
    peer = {name: round(median([r[name] for r in peers]), 2) for name in peers[0]}
    return {
        "benchmark": "throughput",
        "rounds": rounds,
        "events": count,
        "sessions": SESSIONS,
        "refold": middle,
        "stock_faust": peer,
        "ratio_to_stock_faust": round(middle["events_per_second"] / peer["events_per_second"], 2),
        "stage_us_per_event": stage_costs(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=120_000)
    parser.add_argument("--bootstrap", help="an existing cluster instead of an embedded broker")
    options = parser.parse_args()
    result = run(options.rounds, options.events, options.bootstrap)
    report(
        result,
        options.json,
        [
            *(
                f"{name:<12}{result[key]['events_per_second']:>10.0f} events/s"
                f"  {result[key]['cpu_us_per_event']:.1f} us CPU per event"
                for name, key in (("refold", "refold"), ("stock Faust", "stock_faust"))
            ),
            f"ratio        {result['ratio_to_stock_faust']:>10.1f}",
            *(f"  {stage:<16}{cost:>8.2f} us" for stage, cost in result["stage_us_per_event"].items()),
        ],
    )


if __name__ == "__main__":
    main()
