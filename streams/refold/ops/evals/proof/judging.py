"""What must hold of a batch that was killed again and again. Pure: observations in, findings out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from refold.ops.evals.proof.plan import ProofPlan, expected, fails_first, sample_id

#: Findings of one kind that are told one by one.
TOLD_MAX = 5


class Row(NamedTuple):
    """A result as a foreign client reads it."""

    sample: str
    position: int
    status: str
    attempts: int
    result: str | None


class Count(NamedTuple):
    """A cursor: what it counts."""

    samples: int
    done: int
    failed: int


@dataclass(slots=True)
class Observed:
    """``history``: every record in the order of its commit, where the sink has one; ``rows``: the latest of
    each sample; ``cursor``: the last."""

    rows: dict[str, Row] = field(default_factory=dict)
    cursor: Count | None = None
    history: list[Row | Count] = field(default_factory=list)


@dataclass(slots=True)
class Findings:
    results: int = 0
    calls: int = 0
    repeated: int = 0
    mismatches: int = 0
    told: list[str] = field(default_factory=list)
    _kinds: Counter[str] = field(default_factory=Counter)

    def tell(self, kind: str, text: str) -> None:
        self.mismatches += 1
        self._kinds[kind] += 1
        if self._kinds[kind] <= TOLD_MAX:
            self.told.append(f"{kind}: {text}")


def judge(plan: ProofPlan, observed: Observed, book: Sequence[tuple[int, int]]) -> Findings:
    """``book``: (position, attempt) of every call of the runner."""
    found = Findings(results=len(observed.rows), calls=len(book))
    _results(plan, observed, found)
    _cursor(plan, observed, found)
    _history(observed, found)
    _calls(plan, book, found)
    return found


def _results(plan: ProofPlan, observed: Observed, found: Findings) -> None:
    """Each sample has one result, which is done, right, and of the attempt that could succeed."""
    for position in range(plan.samples):
        name = sample_id(position)
        row = observed.rows.get(name)
        if row is None:
            found.tell("missing", f"sample {name!r} has no result")
            continue
        if row.status != "done":
            found.tell("not done", f"sample {name!r} is {row.status}")
        elif row.result is None or json.loads(row.result) != expected(position, plan.seed):
            found.tell("wrong", f"sample {name!r} has a result that is not what the runner returned")
        attempts = 2 if fails_first(position) else 1
        if row.attempts != attempts or row.position != position:
            found.tell("attempts", f"sample {name!r}: attempt {row.attempts}, not {attempts}")
    for name in sorted(observed.rows.keys() - {sample_id(position) for position in range(plan.samples)}):
        found.tell("stranger", f"a result of {name!r}, which is no sample")


def _cursor(plan: ProofPlan, observed: Observed, found: Findings) -> None:
    done = sum(row.status == "done" for row in observed.rows.values())
    want = Count(plan.samples, done, len(observed.rows) - done)
    if observed.cursor != want:
        found.tell("cursor", f"the cursor is {observed.cursor}, the results are {want}")


def _history(observed: Observed, found: Findings) -> None:
    """E1, at every cursor that was ever committed; and a done result is never followed by another."""
    states: dict[str, str] = {}
    for record in observed.history:
        if isinstance(record, Row):
            if states.get(record.sample) == "done":
                found.tell("twice", f"sample {record.sample!r} was recorded again after it was done")
            states[record.sample] = record.status
            continue
        done = sum(status == "done" for status in states.values())
        if (record.done, record.failed) != (done, len(states) - done):
            found.tell("apart", f"a cursor {record} beside {done} done and {len(states) - done} failed")


def _calls(plan: ProofPlan, book: Sequence[tuple[int, int]], found: Findings) -> None:
    """Only what was in flight was run again, and only with its own attempt."""
    made = Counter(book)
    for position in range(plan.samples):
        for attempt in (1, 2) if fails_first(position) else (1,):
            if not made[position, attempt]:
                found.tell("uncalled", f"attempt {attempt} of sample {position} was never made")
    for position, attempt in sorted(made):
        if attempt > (2 if fails_first(position) else 1):
            found.tell("risen", f"attempt {attempt} of sample {position}: the outcome before was not known")
    found.repeated = sum(count - 1 for count in made.values())
    if found.repeated > plan.repeated_max:
        found.tell("repeated", f"{found.repeated} calls were made again, at most {plan.repeated_max} may be")
