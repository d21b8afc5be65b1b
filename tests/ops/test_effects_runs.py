"""``refold verify effects`` on a real broker: a short run is clean, every broken rule is found."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold.ops.effects.boundaries import BOUNDARIES, CALL
from refold.ops.effects.sabotage import SABOTAGES
from refold.testing.kafka import Kafka

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("bfcl_eval") is None,
        reason="the conversations are not installed: pip install --no-deps -r requirements/demo.lock",
    ),
]

#: The five counts that must be 0, in the order in which the command prints them.
COUNTS = ("executed_twice", "lost", "unknown_not_in_review", "ledger_mismatches", "state_mismatches")

#: What a run does not show for want of luck, another one shows: one key in twenty cannot be looked up, and a
#: busy machine reaches a boundary late. Whatever is shown must be right in every try.
TRIES_MAX = 3

#: A run takes 20 s; the rest is for a machine that does ten other things.
RUN_S_MAX = 280.0

Row = dict[str, object]


def effects(*options: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "refold.cli.main", "verify", "effects", *options],
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX, env=environment,
    )  # fmt: skip


def row_of(result: subprocess.CompletedProcess[str]) -> Row:
    assert result.stdout, result.stderr
    row: Row = json.loads(result.stdout.splitlines()[-1])
    return row


@pytest.mark.timeout(TRIES_MAX * RUN_S_MAX)
def test_a_short_run_is_clean_and_met_every_danger(kafka: Kafka) -> None:
    """Goal: the product passes, and the run met what it is for. Method: every boundary once, two freezes."""
    for seed in range(1, TRIES_MAX + 1):
        result = effects(
            "--bootstrap", kafka.bootstrap, "--seed", str(seed), "--conversations", "16",
            "--kills-per-boundary", "1", "--seconds", "120", "--json",
        )  # fmt: skip
        row = row_of(result)
        assert [row[name] for name in COUNTS] == [0, 0, 0, 0, 0], result.stderr
        assert tuple(row)[: len(COUNTS)] == COUNTS
        assert list(row["boundaries"]) == list(BOUNDARIES)  # type: ignore[call-overload]
        assert result.returncode == int(bool(row["not_shown"] or row["unfinished"])), result.stderr
        if row["not_shown"] == row["unfinished"] == [] and row["kills_workers"]:
            break
    else:
        pytest.fail(f"not shown: {row['not_shown']}, unfinished: {row['unfinished']}\n{result.stderr}")
    assert all(row["boundaries"][name] >= 1 for name in CALL)  # type: ignore[index]
    assert row["conversations_ended"] == 16
    for name in ("kills_agents", "kills_workers", "zombies_woken", "unknown", "not_done", "done_by_lookup"):
        assert int(str(row[name])) > 0, name


@pytest.mark.timeout(TRIES_MAX * RUN_S_MAX)
@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_each_sabotage_is_found(kafka: Kafka, sabotage: str) -> None:
    """Goal: the harness can fail. Method: break one rule, expect exit 1 because of a counted difference."""
    for seed in range(1, TRIES_MAX + 1):
        result = effects(
            "--bootstrap", kafka.bootstrap, "--seed", str(seed), "--conversations", "12",
            "--sabotage", sabotage, "--json",
        )  # fmt: skip
        row = row_of(result)
        assert row["not_shown"] == [], "a sabotage must be found, not merely not shown"
        if int(str(row["ledger_mismatches"])) > 0:
            assert result.returncode == 1, result.stderr
            return
    pytest.fail(f"not found in {TRIES_MAX} runs\n{result.stderr}")


WRONG = """
'An agent with a common mistake: what it does in a second try has another id than in the first.'
import uuid


async def play(turn):
    asked_by = f"{turn.turn_id}/{uuid.uuid4()}"
    for call in turn.calls:
        await turn.session.run_tools([call], tools=turn.tools, message_id=asked_by, lease=turn.lease_s)
    await turn.session.append("done", role="assistant", message_id=f"{turn.turn_id}/answer")
"""


@pytest.mark.timeout(TRIES_MAX * RUN_S_MAX)
def test_a_users_wrong_agent_is_found(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: ``--agent`` tells a wrong agent by the same ledger. Method: one whose calls change their ids."""
    (tmp_path / "wrong.py").write_text(WRONG)
    for seed in range(1, TRIES_MAX + 1):
        result = effects(
            "--bootstrap", kafka.bootstrap, "--seed", str(seed), "--agent", "wrong:play",
            "--conversations", "12", "--kills-per-boundary", "1", "--seconds", str(8 * seed), "--json",
            path=tmp_path,
        )  # fmt: skip
        row = row_of(result)
        assert row["lost"] == 0, result.stderr
        if int(str(row["executed_twice"])) > 0:
            assert result.returncode == 1
            return
    pytest.fail(f"no call was executed twice in {TRIES_MAX} runs\n{result.stderr}")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--sabotage", "nothing"), 64, "rerun-unknown"),
        (("--agent", "nothing"), 64, "module:object"),
        (("--agent", "no_such_module_here:play"), 78, "cannot be imported"),
    ],
)
def test_what_cannot_run_is_refused_before_a_broker_is_started(
    options: tuple[str, ...], code: int, words: str
) -> None:
    result = effects(*options)
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "starting a Kafka" not in result.stderr
