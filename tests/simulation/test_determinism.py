"""Goal: a run is a function of its seed: the same trace in another process, whatever Python's hash seed
is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .parameters import Parameters
from .world import World

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (11, 12, 13)

PROGRAM = f"""
from tests.simulation.parameters import Parameters
from tests.simulation.world import World
for seed in {SEEDS}:
    print(World(Parameters(seed=seed, plan_name="swarm")).run().digest)
"""


def digests(hash_seed: str) -> list[str]:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": f"{ROOT / 'streams'}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def test_one_seed_is_one_trace() -> None:
    """Method: three seeds in two processes with different PYTHONHASHSEED, and in this one."""
    here = [World(Parameters(seed=seed, plan_name="swarm")).run().digest for seed in SEEDS]
    assert len(set(here)) == len(SEEDS)
    assert digests("0") == here
    assert digests("4242") == here
