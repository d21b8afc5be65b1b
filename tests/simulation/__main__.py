"""Runs of the simulator: one seed, a campaign of consecutive seeds, or every small history.

exit status: 0 all agreed, and all that had to be met was met; 1 a difference, or a campaign that did not meet
what it must (every fault of its plan, every listed situation, enough comparisons); 2 wrong arguments. With
--sabotage a rule of the engine is broken on purpose, so 1 is what should come out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from refold.engine.sabotage import SABOTAGES

from . import exhaustive, faults
from .campaign import SOMETIMES, Campaign, run_campaign
from .parameters import Parameters, Result
from .world import World

#: Lines of the trace shown with a failure.
TRACE_LINES_SHOWN: Final = 25

#: Differences told per failed seed.
FAILURES_SHOWN: Final = 3

#: A campaign from here on runs in two processes, where there are two cores: starting one costs three seeds.
PARALLEL_FROM: Final = 30


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = Parameters(seed=1)
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="first seed (default 1)")
    parser.add_argument("--ticks", type=int, default=defaults.ticks, help="scheduler steps with faults")
    parser.add_argument(
        "--faults", default="swarm", choices=("swarm", *faults.PLANS), help="default swarm: drawn per seed"
    )
    parser.add_argument("--workers", type=int, default=defaults.workers)
    parser.add_argument("--partitions", type=int, default=defaults.partitions)
    parser.add_argument("--sessions", type=int, default=defaults.sessions)
    parser.add_argument("--events", type=int, default=defaults.events)
    parser.add_argument(
        "--campaign",
        type=int,
        metavar="K",
        help="run K consecutive seeds, and fail unless every fault of the plan has struck and every listed"
        " situation was met",
    )
    parser.add_argument("--no-gates", action="store_true", help="a campaign that meets little is fine")
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="all seeds, also after one that failed (default: stop there)",
    )
    parser.add_argument(
        "--jobs", type=int, help="processes for a campaign (default: 2 for a long one); changes nothing else"
    )
    parser.add_argument(
        "--exhaustive", action="store_true", help="every small history × death × redelivery offset instead"
    )
    parser.add_argument(
        "--sabotage", choices=sorted(SABOTAGES), help="break a rule on purpose: a failure is expected"
    )
    parser.add_argument(
        "--hot-first",
        choices=("on", "off"),
        help="restores serve while they read (default: drawn in a swarm)",
    )
    parser.add_argument("--min-commits", type=int, default=1, help="fewer commits over all runs is a failure")
    parser.add_argument(
        "--trace", type=Path, help="write the trace of the (first failed, or only) run to this file"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on stdout; everything else to stderr"
    )
    options = parser.parse_args(argv)
    if options.campaign is not None and options.campaign < 1:
        parser.error("--campaign needs at least one seed")
    if options.exhaustive and options.campaign is not None:
        parser.error("--exhaustive has no seeds: leave --campaign out")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    out = sys.stderr if options.json else sys.stdout

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    if options.exhaustive:
        return _exhaustive(options, say)
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
        hot_first=None if options.hot_first is None else options.hot_first == "on",
    )
    count = options.campaign or 1
    say(f"simulation {first.banner()} campaign={count}")
    started = time.monotonic()

    def told(result: Result) -> None:
        state = "FAILED" if result.failures else "ok"
        say(
            f"seed {result.parameters.seed:>6} {state:<6} trace {result.digest[:16]} steps {result.steps:>6}"
            f" commits {result.commits:>4} events {result.events:>4} faults {sum(result.faults.values()):>3}"
        )
        if options.campaign is None:
            say(f"drawn     {result.drawn}")

    jobs = options.jobs or (min(2, os.cpu_count() or 1) if count >= PARALLEL_FROM else 1)
    campaign = run_campaign(first, count, stop_at_failure=not options.keep_going, told=told, jobs=jobs)
    for row in campaign.rows():
        say(row)
    seconds = round(time.monotonic() - started, 1)
    say(f"took      {seconds} s")
    for result in campaign.failed:
        _explain(result, options.trace, say)
    if not campaign.failed and options.trace and count == 1:
        options.trace.write_text("".join(World(first, keep_trace=True).run().trace))
    missed = _missed(options, first, campaign)
    for line in missed:
        say(f"gate      {line}")
    if options.json:
        print(json.dumps(_report(campaign, missed, seconds)))
    return 1 if campaign.failed or missed else 0


def _missed(options: argparse.Namespace, first: Parameters, campaign: Campaign) -> list[str]:
    """What a campaign that found nothing did not meet."""
    if campaign.failed:
        return []
    gates = options.campaign is not None and not options.no_gates
    plan = faults.ALL if first.plan_name == "swarm" else first.plan
    return campaign.gates(
        commits_min=options.min_commits,
        faults=plan.kinds() if gates else (),
        sometimes=SOMETIMES if gates and plan.kinds() else (),
        compared=gates,
    )


def _report(campaign: Campaign, missed: list[str], seconds: float) -> dict[str, Any]:
    return {
        "violations": sum(len(result.failures) for result in campaign.failed),
        "seeds": campaign.runs,
        "sometimes": {name: campaign.happened[name] for name in SOMETIMES},
        "faults": {name: campaign.struck[name] for name in faults.ALL.kinds()},
        "commits": campaign.commits,
        "events": campaign.events,
        "compared": dict(sorted(campaign.compared.items())),
        "virtual_seconds": campaign.virtual_ms // 1000,
        "seconds": seconds,
        "missed": missed,
        "failed_seeds": [result.parameters.seed for result in campaign.failed],
        "failures": [
            {
                "seed": result.parameters.seed,
                "found": result.failures[:FAILURES_SHOWN],
                "reproduce": result.parameters.command(),
            }
            for result in campaign.failed
        ],
        "digest": campaign.digest,
    }


def _exhaustive(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    started = time.monotonic()
    tally = exhaustive.run_all(sabotage=options.sabotage)
    seconds = round(time.monotonic() - started, 1)
    say(
        f"exhaustive {tally.cases} cases of up to {exhaustive.EVENTS_MAX} events,"
        f" {tally.events} accepted events, {seconds} s"
    )
    say("deaths    " + ", ".join(f"{place} {count}" for place, count in tally.deaths.items()))
    say("second    " + ", ".join(f"{place} {count}" for place, count in tally.second.items()))
    say(
        "again     " + ", ".join(f"from {offset}: {count}" for offset, count in sorted(tally.offsets.items()))
    )
    for case, failures in tally.failed:
        for line in failures[:FAILURES_SHOWN]:
            say(f"FAILED    {case}: {line}")
    if options.json:
        report = {
            "violations": sum(len(failures) for _, failures in tally.failed),
            "cases": tally.cases,
            "events": tally.events,
            "deaths": tally.deaths,
            "second_deaths": tally.second,
            "redelivered_from": dict(sorted(tally.offsets.items())),
            "seconds": seconds,
            "failures": [
                {"case": str(case), "found": failures[:FAILURES_SHOWN]} for case, failures in tally.failed
            ],
        }
        print(json.dumps(report))
    return 1 if tally.failed else 0


def _explain(result: Result, trace: Path | None, say: Callable[[str], None]) -> None:
    """Once more, with the trace kept: the same seed is the same run."""
    shown = World(result.parameters, keep_trace=True).run()
    say(f"\ndrawn     {shown.drawn}")
    for line in shown.failures:
        say(f"FAILED    {line}")
    for line in shown.workers:
        say(f"worker    {line}")
    say(f"last {TRACE_LINES_SHOWN} lines of the trace (virtual µs, who, what):")
    say("".join(shown.trace[-TRACE_LINES_SHOWN:]).rstrip("\n"))
    if trace is not None:
        trace.write_text("".join(shown.trace))
        say(f"trace     {trace}")
    say(f"reproduce with: {result.parameters.command()}")


if __name__ == "__main__":
    sys.exit(main())
