"""The simulated fleet: deterministic, within its limits, and better off when it is polite."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from refold.engine.admission import BURST_S
from refold.errors import InvariantViolation, UsageError
from refold.ops.storm import virtual
from refold.ops.storm.arms import CAPPED, POLITE, STORM
from refold.ops.storm.curves import PEAK_WINDOW_S, Live
from refold.ops.storm.model import MB, FleetModel
from refold.ops.storm.simulate import (
    SimulatedArm,
    chunk_bytes,
    simulate,
    simulate_arm,
    simulated_report,
    trace,
)

#: Ten partitions per worker, so that there is an order; 37 500 records each, so that hot first pays.
FLEET = FleetModel(
    workers=12,
    partitions=120,
    bytes_per_partition=60 * MB,
    brokers=3,
    broker_bytes_per_s=400 * MB,
    cap_bytes_per_s=10 * MB,
    hot_sessions=1_200,
)


def p99(found: SimulatedArm) -> float:
    at = Live(found.hot, FLEET.hot_sessions).at(0.99)
    assert at is not None
    return at


def test_virtual_time_passes_by_itself_and_cannot_stand_still() -> None:
    async def sleepers() -> list[tuple[str, float]]:
        loop, seen = asyncio.get_running_loop(), []

        async def one(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, loop.time()))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("late", 86_400.0), ("soon", 0.5), ("now", 0.0)):
                group.create_task(one(name, seconds))
        return seen

    assert virtual.run(sleepers()) == [("now", 0.0), ("soon", 0.5), ("late", 86_400.0)]

    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(InvariantViolation, match="never comes"):
        virtual.run(stuck())


def test_a_model_gives_the_same_result_in_every_process() -> None:
    """Goal: a figure that is quoted can be had again. Method: two processes with other hash seeds."""
    code = "from tests.ops.test_storm_simulated import FLEET, simulate, trace; print(trace(simulate(FLEET)))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "streams", "PATH": ""},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {trace(simulate(FLEET))}
    assert trace(simulate(replace(FLEET, seed=2))) not in found


def test_every_arm_reads_everything_once_and_brings_all_live() -> None:
    total = sum(partition.size for partition in FLEET.draw())
    for found in simulate(FLEET):
        assert found.rate.total == pytest.approx(total)
        assert len(found.partitions) == FLEET.partitions
        assert len(found.hot) == FLEET.hot_sessions
        assert found.hot == sorted(found.hot)
        # Nobody is live before the partition could have been taken over.
        assert found.hot[0] > FLEET.start_s / 2 + FLEET.takeover_s


def test_brokers_send_no_more_than_they_can_and_workers_take_no_more_than_they_may() -> None:
    storm, capped, polite = simulate(FLEET)
    assert storm.rate.peak <= FLEET.brokers_bytes_per_s * 1.0001
    assert storm.rate.peak > 0.9 * FLEET.brokers_bytes_per_s, "the storm is one"
    for found, restores in ((capped, 10), (polite, 2)):
        # A chunk that is read and one on its way per restore, beside what the bucket allows.
        ahead = 2 * restores * chunk_bytes(FLEET, found.arm)
        bound = FLEET.workers * (FLEET.cap_bytes_per_s * (PEAK_WINDOW_S + BURST_S) + ahead)
        assert found.rate.peak * PEAK_WINDOW_S <= bound
    assert storm.rate.peak >= 3 * polite.rate.peak


def test_with_the_same_cap_hot_sessions_are_live_much_sooner_politely() -> None:
    _, capped, polite = simulate(FLEET)
    assert p99(polite) * 2 <= p99(capped)
    # The cap decides when all is there; politeness only who comes first.
    assert polite.partitions[-1] == pytest.approx(capped.partitions[-1], rel=0.2)


def test_without_hot_first_the_order_is_what_helps_and_only_where_there_is_one() -> None:
    """Hot sessions on a tenth of the partitions: unread records put these first."""
    few = replace(FLEET, hot_first=False, hot_partitions=12)
    everywhere = replace(FLEET, hot_first=False)
    assert p99(simulate_arm(few, POLITE)) * 1.5 <= p99(simulate_arm(few, CAPPED))
    assert p99(simulate_arm(everywhere, POLITE)) == pytest.approx(
        p99(simulate_arm(everywhere, CAPPED)), rel=0.2
    )


def test_core_partitions_come_first() -> None:
    """Goal: restore_first is honoured. Method: all hot sessions on one partition, the first of its worker by
    unread records anyway; named, it has no jitter either."""
    models = (replace(FLEET, seed=n, hot_first=False, hot_partitions=1, hot_sessions=20) for n in range(99))
    hot_one = ((model, next(p.number for p in model.draw() if p.hot)) for model in models)
    model, where = next((model, where) for model, where in hot_one if where < model.workers)
    named = replace(model, core_partitions=where + 1)
    assert simulate_arm(named, POLITE).hot[-1] < simulate_arm(model, POLITE).hot[-1]
    assert simulate_arm(named, STORM).hot == simulate_arm(model, STORM).hot, "impolite is impolite"


def test_small_partitions_are_not_read_from_their_end() -> None:
    """As in the engine: below 10 000 records the whole is there as soon as a part would be."""
    small = replace(FLEET, bytes_per_partition=5 * MB)
    on, off = (simulate_arm(replace(small, hot_first=value), POLITE) for value in (True, False))
    assert trace([on]) == trace([off])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workers": 0}, "workers must be above 0"),
        ({"hot_partitions": 121}, "hot-partitions"),
        ({"hot_tail": 1.5}, "hot-tail"),
        ({"partitions": 200_000}, "memory"),
        ({"bytes_per_partition": 1e12}, "simulate fewer"),
    ],
)
def test_what_cannot_be_or_would_not_end_is_refused(change: dict[str, float], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        simulate(replace(FLEET, **change))  # type: ignore[arg-type]


def test_the_command_prints_the_documented_keys_and_saves_report_and_chart(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "storm", "--simulate", "--json"]
    sizes = ["--workers=12", "--partitions=24", "--hot-sessions=240", "--bytes-per-partition=20e6"]
    result = subprocess.run(
        [*command, *sizes, "--out", str(tmp_path)], capture_output=True, text=True, check=True
    )
    row = json.loads(result.stdout.splitlines()[-1])
    model = FleetModel(workers=12, partitions=24, hot_sessions=240, bytes_per_partition=20e6)
    expected = simulated_report(model, simulate(model))
    assert list(row) == list(expected)
    assert {**row, "files": {}} == expected
    assert json.loads((tmp_path / "report.json").read_text()) == row
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")
    assert "hot sessions live" in result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--simulate", "--quick"], "--quick"),
        (["--simulate", "--sessions=5"], "--sessions"),
        (["--cores=2"], "--cores"),
        (["--sabotage=nothing"], "lose-state"),
        (["--workers=9", "--partitions=3"], "fewer partitions"),
    ],
)
def test_options_of_the_other_kind_are_refused_before_anything_starts(options: list[str], text: str) -> None:
    command = [sys.executable, "-m", "refold.cli.main", "verify", "storm", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 64
    assert text in result.stderr
    assert "Traceback" not in result.stderr
