"""A fleet restarted with cold disks on a real broker: nothing is lost, and the harness can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.ops.storm.plan import QUICK
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEYS = (
    "workers",
    "sessions",
    "partitions",
    "hot_partitions",
    "cap_bytes_per_s",
    "hot_first",
    "read_rate",
    "arms",
    "ratios",
    "mismatches",
    "regressions",
    "rpo_events",
    "seconds",
    "seed",
    "files",
)

#: Three starts of two processes: half a minute alone, minutes on a machine that does much else.
SECONDS_MAX = 300


def storm(kafka: Kafka, *options: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "storm", "--bootstrap", kafka.bootstrap]
    result = subprocess.run(
        [*command, "--quick", "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout.splitlines()[-1]), result.stderr


def test_every_session_survives_the_restarts_and_everything_is_measured(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the report is whole and the product passes. Nothing is said about how fast this machine is."""
    code, row, log = storm(kafka, "--out", str(tmp_path))
    assert (code, row["mismatches"], row["regressions"], row["rpo_events"]) == (0, 0, 0, 0), log
    assert tuple(row) == KEYS
    assert list(row["arms"]) == [arm.name for arm in QUICK.arms]
    for name, arm in row["arms"].items():
        assert arm["hot"]["of"] == QUICK.hot_sessions, name
        assert arm["new"]["of"] == QUICK.new_sessions, name
        assert arm["partitions"]["of"] == QUICK.partitions, name
        for what in ("hot", "new", "partitions"):
            times = [arm[what][at] for at in ("first_s", "p50_s", "p99_s", "all_s")]
            assert None not in times, (name, what)
            assert times == sorted(times), (name, what)
        # The state of every session was read at least once, in both arms from cold disks.
        assert arm["read_bytes"] > QUICK.sessions * 200, name
        assert arm["read_peak_bytes_per_s"] > 0, name
        assert isinstance(arm["rebalances"], int), name
        assert arm["events"] >= QUICK.hot_sessions, name
    assert row["ratios"]["hot_p99"] > 0
    assert json.loads((tmp_path / "report.json").read_text()) == row
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")


def test_a_session_that_is_lost_behind_everybodys_back_is_missed(kafka: Kafka) -> None:
    """Goal: the harness can fail. Method: one session's state is deleted while the fleet is down."""
    code, row, log = storm(kafka, "--sabotage", "lose-state")
    assert code == 1, log
    assert row["mismatches"] >= 1
    assert f"s{QUICK.sessions - 1:06d}: deleted" in log, "and says which"
