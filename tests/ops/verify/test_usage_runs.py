"""Usage on real workers that die and restore: counted again, and a broken rule is found."""

from __future__ import annotations

import pytest

from refold.ops.usage.plan import UsagePlan
from refold.ops.usage.run import UsageOutcome, run_usage
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: A run meets its death by the clock; what is compared must be right in each.
TRIES_MAX = 3


def run(kafka: Kafka, plan: UsagePlan) -> UsageOutcome:
    settings = Settings()
    kafka_settings = settings.kafka.model_copy(update={"bootstrap": kafka.bootstrap})
    return run_usage(plan, settings.model_copy(update={"kafka": kafka_settings}), lambda _: None)


def test_a_killed_worker_counts_nothing_twice_and_a_restored_one_judges_as_before(kafka: Kafka) -> None:
    """Goal: repeats, rewinds, wrong clocks and a death inside a commit; every row is the recount of its
    journal, the journal is what was sent, and all of it is the same after a restart and a full restore."""
    for attempt in range(TRIES_MAX):
        plan = UsagePlan(
            seed=1 + attempt, events=4_000, kills=1, workers=1, sessions=20, subjects=3, partitions=2,
            session_timeout_ms=10_000,
        )  # fmt: skip
        outcome = run(kafka, plan)
        assert outcome.findings.told == []
        row = outcome.as_json()
        assert (row["mismatches"], row["events"], row["kills"]) == (0, 4_000, 1)
        assert row["rows"] == row["served_rows"] == row["restarted_rows"] == row["restored_rows"] == 12
        assert row["repeats"] > 400
        assert row["late"] > 100
        assert row["future"] > 100
        if row["kills_in_flight"]:
            return
    raise AssertionError(f"no death met an open commit in {TRIES_MAX} runs")


def test_skipped_de_duplication_is_found(kafka: Kafka) -> None:
    """Goal: the comparison can fail."""
    plan = UsagePlan(
        events=500, kills=0, workers=1, sessions=10, subjects=2, partitions=1, sabotage="skip-dedup"
    )
    outcome = run(kafka, plan)
    assert not outcome.clean
    assert any("journalled more than once" in text for text in outcome.findings.told)
