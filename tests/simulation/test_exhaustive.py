"""Goal: for small histories nothing depends on luck: every cut into commits × every death × every redelivery
offset. Method: exhaustive.py; ``python -m tests.simulation --exhaustive`` has the longer words too."""

from __future__ import annotations

import json

import pytest

from refold.engine.points import BULK, COMMIT, REBALANCE, RESTORE

from .__main__ import main
from .exhaustive import EVENTS_MAX, WORDS, cases, committed_at, cuts, run_all

SHORT = ("m", "mr", "us", "mrx")


def test_every_case_of_up_to_three_events() -> None:
    """Goal: all of them agree with a straight loop, and every place and offset was among them."""
    tally = run_all(SHORT)
    assert tally.failed == []
    assert tally.cases == sum(tally.deaths.values()) > 300
    assert {place.split()[0] for place in tally.deaths} == set(COMMIT + RESTORE + REBALANCE)
    assert set(tally.second) == set(RESTORE + BULK)
    assert set(tally.offsets) == {"committed", "0", "1", "2", "3"}


def test_the_cases_are_all_there_are() -> None:
    """Goal: the enumeration has every cut, and of each death every offset up to the committed one."""
    assert list(cuts(3)) == [(3,), (1, 2), (2, 1), (1, 1, 1)]
    assert len(list(cuts(EVENTS_MAX))) == 8
    assert max(len(word) for word in WORDS) == EVENTS_MAX
    assert set(SHORT) < set(WORDS)
    assert committed_at((1, 2), ("after_commit", ""), 3) == 3
    assert committed_at((1, 2), ("after_produce", ""), 3) == 1
    assert committed_at((1, 2), ("in_commit", "before"), 1) == 0
    found = [case for case in cases(["mr"]) if case.lots == (1, 1) and case.nth == 3]
    late = [case for case in found if case.place == ("after_write_batch", "")]
    assert [case.again_from for case in late if case.second is None] == [None, 0, 1, 2]
    assert {case.second for case in late if case.again_from == 1} == {None, *RESTORE, *BULK}


def test_no_case_is_told_twice() -> None:
    every = list(cases())
    assert len(set(every)) == len(every) > 2_000


@pytest.mark.parametrize("name", ["skip-dedup", "offsets-before-produce", "disk-before-commit"])
def test_a_broken_rule_is_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the enumeration can fail. Method: the command with a rule broken on purpose."""
    assert main(["--exhaustive", "--json", "--sabotage", name]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["violations"] >= 1
    assert told["failures"][0]["found"]
