"""One tool call (intent accepted, started accepted, result durable), beside peers' durable units of work.

``python -m bench.tools [--json] [--count 400] [--concurrency 64] [--peers PYTHON] [--bootstrap …]``

Latency one at a time beside the median of a bare transaction (p99 at most 20 times that); rate with
``--concurrency`` sessions at once beside a LangGraph turn and a DBOS step on SQLite, run by ``--peers`` (an
interpreter with ``requirements/peers.lock``; ``make bench`` makes one in ``.venv-peers``). The peers write
to one file on this machine and survive no other machine's loss; refold's call goes through two fold rulings
on Kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import time
from typing import Any

from bench.harness import REPO, Stack, median, one_worker, percentile, report
from bench.latency import bare_transaction_ms
from refold.client import Refold
from refold.settings import Settings

PARTITIONS = 4
TENANT = "bench"


async def call_ms(rf: Refold, session: str, number: int) -> float:
    start = time.perf_counter()
    async with rf.session(session).tool(
        "refund", {"order": number}, operation_id=f"{session}/c{number}", effect="external"
    ) as call:
        call.done({"refunded": number})
    return 1000 * (time.perf_counter() - start)


async def measure(stack: Stack, options: argparse.Namespace) -> dict[str, Any]:
    bare = bare_transaction_ms(stack)
    settings = Settings(topic_prefix=stack.prefix)
    async with Refold(settings, bootstrap=stack.bootstrap, tenant=TENANT) as rf:
        await (await rf.session("warm-up").append("hello")).ruling(timeout=60)
        for number in range(options.count // 10):
            await call_ms(rf, "warm", number)
        alone = [await call_ms(rf, f"one-{number % 20}", number) for number in range(options.count)]
        todo = iter(range(options.count * 5))

        async def worker(name: str) -> None:
            for number in todo:
                await call_ms(rf, name, number)

        start = time.perf_counter()
        await asyncio.gather(*(worker(f"many-{at}") for at in range(options.concurrency)))
        rate = options.count * 5 / (time.perf_counter() - start)
    p99 = percentile(alone, 0.99)
    return {
        "benchmark": "tools",
        "bare_transaction_ms": {"p50": round(median(bare), 2), "p99": round(percentile(bare, 0.99), 2)},
        "tool_call": {
            "p50_ms": round(median(alone), 2),
            "p99_ms": round(p99, 2),
            "p99_to_bare_median": round(p99 / median(bare), 2),
            "per_second": round(rate, 1),
            "concurrency": options.concurrency,
        },
    }


def peers(python: str, concurrency: int) -> dict[str, Any]:
    done = subprocess.run(
        [python, str(REPO / "bench" / "peer_steps.py"), "--concurrency", str(concurrency)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--count", type=int, default=400, help="calls one at a time")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--peers", help="interpreter with requirements/peers.lock; without it no peers")
    parser.add_argument("--bootstrap", help="an existing cluster instead of an embedded broker")
    options = parser.parse_args()
    with one_worker(options.bootstrap, "bencht", PARTITIONS) as stack:
        result = asyncio.run(measure(stack, options))
    if options.peers:
        result["peers"] = peers(options.peers, options.concurrency)
    report(result, options.json, [f"{name}: {value}" for name, value in result.items()])


if __name__ == "__main__":
    main()
