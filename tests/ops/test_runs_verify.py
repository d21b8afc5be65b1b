"""Durable agents as real processes that are killed and replaced; and a planted fault that must show."""

from __future__ import annotations

import pytest

from refold.ops.runs.outcome import Outcome
from refold.ops.runs.plan import RunsPlan
from refold.ops.runs.run import run_runs
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Deaths meet runs by the clock; what is compared must be right in each try.
TRIES_MAX = 3


def verify(kafka: Kafka, plan: RunsPlan) -> Outcome:
    settings = Settings()
    address = settings.kafka.model_copy(update={"bootstrap": kafka.bootstrap})
    return run_runs(plan, settings.model_copy(update={"kafka": address}), lambda _: None)


def test_every_run_ends_once_although_its_processes_die(kafka: Kafka) -> None:
    """Goal: kills, and a rolling deploy; every run ends, by one process at a time, each effect once."""
    for attempt in range(TRIES_MAX):
        plan = RunsPlan(seed=1 + attempt, runs=24, agents=2, workers=1, partitions=2, every_s=2.0)
        outcome = verify(kafka, plan)
        row = outcome.as_json()
        assert (row["differences"], row["unfinished"]) == ([], [])
        assert (row["completed"], row["mismatches"], row["deploy_exits"]) == (24, 0, [0, 0])
        if row["hand_overs"]:
            return
    raise AssertionError(f"no death met a run in {TRIES_MAX} tries")


def test_a_body_with_an_effect_outside_of_its_steps_is_found(kafka: Kafka) -> None:
    """Goal: the comparison can fail."""
    for attempt in range(TRIES_MAX):
        plan = RunsPlan(
            seed=1 + attempt, runs=12, agents=2, workers=1, partitions=2, every_s=1.0, deploy=False,
            sabotage="effect-outside-step",
        )  # fmt: skip
        outcome = verify(kafka, plan)
        if outcome.verdict.doubled_effects:
            assert not outcome.clean
            return
    raise AssertionError(f"a planted fault was not found in {TRIES_MAX} tries")
