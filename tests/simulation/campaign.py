"""Runs over many seeds, what they reached, and the gates against passing without having tested anything."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from .faults import ALL
from .parameters import Parameters, Result
from .world import REACHABLE, World

#: Situations a campaign must have reached (log events of the engine, metrics, and the world's own
#: observations).
SOMETIMES: Final = (
    "in flight",
    "woken after takeover",
    "zombie went live",
    "dead_worker_fenced",
    "local_store_set_aside",
    "commit_aborted",
    "refold_commit_aborts_total{reason=resent}",
    "chunk_missing",
    "store_write_failed",
    "restore_again",
    "partitions_lost_fenced",
    "partition_served",
    "parking_full",
    "parking_roomy",
    "live with records that wait",
    "refold_batches_wait_seconds",
    "exit FencedError",
    "exit StorageError",
    "exit graceful",
    "restoring to revoked",
    "restoring to lost",
    "waiting to revoked",
    "cut off in a commit",
    "clock went back",
    "written by an old build",
    "standby_opened",
    "standby promoted",
    "standby_lost",
    "refold_unknown_types_total",
    "refold_rejected_total{code=unknown_schema}",
    "timer fired",
    "run leased (new)",
    "run leased (timed_out)",
    "run ready (timed_out)",
    "run ready (heartbeat)",
    "idle session ended",
    *(f"kill at {name}" for name in REACHABLE),
    *(f"stop at {name}" for name in REACHABLE),
)

#: What must have been compared, at least this often per run on average.
COMPARED_MIN: Final = {
    "transactions": 5,
    "state = fold(journal)": 10,
    "restored partitions": 3,
    "served partitions": 1,
    "filled partitions": 1,
    "offsets with records beyond": 0.3,
    "store writes": 10,
    "journal entries": 50,
    "rejected": 10,
    "forwards": 3,
    "rulings": 10,
    "generation = fold(batches)": 10,
    "markers": 5,
    "work = f(state)": 10,
    "timer rows = f(state)": 3,
    "restored timer rows": 1,
    "proposals": 0.3,
}


@dataclass(slots=True)
class Campaign:
    runs: int = 0
    commits: int = 0
    events: int = 0
    virtual_ms: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)
    _digest: Any = field(default_factory=sha256)

    @property
    def digest(self) -> str:
        """Names all traces in their order."""
        return str(self._digest.hexdigest())

    def add(self, result: Result) -> None:
        self.runs += 1
        self.commits += result.commits
        self.events += result.events
        self.virtual_ms += result.virtual_ms
        self.struck += result.faults
        self.happened += result.happened
        self.compared += result.compared
        self._digest.update(result.digest.encode())
        if result.failures:
            self.failed.append(result)

    def join(self, more: Campaign) -> None:
        """Take in the sums of another one."""
        self.runs += more.runs
        self.commits += more.commits
        self.events += more.events
        self.virtual_ms += more.virtual_ms
        self.struck += more.struck
        self.happened += more.happened
        self.compared += more.compared
        self.failed += more.failed

    def gates(
        self,
        *,
        commits_min: int,
        faults: Iterable[str] = (),
        sometimes: Iterable[str] = (),
        compared: bool = True,
    ) -> list[str]:
        """What was not reached; empty when the campaign tested something."""
        missed = []
        if self.commits < commits_min:
            missed.append(f"{self.commits} commits, at least {commits_min} were asked for")
        missed += [f"fault {name} never struck" for name in faults if not self.struck[name]]
        missed += [f"never happened: {name}" for name in sometimes if not self.happened[name]]
        # Averages say nothing about one run.
        missed += [
            f"{name}: {self.compared[name]} compared in {self.runs} runs"
            for name, least in COMPARED_MIN.items()
            if compared and self.compared[name] < least * self.runs
        ]
        return missed

    def rows(self) -> list[str]:
        runs = (
            f"runs      {self.runs} ({len(self.failed)} failed), {self.commits} commits,"
            f" {self.events} accepted events, {self.virtual_ms / 1000:.0f} s of virtual time"
        )
        return [
            runs,
            "faults    " + ", ".join(f"{name} {self.struck[name]}" for name in sorted(self.struck)),
            "compared  " + ", ".join(f"{name} {count}" for name, count in sorted(self.compared.items())),
            "reached   "
            + ", ".join(f"{name} {self.happened[name]}" for name in SOMETIMES if self.happened[name]),
        ]


def run_campaign(
    first: Parameters,
    count: int,
    *,
    stop_at_failure: bool = True,
    told: Callable[[Result], None] | None = None,
    jobs: int = 1,
) -> Campaign:
    """``count`` runs with consecutive seeds, told in their order whatever ``jobs`` is."""
    campaign = Campaign()
    with contextlib.closing(_results(first, count, jobs)) as results:
        for result in results:
            campaign.add(result)
            if told is not None:
                told(result)
            if result.failures and stop_at_failure:
                break
    return campaign


def _results(first: Parameters, count: int, jobs: int) -> Generator[Result, None, None]:
    runs = [replace(first, seed=first.seed + number) for number in range(count)]
    if jobs == 1:
        yield from map(run_one, runs)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        # Few in advance: what comes after the first failure is not waited for.
        waiting = deque(pool.submit(run_one, run) for run in runs[: 2 * jobs])
        for run in runs[2 * jobs :]:
            yield waiting.popleft().result()
            waiting.append(pool.submit(run_one, run))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_one(parameters: Parameters) -> Result:
    return World(parameters).run()


#: Every kind of fault there is.
ALL_FAULTS: Final = ALL.kinds()
