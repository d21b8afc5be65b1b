"""One fault scenario on a real broker, the quickest: clean as it is, found when a rule is broken.

All of them: `refold verify faults`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Starts of the workers, one more of the victim, and what is waited for, on a machine with too much to do.
RUN_S_MAX = 280.0


def faults(kafka: Kafka, *options: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "faults", "--bootstrap", kafka.bootstrap]
    result = subprocess.run(
        [*command, "--json", *options], capture_output=True, text=True, check=False, timeout=RUN_S_MAX
    )
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout.splitlines()[-1]), result.stderr


def test_a_worker_killed_in_its_drain_loses_nothing(kafka: Kafka) -> None:
    """Goal: the product passes a fault that was seen to strike; what needs other brokers is skipped with the
    reason."""
    code, row, log = faults(kafka, "--only", "kill-in-drain", "--only", "network-cut")
    drain, network = row["scenarios"]
    assert (drain["status"], drain["mismatches"], drain["not_shown"]) == ("clean", 0, []), log
    assert drain["seen"]["drain_ended"] is False
    assert drain["events"] > 0
    assert network["status"] == "skipped"
    assert "without --bootstrap" in network["skipped"]
    assert code == 0


def test_a_broken_rule_is_found(kafka: Kafka) -> None:
    """Goal: the comparison can fail."""
    code, row, log = faults(kafka, "--only", "kill-in-drain", "--sabotage", "skip-dedup")
    assert (code, row["clean"], row["scenarios"][0]["status"]) == (1, False, "different"), log
