"""Goal: whatever RocksDB had not written when its process died, what is restored is what the logs say.

Method: the commands of this package, shortened: ``python -m tests.plug --rounds 200`` and ``--processes
--rounds 30`` are the long ones. As processes of their own, because a process that has threads must not fork.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .__main__ import missed_places
from .inprocess import DECK, NAMES, Tally, draw
from .processes import PLACES
from .world import MOMENT

ROOT = Path(__file__).resolve().parents[2]

#: Of a machine with much else to do.
SECONDS_MAX = 300


def pulled(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.plug", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.stdout.count("\n") == 1, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(SECONDS_MAX + 30)
def test_twenty_deaths_at_named_points() -> None:
    """Goal: after each death every row of every partition equals the folds. Method: a round for each place
    and a few more; warm and empty disks among them."""
    status, told = pulled("--rounds", "20")
    assert told["failures"] == []
    assert (status, told["rounds"], told["missed"]) == (0, 20, [])
    assert sum(told["deaths"].values()) + told["not_reached"] == 20
    assert sum(told["deaths"].values()) >= 15
    assert told["in_flight"] >= 2
    assert told["partitions_warm"] + told["partitions_cold"] == 60
    assert told["partitions_warm"] >= 5
    assert told["compared"]["restored partitions"] >= 60
    assert told["compared"]["rows"] > told["compared"]["restored partitions"]


@pytest.mark.timeout(SECONDS_MAX + 30)
def test_a_disk_written_before_the_commit_is_found() -> None:
    """Goal: the comparison can fail. Method: rule A broken on purpose."""
    status, told = pulled("--rounds", "40", "--sabotage", "disk-before-commit")
    assert status == 1
    assert told["violations"] >= 1
    assert "restore: " in told["failures"][0]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 30)
def test_three_real_workers_are_killed() -> None:
    """Goal: the same with real processes and a real Kafka, around a commit."""
    status, told = pulled("--processes", "--rounds", "3")
    assert told["failures"] == []
    assert (status, told["rounds"]) == (0, 3)
    assert told["in_flight"] >= 2
    assert told["compared"]["sessions served"] > 60
    assert told["compared"]["rows on disk"] > 20


def test_the_deck_has_every_place() -> None:
    """Goal: no named point is left out, and a long run that misses one fails."""
    drawn = [draw(random.Random(1), number) for number in range(len(DECK))]
    assert [(armed.name, armed.when) for armed in drawn] == list(DECK)
    assert drawn[-1].name == MOMENT
    tally = Tally(deaths=Counter(NAMES[1:]))
    assert missed_places(NAMES, tally, 2 * len(NAMES)) == [f"nobody died at {NAMES[0]}"]
    assert missed_places(NAMES, tally, len(NAMES)) == []
    assert {"after_begin", "checkpoint_before_manifest", "any"} <= set(PLACES)
