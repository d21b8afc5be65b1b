"""Goal: what there is to do and what is armed stays a function of the sessions, and every deadline that comes
fires: whatever dies, moves or aborts. And the simulator would notice each rule that is taken away.

Method: agents beside the workload (``runs.py``) under faults that cause takeovers, aborts and proposals made
too early; then one piece of the rules at a time is missing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from .campaign import run_campaign
from .faults import only
from .parameters import Parameters
from .planted import TIMERS, planted
from .world import World

#: Owners that die or abort with deadlines armed, partitions that move, clocks that are ahead of the broker's.
DEATHS = only(
    "crash_at_point",
    "crash_per_s",
    "stop_at_point",
    "shuffle_per_s",
    "abortable",
    "clock_jump_per_s",
    factor=3.0,
)
BASE = Parameters(seed=401, plan=DEATHS, plan_name="deaths", hot_first=False)

#: Hardly anything but proposals that are made too early.
CLOCKS = only("clock_jump_per_s", factor=30.0)
PLANS = {"a proposal is made once": CLOCKS}

#: Seeds tried at most for each fault.
SEEDS_MAX = 50

#: What may be found first: a crash of the harness would also end a run, and must not count.
FOUND = ("runs: ", "liveness: ", "restore: ")


def test_work_and_timers_follow_the_sessions() -> None:
    """Goal: no difference, and the situations were met. Method: 6 seeds."""
    campaign = run_campaign(BASE, 6)
    assert not campaign.failed, [(r.failures, r.parameters.command()) for r in campaign.failed]
    for what in ("work = f(state)", "timer rows = f(state)", "restored timer rows", "proposals"):
        assert campaign.compared[what] >= 6, what
    for what in ("timer fired", "run leased (new)", "run ready (timed_out)"):
        assert campaign.happened[what], what


@pytest.mark.parametrize("name", sorted(TIMERS))
def test_a_planted_fault_is_found(name: str) -> None:
    """Goal and method: see the module. The seed that finds it passes without the fault."""
    for seed in range(BASE.seed, BASE.seed + SEEDS_MAX):
        parameters = replace(BASE, seed=seed, plan=PLANS.get(name, DEATHS))
        with planted(name):
            result = World(parameters).run()
        if not result.failures:
            continue
        assert result.failures[0].startswith(FOUND), result.failures
        assert World(parameters).run().failures == []
        return
    pytest.fail(f"{name}: not found in {SEEDS_MAX} seeds")
