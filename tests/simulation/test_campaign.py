"""Goal: no seed finds a difference, and the campaign has really met every fault and every rare situation.

Method: the real engine on simulated Kafka, disk and clock, under fault plans drawn from the seed (README.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .__main__ import main
from .campaign import ALL_FAULTS, SOMETIMES, Campaign, run_campaign
from .faults import ALL
from .parameters import Parameters
from .world import World

SEEDS = 60
FIRST_SEED = 1


def explain(campaign: Campaign) -> str:
    return "\n".join(f"{r.failures} reproduce with: {r.parameters.command()}" for r in campaign.failed)


def regression_seeds() -> list[int]:
    text = (Path(__file__).parent / "regression_seeds.txt").read_text()
    return [int(line.split()[0]) for line in text.splitlines() if line and not line.startswith("#")]


def test_a_swarm_of_faults_changes_nothing() -> None:
    """Goal: state = fold(journal) after every commit, each record exactly once, the end as the oracle says:
    whatever happens. Method: 60 seeds, a plan drawn for each; gates against a campaign that met nothing."""
    campaign = run_campaign(Parameters(seed=FIRST_SEED, plan_name="swarm"), SEEDS)
    assert not campaign.failed, explain(campaign)
    assert campaign.gates(commits_min=1_000, faults=ALL_FAULTS, sometimes=SOMETIMES) == []


def test_long_sessions_keep_their_history_index() -> None:
    """Goal: full history blocks and evicted sessions come back right. Method: few sessions, many events."""
    campaign = run_campaign(
        Parameters(seed=700, plan_name="all", plan=ALL, sessions=2, events=500, ticks=6_000), 6
    )
    assert not campaign.failed, explain(campaign)
    assert campaign.compared["history blocks"] >= 6


@pytest.mark.parametrize("seed", regression_seeds())
def test_regression_seed(seed: int) -> None:
    """Goal: a seed that once failed passes. Method: replay, see regression_seeds.txt."""
    result = World(Parameters(seed=seed, plan_name="swarm")).run()
    assert not result.failures, f"{result.failures} reproduce with: {result.parameters.command()}"


def test_the_gates_close() -> None:
    """Goal: a campaign that tested nothing fails. Method: an empty campaign, and one without faults."""
    missed = Campaign().gates(commits_min=1, faults=ALL_FAULTS, sometimes=SOMETIMES)
    assert len(missed) == 1 + len(ALL_FAULTS) + len(SOMETIMES)
    quiet = run_campaign(Parameters(seed=1, ticks=1_500, events=40), 1)
    assert not quiet.failed
    assert "fault crash_at_point never struck" in quiet.gates(commits_min=1, faults=ALL_FAULTS)
    assert quiet.gates(commits_min=quiet.commits + 1)[0].startswith(f"{quiet.commits} commits")
    assert any("compared in" in line for line in quiet.gates(commits_min=1))


def test_the_command_says_how_to_reproduce(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: banner with every parameter, exit 1 and a command on failure, exit 0 otherwise."""
    assert main(["--seed", "3", "--ticks", "1500", "--events", "60", "--sabotage", "skip-dedup"]) == 1
    out = capsys.readouterr().out
    assert (
        "seed=3 ticks=1500 workers=3 partitions=4 sessions=10 events=60 pause_us=30000"
        " restart_us=50000-2500000 faults=swarm sabotage=skip-dedup" in out
    )
    command = (
        "python -m tests.simulation --seed 3 --ticks 1500 --workers 3 --partitions 4 --sessions 10"
        " --events 60 --faults swarm --sabotage skip-dedup"
    )
    assert f"reproduce with: {command}" in out
    assert main(["--seed", "3", "--ticks", "800", "--events", "20", "--faults", "none"]) == 0
    assert (
        main(["--seed", "3", "--ticks", "800", "--events", "20", "--faults", "none", "--require-faults"]) == 1
    )
