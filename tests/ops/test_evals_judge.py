"""The judge of ``verify eval`` notices each way in which a batch can be wrong, and passes what is right."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from refold.errors import UsageError
from refold.ops.evals.proof.judging import Count, Observed, Row, judge
from refold.ops.evals.proof.plan import BETWEEN, OUTSIDE, ProofPlan, expected, fails_first, sample_id

PLAN = ProofPlan(samples=40, kills=1, concurrency=2)


def right() -> tuple[Observed, list[tuple[int, int]]]:
    seen, book = Observed(), []
    done = 0
    for position in range(PLAN.samples):
        attempts = 2 if fails_first(position) else 1
        book += [(position, attempt) for attempt in range(1, attempts + 1)]
        result = json.dumps(expected(position, PLAN.seed))
        row = Row(sample_id(position), position, "done", attempts, result)
        if attempts == 2:
            failed = row._replace(status="failed", attempts=1, result=None)
            seen.history += [failed, Count(PLAN.samples, done, 1)]
        done += 1
        seen.rows[row.sample] = row
        seen.history += [row, Count(PLAN.samples, done, 0)]
    seen.cursor = Count(PLAN.samples, done, 0)
    return seen, book


def test_what_is_right_is_passed_with_what_was_in_flight_repeated() -> None:
    seen, book = right()
    found = judge(PLAN, seen, [*book, *book[: PLAN.repeated_max]])
    assert (found.mismatches, found.repeated, found.results) == (0, 4, 40)


def lose(seen: Observed, book: list[tuple[int, int]]) -> None:
    del seen.rows[sample_id(7)]


def fail(seen: Observed, book: list[tuple[int, int]]) -> None:
    seen.rows[sample_id(7)] = seen.rows[sample_id(7)]._replace(status="failed")


def falsify(seen: Observed, book: list[tuple[int, int]]) -> None:
    seen.rows[sample_id(7)] = seen.rows[sample_id(7)]._replace(result='{"square":1}')


def stray(seen: Observed, book: list[tuple[int, int]]) -> None:
    seen.rows["x"] = seen.rows[sample_id(7)]


def raise_attempt(seen: Observed, book: list[tuple[int, int]]) -> None:
    book.append((7, 2))


def repeat(seen: Observed, book: list[tuple[int, int]]) -> None:
    book.extend(book[: PLAN.repeated_max + 1])


def forget(seen: Observed, book: list[tuple[int, int]]) -> None:
    book.remove((9, 1))


def advance(seen: Observed, book: list[tuple[int, int]]) -> None:
    seen.cursor = Count(PLAN.samples, PLAN.samples - 1, 0)


def part(seen: Observed, book: list[tuple[int, int]]) -> None:
    seen.history[4], seen.history[5] = seen.history[5], seen.history[4]


def redo(seen: Observed, book: list[tuple[int, int]]) -> None:
    seen.history.insert(-1, seen.history[2])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lose, "missing"),
        (fail, "not done"),
        (falsify, "wrong"),
        (stray, "stranger"),
        (raise_attempt, "risen"),
        (repeat, "repeated"),
        (forget, "uncalled"),
        (advance, "cursor"),
        (part, "apart"),
        (redo, "twice"),
    ],
)
def test_each_fault_is_noticed(change: Callable[[Observed, list[tuple[int, int]]], None], kind: str) -> None:
    seen, book = right()
    change(seen, book)
    found = judge(PLAN, seen, book)
    assert any(text.startswith(f"{kind}:") for text in found.told), found.told


def test_the_plan_dies_in_time_and_everywhere() -> None:
    """Goal: no life can do all samples, so each is killed; every point of a commit is among ten deaths."""
    deaths = ProofPlan().deaths()
    assert {death.where for death in deaths} == {OUTSIDE, "begun", "results", "cursor", "committed"}
    assert all(death.count <= ProofPlan().quota for death in deaths)
    assert {d.where for d in ProofPlan(sabotage="cursor-first").deaths()} == {OUTSIDE, BETWEEN}
    assert ProofPlan(seed=2).deaths() != deaths
    with pytest.raises(UsageError, match="10 kills need 120 samples"):
        ProofPlan(samples=100).check()
    with pytest.raises(UsageError, match="is no rule to break"):
        ProofPlan(sabotage="x").check()
