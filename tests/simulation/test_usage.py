"""Goal: usage counts once and is judged the same, whoever dies when, however it is restored (rules W).

Method: swarms of faults with usage among the rest; after every commit each row is compared with a count of
the journal made anew, after every restore with the committed rows.
"""

from __future__ import annotations

from collections import Counter

import pytest

from refold.engine.usage import TouchedUsage

from .faults import NONE
from .parameters import Parameters
from .world import World

SEEDS = 6


def test_usage_rows_are_the_recount_of_the_journal_after_every_commit_and_restore() -> None:
    happened: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = World(Parameters(seed=seed, plan_name="swarm", usage=True)).run()
        assert result.failures == [], result.parameters.command() + " with usage=True"
        happened += result.happened
        compared += result.compared
        struck += result.faults
    assert compared["usage rows = f(journal)"] > 100
    assert compared["restored usage rows"] > 20
    assert min(happened[name] for name in ("UsageRecorded", "UsageAdmitted", "UsageReleased")) > 10
    assert happened["usage late"] > 10
    assert happened["usage future"] > 10
    assert struck.total() > 20


def test_a_row_that_survives_an_abort_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the checker can fail. A row that an aborted overlay has changed is kept in memory: what is folded
    again counts twice."""
    monkeypatch.setattr(TouchedUsage, "discard", lambda self: None)
    for seed in range(20):
        result = World(Parameters(seed=seed, plan_name="swarm", usage=True)).run()
        if any(text.startswith("usage: ") for text in result.failures):
            return
    raise AssertionError("no run met an abort with usage")


def test_runs_without_usage_have_none() -> None:
    result = World(Parameters(seed=1, ticks=400, events=40, plan=NONE)).run()
    assert result.failures == []
    assert "usage rows = f(journal)" not in result.compared
