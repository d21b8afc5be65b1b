"""Chaos on a real broker: a clean run is clean, and each broken rule is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from readme.pages import ROOT, blocks
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
    "parts",
    "parts_upcast",
)

#: The first version of the reducer that the guide prints, and what makes its events.
GUIDE = blocks((ROOT / "docs/guides/reducers.md").read_text("utf-8"), "python")
SHOP = f"{GUIDE[0]}\n\n{GUIDE[-1]}"

#: What breaks without any death is found in a few seconds; the others need deaths between the wrong steps.
SECONDS = {"skip-dedup": 5, "fold-misrouted": 5, "disk-before-commit": 14, "offsets-before-produce": 14}

#: A run meets its dangers by the clock. What a busy machine did not come to is looked for in a longer run
#: with other deaths; what is compared must be right in each.
TRIES_MAX = 3

#: A run takes its seconds and about 20 more; four times that on a busy machine.
RUN_S_MAX = 280.0


def chaos(kafka: Kafka, *options: str, cwd: Path | None = None) -> tuple[int, dict[str, object], str]:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "chaos", "--bootstrap", kafka.bootstrap]
    result = subprocess.run(
        [*command, "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
        cwd=cwd,
    )
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout.splitlines()[-1]), result.stderr


@pytest.mark.timeout(TRIES_MAX * RUN_S_MAX)
def test_a_run_with_deaths_is_clean(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the product passes, and the guide's reducer. Method: a short run with the opening deaths of every
    schedule."""
    names = ("events", "kills", "kills_in_flight", "aborted_commits", "fenced_zombies", "parts")
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    for seed in range(1, TRIES_MAX + 1):
        seconds = str(20 * seed)
        options = ("--seed", str(seed), "--seconds", seconds, "--session-timeout-ms", "3000")
        code, row, log = chaos(kafka, *options, "--reducers", "shop", cwd=tmp_path)
        assert (code, row["mismatches"], row["regressions"], row["rpo_events"]) == (0, 0, 0, 0), log
        assert tuple(row) == KEYS
        assert row["seed"] == seed
        if all(int(str(row[name])) > 0 for name in names):
            return
    pytest.fail(f"not met in {TRIES_MAX} runs: {[name for name in names if not row[name]]}\n{log}")


@pytest.mark.timeout(TRIES_MAX * RUN_S_MAX)
@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_each_sabotage_is_found(kafka: Kafka, sabotage: str) -> None:
    """Goal: the harness can fail. Method: break one rule in the workers, expect exit 1 and a difference."""
    for seed in range(1, TRIES_MAX + 1):
        seconds = str(SECONDS[sabotage] * seed)
        code, row, log = chaos(kafka, "--seed", str(seed), "--seconds", seconds, "--sabotage", sabotage)
        assert code in (0, 1), log
        if code == 1:
            break
    else:
        pytest.fail(f"not found in {TRIES_MAX} runs\n{log}")
    assert int(str(row["mismatches"])) + int(str(row["regressions"])) + int(str(row["rpo_events"])) > 0


def test_an_unknown_sabotage_is_refused_by_name(kafka: Kafka) -> None:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "chaos", "--bootstrap", kafka.bootstrap]
    result = subprocess.run([*command, "--sabotage", "nothing"], capture_output=True, text=True, check=False)
    assert result.returncode == 64
    assert "skip-dedup" in result.stderr
    assert "Traceback" not in result.stderr
