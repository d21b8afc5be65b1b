"""Run the test suites one after the other, each within its named budget; used by `make test` and `.ci/run`.

A suite is a selection of test files by pattern. Files that no pattern claims belong to ``unit``, so a new
test file is never left out. Each suite runs in its own pytest process (a hung suite cannot take the others
with it) and leaves a JUnit file from which the counts are read. A suite fails when a test fails, when it
selects no test, or when it takes longer than its budget; it is stopped a quarter beyond it.

Three lanes run side by side, because suites with a broker wait as much as they compute. The first has the
suites in which workers die by their sessions' clocks, one after the other. The two others share what is
``aside``, each taking the next suite when it is free, at a lower priority, so that they do not disturb those
clocks; the first joins them when its own are done. Output from aside is printed when each suite ends.
``--only`` with one suite is that suite alone.

Tests of real processes race the machine, and the other lanes are part of it. What failed runs once more when
all lanes are over, alone; what passes then counts as passed and is listed by name as *unsteady*, with its
first failure printed above: a fault to be looked into that a busy host must not turn into a red run. More
failures than SECOND_TRIES_MAX are no unlucky race and stay failures; so do lint and a suite over its budget.

Output: a time table, failures and unsteady tests by name, and as the last line
``N passed, N failed[, N skipped]``. ``--json`` prints one object after it, as the last line of stdout.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from length import LONG

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".refold" / "tests"

#: A suite over its budget fails; it is only killed at this multiple, so that its own output still appears.
HARD_STOP_FACTOR = 1.25

#: A budget is what a suite takes alone on a quiet 2-core machine, times this: other lanes take their share of
#: the machine (`unit` took 2.7 times as long beside them), and a host may be half as fast. What takes longer
#: is not slow, but other than it was.
BUDGET_FACTOR = 5
#: With all random cases.
LONG_FACTOR = 3
#: An import that has to be compiled first is no change of a suite.
BUDGET_S_MIN = 60

#: What runs now, to be stopped with us.
RUNNING: set[subprocess.Popen[bytes]] = set()
PRINTING = threading.Lock()


def budget(alone_s: int) -> int:
    return max(BUDGET_S_MIN, BUDGET_FACTOR * alone_s) * (LONG_FACTOR if LONG else 1)


@dataclass(frozen=True)
class Suite:
    """``patterns`` match paths relative to ``tests/``; earlier suites claim files first."""

    name: str
    budget_s: int
    patterns: tuple[str, ...]
    covers: str
    #: Taken by whichever lane is free, and not by the first lane's turn.
    aside: bool = False


#: The number of each: what it takes alone, in seconds. A test keeps the whole within TOTAL_BUDGET_S. Of those
#: aside the cheap and telling first, then what takes long, the short last, so that the lanes end together.
SUITES: tuple[Suite, ...] = (
    Suite(
        "crash", budget(150), ("engine/*crash*", "engine/*fault*"), "commit points x deaths, planted faults"
    ),
    Suite("plug", budget(30), ("plug/*",), "SIGKILL on a real RocksDB, in process and on real workers"),
    Suite("lint", budget(45), (), "make lint: ruff, mypy --strict, import contracts, tidiness", aside=True),
    Suite("unit", budget(85), (), "what no other suite claims: core, settings, ops and demo", aside=True),
    Suite(
        "wire", budget(30), ("wire/*", "schemas/*"), "schemas, framing, golden bytes, registry", aside=True
    ),
    Suite(
        "store",
        budget(35),
        (
            "engine/test_plain*",
            "engine/test_warming_*",
            "engine/test_bulk*",
            "engine/test_store*",
            "engine/test_validation.py",
            "engine/test_local_copies.py",
            "engine/test_checkpoint_arriving.py",
        ),
        "folds in C and Python, restores, files and copies, without a broker",
        aside=True,
    ),
    Suite(
        "effects",
        budget(170),
        ("ops/test_effects_runs*", "ops/test_runs_verify*"),
        "agents killed at every boundary and in their runs, sabotages",
        aside=True,
    ),
    Suite(
        "broker",
        budget(105),
        ("broker/*",),
        "the embedded broker: start, kill, offline, refusals",
        aside=True,
    ),
    Suite(
        "simulation", budget(230), ("simulation/*",), "the simulator, batchings, interleavings", aside=True
    ),
    Suite(
        "generations",
        budget(115),
        ("client/test_generations*",),
        "streamed answers, their recorders killed",
        aside=True,
    ),
    Suite(
        "tools", budget(85), ("client/test_tools*",), "tool calls: two runners, deaths, reviews", aside=True
    ),
    Suite(
        "agents",
        budget(40),
        ("client/test_agents*",),
        "durable agents: killed at every point, drained",
        aside=True,
    ),
    Suite("client", budget(125), ("client/*",), "the rest of the SDK on a real Kafka", aside=True),
    Suite(
        "checkpoints",
        budget(25),
        ("engine/test_checkpoint_rules*", "engine/test_checkpoint_s*", "cli/test_checkpoint*"),
        "copies of a RocksDB, local and on S3; their publisher killed",
        aside=True,
    ),
    Suite(
        "deploy",
        budget(100),
        ("topology/*", "deploy/*", "cli/*"),
        "topology, deployment files, CLI",
        aside=True,
    ),
    Suite(
        "demo", budget(75), ("demo/*",), "the demo's opening, and its conversations, shortened", aside=True
    ),
    Suite("formats", budget(75), ("formats/*",), "importers, exporters, streams, recorded sets", aside=True),
    Suite(
        "guides",
        budget(50),
        ("docs/*",),
        "the guides' programs as printed, killed where they say",
        aside=True,
    ),
    Suite(
        "integrations",
        budget(45),
        ("integrations/*",),
        "agent frameworks' own interfaces and runners",
        aside=True,
    ),
    Suite(
        "producer",
        budget(190),
        ("engine/test_producer*",),
        "commits' producer, its connections cut",
        aside=True,
    ),
    Suite("badinput", budget(35), ("badinput/*",), "every bad record, foreign partitioners", aside=True),
    Suite("bench", budget(25), ("engine/test_bench*",), "that the recovery benchmark runs", aside=True),
    Suite(
        "readme",
        budget(25),
        ("readme/*",),
        "the programs of the README as printed, links of all pages",
        aside=True,
    ),
    Suite("packaging", budget(20), ("packaging/*",), "the wheel in an empty environment", aside=True),
    Suite("engine", budget(230), ("engine/*", "agents/*"), "the worker on a real Kafka"),
    Suite(
        "chaos",
        budget(190),
        ("ops/verify/*",),
        "short runs of chaos, storm and usage, their sabotages, the oracle",
    ),
)

#: The ceiling of `.ci/run`: 25 minutes. Lanes run side by side and no run has all suites at their budgets, so
#: it is no sum of budgets: what the suites of a lane take alone, on a host that is SLOWER, has to fit.
TOTAL_BUDGET_S = 1500
SLOWER = 1.5

#: The first one, and those that share what is aside.
LANES = 3

#: Of what runs aside: the first lane has clocks to keep.
ASIDE_NICE = 5

#: Failed tests of a whole run that are tried again. Of the runs on record, the unluckiest lost three races.
SECOND_TRIES_MAX = 8


@dataclass
class Outcome:
    name: str
    budget_s: int
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    over_budget: bool = False
    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)
    #: Failed at first, passed alone.
    unsteady: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed and not self.over_budget


def assign(files: Sequence[str], suites: Sequence[Suite] = SUITES) -> dict[str, list[str]]:
    """Map every test file (path relative to ``tests/``) to exactly one suite."""
    claimed: dict[str, list[str]] = {suite.name: [] for suite in suites}
    for name in sorted(files):
        owner = next(
            (s.name for s in suites if any(fnmatch.fnmatch(name, pattern) for pattern in s.patterns)),
            "unit",
        )
        claimed[owner].append(name)
    return claimed


def test_files() -> list[str]:
    return [str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")]


def read_junit(path: Path, outcome: Outcome) -> None:
    """Add the counts of one JUnit file; a collection error counts as a failed test."""
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
            outcome.failures.append(name)
        elif (skip := case.find("skipped")) is not None:
            outcome.skipped += 1
            outcome.skips.append(f"{name}: {skip.get('message', '')}")
        else:
            outcome.passed += 1


def command(suite: Suite, files: Sequence[str], junit: Path, *, again: bool = False) -> list[str]:
    """``again``: only what failed the last time, by pytest's own memory of it, kept per suite."""
    if suite.name == "lint":
        return ["make", "lint", f"VENV={Path(sys.prefix)}"]
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--color=auto",
        f"--junit-xml={junit}",
        "-o",
        f"cache_dir={REPORTS / f'cache-{suite.name}'}",
        *(("--last-failed", "--last-failed-no-failures=none") if again else ("--cache-clear",)),
        *(f"tests/{f}" for f in files),
    ]


def environment() -> dict[str, str]:
    """Ours, but Python keeps the bytecode of what it compiles. Where that is forbidden, as in many images,
    each of the hundreds of workers compiles the whole of refold again: a quarter of a second of CPU."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def prepare() -> None:
    """Once per machine: what a broker's JVM loads at its start, kept; that halves what each of them costs."""
    subprocess.run([sys.executable, "-m", "refold.broker.loaded"], cwd=ROOT, env=environment(), check=False)


def run_suite(suite: Suite, files: Sequence[str], *, aside: bool = False) -> Outcome:
    """Run one suite; its output goes straight to ours, or with ``aside`` when it has ended."""
    outcome = Outcome(suite.name, suite.budget_s)
    if suite.name != "lint" and not files:
        # A suite without files is a failure, or a rename would switch it off unnoticed.
        outcome.failed, outcome.failures = 1, [f"{suite.name}: no test files"]
        return outcome
    REPORTS.mkdir(parents=True, exist_ok=True)
    junit = REPORTS / f"{suite.name}.xml"
    junit.unlink(missing_ok=True)
    if not aside:
        print(title(suite), flush=True)
        return _watched(suite, outcome, files, junit, None)
    said = REPORTS / f"{suite.name}.log"
    with said.open("wb") as log:
        _watched(suite, outcome, files, junit, log)
    with PRINTING:
        # In one: the first lane prints meanwhile.
        print(f"{title(suite)}\n{said.read_text(errors='replace')}", end="", flush=True)
    return outcome


def try_again(outcomes: Sequence[Outcome], files: dict[str, list[str]]) -> None:
    """Run the failed tests once more, suite by suite, with nothing beside them. Changes ``outcomes``.

    A suite that was stopped, ran over its budget or left no list of its failures is not tried again: what it
    has not run cannot pass.
    """
    if sum(o.failed for o in outcomes) > SECOND_TRIES_MAX:
        return
    for outcome in outcomes:
        suite = next(s for s in SUITES if s.name == outcome.name)
        named = [name for name in outcome.failures if "::" in name]
        if suite.name == "lint" or not named or outcome.over_budget or len(named) != outcome.failed:
            continue
        print(f"\n=== {suite.name} again, alone: {', '.join(named)}", flush=True)
        second = Outcome(suite.name, suite.budget_s)
        junit = REPORTS / f"{suite.name}-again.xml"
        junit.unlink(missing_ok=True)
        _watched(suite, second, files[suite.name], junit, None, again=True)
        if second.failed == 0 and second.passed == len(named):
            outcome.passed += second.passed
            outcome.failed, outcome.failures, outcome.unsteady = 0, [], named


def title(suite: Suite) -> str:
    return f"\n=== {suite.name} (budget {suite.budget_s} s): {suite.covers}"


def _watched(
    suite: Suite,
    outcome: Outcome,
    files: Sequence[str],
    junit: Path,
    log: IO[bytes] | None,
    *,
    again: bool = False,
) -> Outcome:
    started = time.monotonic()
    nice = ["nice", "-n", str(ASIDE_NICE)] if log is not None else []
    process = subprocess.Popen(
        [*nice, *command(suite, files, junit, again=again)],
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
        stdout=log,
        stderr=log,
    )
    RUNNING.add(process)
    stopped = False
    try:
        code = process.wait(timeout=suite.budget_s * HARD_STOP_FACTOR)
    except subprocess.TimeoutExpired:
        stopped, code = True, -1
    except KeyboardInterrupt:
        stop_group(process)
        raise
    finally:
        RUNNING.discard(process)
    # Also after a normal end: a broker or worker a broken test left behind must not slow the next suite down.
    stop_group(process)
    outcome.seconds = time.monotonic() - started
    outcome.over_budget = outcome.seconds > suite.budget_s
    judge(suite, outcome, code, junit, stopped=stopped)
    return outcome


def judge(suite: Suite, outcome: Outcome, code: int, junit: Path, *, stopped: bool) -> None:
    """Turn exit code and JUnit file into counts; whatever cannot be read is a failure, never a pass."""
    if stopped:
        outcome.failed += 1
        outcome.failures.append(
            f"{suite.name}: stopped after {outcome.seconds:.0f} s, budget {suite.budget_s} s"
        )
    if suite.name == "lint":
        outcome.passed, outcome.failed = (1, 0) if code == 0 else (0, 1)
        outcome.failures = [] if code == 0 else ["make lint"]
        return
    if junit.exists():
        read_junit(junit, outcome)
    if code != 0 and not outcome.failed:
        outcome.failed += 1
        outcome.failures.append(f"{suite.name}: pytest exited with {code}")
    if outcome.over_budget:
        outcome.failures.append(f"{suite.name}: took {outcome.seconds:.0f} s, budget {suite.budget_s} s")


def stop_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def run_lanes(chosen: Sequence[Suite], files: dict[str, list[str]]) -> list[Outcome]:
    """All suites, side by side when both kinds were chosen or several are aside; outcomes in the order of
    ``chosen``."""
    found: dict[str, Outcome] = {}
    shared = deque(suite for suite in chosen if suite.aside)
    first = [suite for suite in chosen if not suite.aside]
    #: Nobody else prints, so it may print as it runs.
    alone = len(chosen) == 1

    def aside() -> None:
        while True:
            try:
                suite = shared.popleft()
            except IndexError:
                return
            found[suite.name] = run_suite(suite, files[suite.name], aside=not alone)

    sides = [threading.Thread(target=aside, daemon=True) for _ in range(min(LANES - 1, len(shared)))]
    for side in sides:
        side.start()
    try:
        for suite in first:
            found[suite.name] = run_suite(suite, files[suite.name])
        if first:
            aside()
        for side in sides:
            side.join()
    except BaseException:
        shared.clear()
        for process in list(RUNNING):
            stop_group(process)
        raise
    return [found[suite.name] for suite in chosen]


def table(outcomes: Sequence[Outcome], wall_s: float) -> str:
    """The time table, one row per suite."""
    lines = [f"{'suite':<12} {'seconds':>8} {'budget':>7} {'passed':>7} {'failed':>7} {'skipped':>8}"]
    for o in outcomes:
        mark = "" if o.ok else "  OVER BUDGET" if o.over_budget else "  FAILED"
        mark = mark or ("  unsteady" if o.unsteady else "")
        lines.append(
            f"{o.name:<12} {o.seconds:>8.1f} {o.budget_s:>7} {o.passed:>7} {o.failed:>7} {o.skipped:>8}{mark}"
        )
    lines.append(f"{'wall clock':<12} {wall_s:>8.1f} {TOTAL_BUDGET_S:>7}")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """The last line. A suite over its budget counts as one failure."""
    passed = sum(o.passed for o in outcomes)
    failed = sum(o.failed + (o.over_budget and not o.failed) for o in outcomes)
    skipped = sum(o.skipped for o in outcomes)
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="comma-separated suite names")
    parser.add_argument("--list", action="store_true", help="list the suites and their files")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - {suite.name for suite in SUITES}:
        parser.error(
            f"unknown suite: {', '.join(sorted(unknown))}; known: {', '.join(s.name for s in SUITES)}"
        )
    files = assign(test_files())
    chosen = [suite for suite in SUITES if not names or suite.name in names]
    if options.list:
        for suite in chosen:
            print(
                f"{suite.name:<12} {suite.budget_s:>5} s  {len(files[suite.name]):>3} files  {suite.covers}"
            )
        return 0
    started = time.monotonic()
    prepare()
    outcomes = run_lanes(chosen, files)
    try_again(outcomes, files)
    report(outcomes, time.monotonic() - started, as_json=options.json)
    return 0 if all(o.ok for o in outcomes) else 1


def report(outcomes: Sequence[Outcome], wall_s: float, *, as_json: bool) -> None:
    skips = [line for o in outcomes for line in o.skips]
    failures = [line for o in outcomes for line in o.failures]
    unsteady = [line for o in outcomes for line in o.unsteady]
    print("\n" + table(outcomes, wall_s))
    if skips:
        print("\nskipped:\n  " + "\n  ".join(skips))
    if failures:
        print("\nfailed:\n  " + "\n  ".join(failures))
    if unsteady:
        print("\nunsteady (failed beside the other lanes, passed alone):\n  " + "\n  ".join(unsteady))
    print(summary(outcomes), flush=True)
    if as_json:
        whole = {"suites": [asdict(o) for o in outcomes], "wall_s": wall_s, "summary": summary(outcomes)}
        print(json.dumps(whole), flush=True)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        print("\ninterrupted; the suites that had ended said so above", file=sys.stderr)
        raise SystemExit(130) from None
