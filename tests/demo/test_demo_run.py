"""A short demo on a real broker: everything the long one does, with fewer conversations."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.ops.effects.boundaries import CALL
from refold.testing.kafka import Kafka

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("bfcl_eval") is None,
        reason="the demo's data is not installed: pip install --no-deps -r requirements/demo.lock",
    ),
]


#: What a run does not show for want of luck (deaths come by the clock), the next one shows. What is compared
#: must be right in each.
TRIES_MAX = 3

#: A run takes 40 s at most; six times that on a busy machine.
RUN_S_MAX = 280.0


def demo(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refold.cli.main", "demo", "--dir", str(directory / "demo")]
    return subprocess.run(
        [*command, "--report", str(directory / "report.json"), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )


@pytest.mark.timeout(TRIES_MAX * RUN_S_MAX)
def test_a_short_demo_is_exact_and_its_control_is_not(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the demo's promises hold and its control shows the difference. Method: 24 conversations, 20 s."""
    for number in range(TRIES_MAX):
        row = short_demo(kafka, tmp_path / str(number))
        shown = row["kills"], row["kills_in_flight"], row["agent_kills"], broken(row["control"])
        if all(shown):
            return
    pytest.fail(f"kills, in flight, of agents, the control's differences: {shown}")


def broken(control: dict[str, int]) -> int:
    return control["lost"] + control["doubled"]


def short_demo(kafka: Kafka, tmp_path: Path) -> dict[str, Any]:
    tmp_path.mkdir()
    result = demo(
        tmp_path, "--bootstrap", kafka.bootstrap, "--sessions", "24", "--seconds", "20", "--no-up", "--json",
        "--opening", "skip",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    row: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert row == json.loads((tmp_path / "report.json").read_text())
    assert (row["sessions"], row["mismatches"], row["lost"], row["doubled"]) == (24, 0, 0, 0)
    assert set(row["kill_points"]) <= {
        "after_begin",
        "after_produce",
        "after_send_offsets",
        "in_commit",
        "outside",
    }
    assert row["operations"] == 140
    assert row["opening"] is None
    assert set(row["agent_kill_points"]) <= set(CALL)
    assert not (tmp_path / "demo" / "stack.json").exists()
    return row


def test_the_opening_shows_what_it_says(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the same sentence on both devices, a refund paid once, a letter in the review queue. Method: the
    opening alone; it kills for real and compares what was shown with what is stored."""
    result = demo(tmp_path, "--bootstrap", kafka.bootstrap, "--opening", "only", "--json")
    assert result.returncode == 0, result.stderr
    row = json.loads(result.stdout.splitlines()[-1])
    assert row["wrong"] == []
    assert row["chat"]["same_sentence"] is True
    assert 0 < row["chat"]["killed_after_characters"] < row["chat"]["characters"]
    assert row["chat"]["went_on_after_ms"] > 0
    assert row["refund"]["effects"] == row["letter"]["effects"] == row["letter"]["reviewed"] == 1
    for words in ("kill -9", "finished the same sentence", "done, not repeated", "refold review resolve"):
        assert words in result.stderr


def test_down_without_a_demo_says_so(tmp_path: Path) -> None:
    result = demo(tmp_path, "--down")
    assert result.returncode == 0
    assert "nothing of a demo runs" in result.stdout
