"""Goal: restores that are hot first lose, double, reorder, skip and replay nothing, and the simulator would
notice each of these.

Method: seeds under the faults that cause restores; then one piece of the rules H taken away at a time.
"""

from __future__ import annotations

import pytest

from .campaign import run_campaign
from .faults import only
from .parameters import Parameters
from .planted import PLANTED, planted
from .world import World

#: Many takeovers from empty and from half restored disks, and aborts beside them.
RESTORES = only(
    "crash_at_point", "crash_in_restore", "crash_per_s", "shuffle_per_s", "disk_lost", "abortable", factor=4.0
)
BASE = Parameters(seed=201, plan=RESTORES, plan_name="restores", hot_first=True)

#: Seeds tried at most for each fault.
SEEDS_MAX = 50

#: Which found them the last time, where it was not among the first: tried before the others.
FOUND_AT = {
    "later records of a session overtake the one that waits": 210,
    "older history overwrites newer blocks": 213,
    "what was handled beyond the offset is handled again": 235,
}

#: What may be found first, by fault: a crash of the harness would also end a run, and must not count.
FOUND = ("once: ", "oracle: ", "fold: ", "restore: ", "rulings: ", "history: ", "generations: ", "store: ")


def test_restores_that_serve_while_they_read_change_nothing() -> None:
    """Goal: no difference, and the rare situations were met. Method: 10 seeds, everything hot first."""
    campaign = run_campaign(BASE, 10)
    assert not campaign.failed, [(r.failures, r.parameters.command()) for r in campaign.failed]
    for what in ("served partitions", "filled partitions", "offsets with records beyond"):
        assert campaign.compared[what] >= 10, what
    for what in ("kill at after_range", "parking_full", "parking_roomy"):
        assert campaign.happened[what], what


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_fault_is_found(name: str) -> None:
    """Goal and method: see the module. The seed that finds it passes without the fault."""
    seeds = range(BASE.seed, BASE.seed + SEEDS_MAX)
    for seed in sorted(seeds, key=lambda one: one != FOUND_AT.get(name)):
        parameters = Parameters(seed=seed, plan=RESTORES, plan_name="restores", hot_first=True)
        with planted(name):
            result = World(parameters).run()
        if not result.failures:
            continue
        assert result.failures[0].startswith(FOUND), result.failures
        assert World(parameters).run().failures == []
        return
    pytest.fail(f"{name}: not found in {SEEDS_MAX} seeds")
