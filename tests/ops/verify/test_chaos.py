"""Chaos on a real broker: a clean run is clean, and each broken rule is found."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from refold.ops.verify.chaos import SABOTAGES
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEYS = (
    "events",
    "kills",
    "kills_in_flight",
    "aborted_commits",
    "fenced_zombies",
    "broker_restarts",
    "leader_moves",
    "mismatches",
    "regressions",
    "rpo_events",
    "rto_ms",
    "not_shown",
    "seed",
)

#: What breaks without any death is found in a few seconds; the others need deaths between the wrong steps.
SECONDS = {"skip-dedup": 5, "fold-misrouted": 5, "disk-before-commit": 14, "offsets-before-produce": 14}


def chaos(kafka: Kafka, *options: str) -> tuple[int, dict[str, object], str]:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "chaos", "--bootstrap", kafka.bootstrap]
    result = subprocess.run(
        [*command, "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout.splitlines()[-1]), result.stderr


def test_a_run_with_deaths_is_clean(kafka: Kafka) -> None:
    """Goal: the product passes. Method: a short run with the opening deaths of every schedule."""
    code, row, log = chaos(kafka, "--seed", "1", "--seconds", "20", "--session-timeout-ms", "3000")
    assert (code, row["mismatches"], row["regressions"], row["rpo_events"]) == (0, 0, 0, 0), log
    assert tuple(row) == KEYS
    assert row["seed"] == 1
    for name in ("events", "kills", "kills_in_flight", "aborted_commits", "fenced_zombies"):
        assert int(str(row[name])) > 0, name


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_each_sabotage_is_found(kafka: Kafka, sabotage: str) -> None:
    """Goal: the harness can fail. Method: break one rule in the workers, expect exit 1 and a difference."""
    code, row, log = chaos(kafka, "--seed", "1", "--seconds", str(SECONDS[sabotage]), "--sabotage", sabotage)
    assert code == 1, log
    assert int(str(row["mismatches"])) + int(str(row["regressions"])) + int(str(row["rpo_events"])) > 0


def test_an_unknown_sabotage_is_refused_by_name(kafka: Kafka) -> None:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "chaos", "--bootstrap", kafka.bootstrap]
    result = subprocess.run([*command, "--sabotage", "nothing"], capture_output=True, text=True, check=False)
    assert result.returncode == 64
    assert "skip-dedup" in result.stderr
    assert "Traceback" not in result.stderr
