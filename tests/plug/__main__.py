"""Pull the plug: processes with a real RocksDB end by SIGKILL, and what comes back is compared in full.

Without --processes each round forks a process that runs the engine against the simulated Kafka and kills
itself at a named point, and another one that restores what it left. With --processes a real worker on a
real Kafka is killed from outside, at a random microsecond around a commit or a checkpoint.

exit status: 0 nothing differs and every place was met; 1 a difference, or a place that was not met in so
many rounds; 2 wrong arguments. With --sabotage a rule of the engine is broken on purpose: 1 is what
should come out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from refold.engine.sabotage import SABOTAGES

from . import inprocess, processes

ROUNDS: Final = 200
PROCESS_ROUNDS: Final = 30


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.plug",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, help=f"default {ROUNDS}, with --processes {PROCESS_ROUNDS}; deaths, that is"
    )
    parser.add_argument("--processes", action="store_true", help="real worker processes on a real Kafka")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--sabotage", choices=sorted(SABOTAGES), help="break a rule on purpose: a difference is expected"
    )
    parser.add_argument("--dir", type=Path, help="work here, and keep it (default: a temporary directory)")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on stdout; everything else to stderr"
    )
    options = parser.parse_args(argv)
    if options.rounds is None:
        options.rounds = PROCESS_ROUNDS if options.processes else ROUNDS
    if options.rounds < 1:
        parser.error("--rounds needs at least one")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    out = sys.stderr if options.json else sys.stdout

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    started = time.monotonic()
    directory = options.dir or Path(tempfile.mkdtemp(prefix="refold-plug-"))
    directory.mkdir(parents=True, exist_ok=True)
    runs = processes.run if options.processes else inprocess.run
    try:
        tally: Any = runs(
            options.rounds, seed=options.seed, directory=directory, sabotage=options.sabotage, told=say
        )
    finally:
        if options.dir is None:
            shutil.rmtree(directory, ignore_errors=True)
    places = processes.PLACES if options.processes else inprocess.NAMES
    missed = [] if tally.failures else missed_places(places, tally, options.rounds)
    report = {
        "violations": len(tally.failures),
        "rounds": tally.rounds,
        "deaths": dict(sorted(tally.deaths.items())),
        "in_flight": tally.in_flight,
        **_more(tally),
        "compared": dict(sorted(tally.compared.items())),
        "missed": missed,
        "seconds": round(time.monotonic() - started, 1),
        "failures": tally.failures[:10],
    }
    for line in tally.failures:
        say(f"FAILED    {line}")
    for line in missed:
        say(f"gate      {line}")
    say(f"{tally.rounds} rounds, {len(tally.failures)} differences, {report['seconds']} s")
    if options.json:
        print(json.dumps(report))
    return 1 if tally.failures or missed else 0


def missed_places(places: Sequence[str], tally: Any, rounds: int) -> list[str]:
    """A run that is long enough to come to every place twice must have died at each."""
    if rounds < 2 * len(places):
        return []
    return [f"nobody died at {name}" for name in places if not tally.deaths[name]]


def _more(tally: Any) -> dict[str, Any]:
    if isinstance(tally, processes.Tally):
        return {
            "lost_disks": tally.lost_disks,
            "partitions_from_checkpoints": tally.from_checkpoint,
            "delays_us": tally.delays_us,
        }
    return {
        "not_reached": tally.not_reached,
        "partitions_warm": tally.warm,
        "partitions_cold": tally.cold,
        "commits": tally.commits,
    }


if __name__ == "__main__":
    sys.exit(main())
