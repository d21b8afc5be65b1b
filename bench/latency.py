"""Latency of the paths a user waits for, each beside a yardstick of the same run.

``python -m bench.latency [--json] [--seconds 10] [--rounds 3] [--partitions 4] [--history 1000000]``

The first two are measured in ``--rounds`` alternating rounds, each beside the yardstick of its own round;
what is printed is the median over the rounds, and every round.

- append → ruling at 1 000 events/s through the SDK, beside the median of a bare two-record transaction on the
  same broker (p99 should be at most 10 times that), with the share of all processors that was busy meanwhile:
  near 1 it is the machine that events queue for;
- ``context()`` at 200 requests/s (p99 at most 5 times its median);
- 50 events of one session out of 10 000 on its partition, and out of ``--history`` (at most twice
  the former).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from typing import Any

from confluent_kafka import Producer

from bench import events
from bench.harness import (
    Stack,
    load,
    median,
    one_worker,
    percentile,
    processor_ticks,
    report,
    wait_until,
)
from refold.client import Refold
from refold.core.slots import SlotMap
from refold.settings import Settings

PARTITIONS = 4
RATE_PER_S = 1_000
SESSIONS = 500
CONTEXT_RATE_PER_S = 200
BARE_ROUNDS = 300
HISTORY_EVENTS = 50
HISTORY_SMALL = 10_000
HISTORY_ROUNDS = 7


def bare_transaction_ms(stack: Stack) -> list[float]:
    """begin, two records, commit: what any transactional write costs on this broker."""
    producer = Producer(
        {
            "bootstrap.servers": stack.bootstrap,
            "transactional.id": f"{stack.prefix}-bare",
            "linger.ms": 0,
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 1000,
        }
    )
    producer.init_transactions()
    taken: list[float] = []
    for number in range(BARE_ROUNDS):
        start = time.perf_counter()
        producer.begin_transaction()
        producer.produce(f"{stack.prefix}.rejected", b"x" * 500, key=b"a", partition=0)
        producer.produce(f"{stack.prefix}.rejected", b"x" * 500, key=b"b", partition=stack.partitions - 1)
        producer.commit_transaction()
        if number >= BARE_ROUNDS // 10:
            taken.append(1000 * (time.perf_counter() - start))
    return taken


async def ruling_ms(rf: Refold, seconds: float) -> list[float]:
    """Append at a fixed rate; each append's time from the call to its ruling, in ms."""
    taken: list[float] = []

    async def one(number: int) -> None:
        start = time.perf_counter()
        receipt = await rf.session(f"live-{number % SESSIONS}").append(f"message {number}")
        ruling = await receipt.ruling()
        if not ruling.accepted:
            raise RuntimeError(f"message {number}: {ruling}")
        taken.append(1000 * (time.perf_counter() - start))

    await _paced(RATE_PER_S, seconds, one)
    return taken[len(taken) // 10 :]


async def context_ms(rf: Refold, seconds: float) -> list[float]:
    taken: list[float] = []

    async def one(number: int) -> None:
        start = time.perf_counter()
        await rf.session(f"live-{number % SESSIONS}").context()
        taken.append(1000 * (time.perf_counter() - start))

    await _paced(CONTEXT_RATE_PER_S, seconds, one)
    return taken[len(taken) // 10 :]


async def _paced(rate: int, seconds: float, one: Any) -> None:
    """Start ``one(i)`` at a fixed rate whatever the answers do (an open loop: waiting hides nothing)."""
    start, number, total = time.perf_counter(), 0, int(rate * seconds)
    async with asyncio.TaskGroup() as group:
        while number < total:
            due = min(total, int((time.perf_counter() - start) * rate))
            while number < due:
                group.create_task(one(number))
                number += 1
            await asyncio.sleep(0.001)


async def history_ms(rf: Refold, sessions: dict[str, int]) -> dict[str, float]:
    """Median time to read HISTORY_EVENTS events of each session, ms, by the size of its partition: all of
    them in turn, so that what the machine does besides meets each."""
    taken: dict[str, list[float]] = {str(total): [] for total in sessions.values()}
    for _ in range(HISTORY_ROUNDS):
        for session, total in sessions.items():
            start = time.perf_counter()
            got = [event async for event in rf.session(session, tenant="bench").events(limit=HISTORY_EVENTS)]
            if len(got) != HISTORY_EVENTS:
                raise RuntimeError(f"{session}: {len(got)} events instead of {HISTORY_EVENTS}")
            taken[str(total)].append(1000 * (time.perf_counter() - start))
    return {total: round(median(each), 2) for total, each in taken.items()}


def thin_session(name: str, total: int, partitions: int) -> Any:
    """``total`` messages on one partition, HISTORY_EVENTS of them of session ``name``, evenly spread."""
    slots, chance = SlotMap(partitions), random.Random(3)
    home = slots.partition(f"bench/{name}".encode())
    others = [
        s for s in (f"{name}-other-{i}" for i in range(400)) if slots.partition(f"bench/{s}".encode()) == home
    ]
    counters: dict[str, int] = {}
    every = total // HISTORY_EVENTS
    for number in range(total):
        session = name if number % every == 0 and number // every < HISTORY_EVENTS else chance.choice(others)
        counters[session] = counters.get(session, 0) + 1
        yield events.message(slots, "bench", session, number, counters[session], chance)


async def one_round(stack: Stack, rf: Refold, seconds: float) -> dict[str, float]:
    """The yardstick, then both paths, in ms."""
    bare = await asyncio.to_thread(bare_transaction_ms, stack)
    before = processor_ticks()
    rulings = await ruling_ms(rf, seconds)
    busy, idle = (now - then for now, then in zip(processor_ticks(), before, strict=True))
    contexts = await context_ms(rf, seconds)
    return {
        "bare_p50": median(bare),
        "bare_p99": percentile(bare, 0.99),
        "ruling_p50": median(rulings),
        "ruling_p99": percentile(rulings, 0.99),
        "ruling_p99_to_bare_median": percentile(rulings, 0.99) / median(bare),
        "busy": busy / (busy + idle),
        "context_p50": median(contexts),
        "context_p99": percentile(contexts, 0.99),
        "context_p99_to_median": percentile(contexts, 0.99) / median(contexts),
    }


async def measure(stack: Stack, seconds: float, rounds: int, history: int) -> dict[str, Any]:
    settings = Settings(topic_prefix=stack.prefix)
    result: dict[str, Any] = {"benchmark": "latency"}
    async with Refold(settings, bootstrap=stack.bootstrap, tenant="bench-live") as rf:
        await (await rf.session("warm-up").append("hello")).ruling(timeout=60)
        # As a service does after its start: a full collection over everything imported stops the process for
        # 50 ms and more, which is neither the worker's time nor the SDK's.
        gc.collect()
        gc.freeze()
        taken = [await one_round(stack, rf, seconds) for _ in range(rounds)]
        middle = {name: round(median([one[name] for one in taken]), 2) for name in taken[0]}
        result["bare_transaction_ms"] = {"p50": middle["bare_p50"], "p99": middle["bare_p99"]}
        result["append_to_ruling_ms"] = {
            "rate_per_s": RATE_PER_S,
            "p50": middle["ruling_p50"],
            "p99": middle["ruling_p99"],
            "p99_to_bare_median": middle["ruling_p99_to_bare_median"],
            "partitions": stack.partitions,
            "processors_busy": middle["busy"],
        }
        result["context_ms"] = {
            "rate_per_s": CONTEXT_RATE_PER_S,
            "p50": middle["context_p50"],
            "p99": middle["context_p99"],
            "p99_to_median": middle["context_p99_to_median"],
        }
        result["rounds"] = [{name: round(value, 2) for name, value in one.items()} for one in taken]
        sessions = {"thin-small": HISTORY_SMALL, "thin-large": history}
        sessions = {name: total for name, total in sessions.items() if total}
        for name, total in sessions.items():
            load(stack.bootstrap, f"{stack.prefix}.inbox", thin_session(name, total, stack.partitions))
            wait_until(lambda: stack.committed() >= stack.inbox_end(), f"folding {total} events", 600)
        reads = await history_ms(rf, sessions)
        result["history_50_events_ms"] = reads
        if len(reads) > 1:
            result["history_ratio"] = round(reads[str(history)] / reads[str(HISTORY_SMALL)], 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each paced part of a round")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="the worker's, all of them")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds; medians over them count")
    parser.add_argument(
        "--history", type=int, default=1_000_000, help="events on the large partition; 0 skips"
    )
    parser.add_argument("--bootstrap", help="an existing cluster instead of an embedded broker")
    options = parser.parse_args()
    with one_worker(options.bootstrap, "benchl", options.partitions) as stack:
        result = asyncio.run(measure(stack, options.seconds, options.rounds, options.history))
    report(result, options.json, [f"{name}: {value}" for name, value in result.items()])


if __name__ == "__main__":
    main()
