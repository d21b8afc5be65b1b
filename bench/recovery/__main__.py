"""``python -m bench.recovery [--json] [--quick] [--parts cold,hot,tail,failover] [--bootstrap …]``

- ``cold``: everything restored from nothing, beside Kafka Streams: the same changelog bytes, the same events;
- ``hot``: a hot session of a large partition, with and without hot-first; a restart with an intact disk;
- ``tail``: restore from a checkpoint, with ten times the history;
- ``failover``: a worker is killed, with a standby and without, with an open transaction and without.

What this build does not have is said and not measured. ``--quick``: small sizes and no peer, to see that it
runs; its figures say nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.harness import Stack, broker, report
from bench.recovery import cold, failover, hot, tail

PARTS = ("cold", "hot", "tail", "failover")
PARTITIONS = 4


def measure(part: str, stack: Stack, options: argparse.Namespace) -> dict[str, Any]:
    quick = options.quick
    match part:
        case "cold":
            return cold.run(
                stack,
                count=2_000 if quick else options.events,
                sessions=200 if quick else options.events // 15,
                rounds=1 if quick else options.rounds,
                with_peer=not (quick or options.no_peer),
            )
        case "hot":
            sizes = [500] if quick else [int(size) for size in options.hot.split(",")]
            return hot.run(stack, sizes, kill=not quick)
        case "tail":
            history = 1_000 if quick else options.history
            # Three windows of messages per session before the first checkpoint: its state grows no more.
            sessions, rounds = history // 60, 1 if quick else options.rounds
            return tail.run(stack, sessions=sessions, history=history, tail=history // 20, rounds=rounds)
        case _:
            count, sessions = (500, 100) if quick else (100_000, 20_000)
            return failover.run(stack, count=count, sessions=sessions, full=not quick)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--quick", action="store_true", help="small sizes, no peer")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--no-peer", action="store_true", help="without Kafka Streams")
    parser.add_argument("--rounds", type=int, default=3, help="of restores, medians are printed")
    parser.add_argument("--events", type=int, default=300_000, help="of the cold restore; 15 per session")
    parser.add_argument("--hot", default="100000,1000000", help="sizes of the partition, ascending")
    parser.add_argument("--history", type=int, default=30_000, help="events before the first checkpoint")
    parser.add_argument("--bootstrap", help="an existing cluster instead of an embedded broker")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    result: dict[str, Any] = {"benchmark": "recovery", "cores": os.cpu_count(), "quick": options.quick}
    with broker(options.bootstrap) as (address, _), tempfile.TemporaryDirectory() as directory:
        for part in parts:
            name = f"bench-{part}{os.getpid()}"
            stack = Stack(address, name, 1 if part == "hot" else PARTITIONS, Path(directory))
            try:
                result[part] = measure(part, stack, options)
            finally:
                stack.stop()
    report(result, options.json, [f"{name}: {value}" for name, value in result.items()])


if __name__ == "__main__":
    main()
