"""``python -m tests.simulation --seed N --ticks T --faults swarm [--campaign K]``: exit 0 when all agreed, 1
if not."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from refold.engine.sabotage import SABOTAGES

from . import faults
from .campaign import ALL_FAULTS, SOMETIMES, run_campaign
from .parameters import Parameters, Result
from .world import World

#: Lines of the trace shown with a failure.
TRACE_LINES_SHOWN = 25


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = Parameters(seed=1)
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="first seed (default 1)")
    parser.add_argument("--ticks", type=int, default=defaults.ticks, help="scheduler steps with faults")
    parser.add_argument(
        "--faults", default="swarm", choices=("swarm", *faults.PLANS), help="default swarm: drawn per seed"
    )
    parser.add_argument("--workers", type=int, default=defaults.workers)
    parser.add_argument("--partitions", type=int, default=defaults.partitions)
    parser.add_argument("--sessions", type=int, default=defaults.sessions)
    parser.add_argument("--events", type=int, default=defaults.events)
    parser.add_argument("--campaign", type=int, default=1, metavar="K", help="run K consecutive seeds")
    parser.add_argument(
        "--sabotage", choices=sorted(SABOTAGES), help="break a rule on purpose: a failure is expected"
    )
    parser.add_argument("--min-commits", type=int, default=1, help="fewer commits over all runs is a failure")
    parser.add_argument("--require-faults", action="store_true", help="every kind of fault must have struck")
    parser.add_argument(
        "--require-sometimes", action="store_true", help="every listed situation must have been reached"
    )
    parser.add_argument(
        "--trace", type=Path, help="write the trace of the (first failed, or only) run to this file"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    first = Parameters(
        seed=options.seed,
        ticks=options.ticks,
        workers=options.workers,
        partitions=options.partitions,
        sessions=options.sessions,
        events=options.events,
        plan=faults.PLANS.get(options.faults, faults.NONE),
        plan_name=options.faults,
        sabotage=options.sabotage,
    )
    print(f"simulation {first.banner()} campaign={options.campaign}", flush=True)
    started = time.monotonic()

    def told(result: Result) -> None:
        state = "FAILED" if result.failures else "ok"
        print(
            f"seed {result.parameters.seed:>6} {state:<6} trace {result.digest[:16]} steps {result.steps:>6}"
            f" commits {result.commits:>4} events {result.events:>4} faults {sum(result.faults.values()):>3}",
            flush=True,
        )
        if options.campaign == 1:
            print(f"drawn     {result.drawn}", flush=True)

    campaign = run_campaign(first, options.campaign, told=told)
    for row in campaign.rows():
        print(row)
    print(f"took      {time.monotonic() - started:.1f} s")
    for result in campaign.failed:
        _explain(result, options.trace)
    if not campaign.failed and options.trace and options.campaign == 1:
        options.trace.write_text("".join(World(first, keep_trace=True).run().trace))
    missed = campaign.gates(
        commits_min=options.min_commits,
        faults=ALL_FAULTS if options.require_faults else (),
        sometimes=SOMETIMES if options.require_sometimes else (),
    )
    if options.campaign == 1:
        # Averages say nothing about one run.
        missed = [line for line in missed if "compared in" not in line]
    if not campaign.failed:
        for line in missed:
            print(f"gate      {line}")
    return 1 if campaign.failed or missed else 0


def _explain(result: Result, trace: Path | None) -> None:
    """Once more, with the trace kept: the same seed is the same run."""
    shown = World(result.parameters, keep_trace=True).run()
    print(f"\ndrawn     {shown.drawn}")
    for line in shown.failures:
        print(f"FAILED    {line}")
    for line in shown.workers:
        print(f"worker    {line}")
    print(f"last {TRACE_LINES_SHOWN} lines of the trace (virtual µs, who, what):")
    print("".join(shown.trace[-TRACE_LINES_SHOWN:]), end="")
    if trace is not None:
        trace.write_text("".join(shown.trace))
        print(f"trace     {trace}")
    print(f"reproduce with: {result.parameters.command()}")


if __name__ == "__main__":
    sys.exit(main())
