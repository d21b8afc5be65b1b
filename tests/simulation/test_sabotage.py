"""Goal: the harness can fail. With each rule of the engine broken on purpose a campaign finds a difference.

Each twice: by the checkers that watch how the rule is kept, and by its consequences alone (journal, state,
rejected, liveness). The very seed that finds it passes without the sabotage. What is found must be what was
broken: a crash of the harness would also end a run, and must not count.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.engine.sabotage import SABOTAGES

from .campaign import run_campaign
from .faults import FaultPlan, only
from .parameters import Parameters
from .world import World

#: Stopped owners whose transaction commits during or after the takeover, and partitions that move politely.
ZOMBIES = replace(only("stop_at_point", "shuffle_per_s", factor=6.0), wake_early=0.7)
DEATHS = only("crash_at_point", "abortable", "shuffle_per_s", factor=4.0)

#: Sabotage -> (plan, beginnings of what may be found, of consequences).
EXPECTED: dict[str, tuple[FaultPlan, tuple[str, ...], tuple[str, ...]]] = {
    "skip-dedup": (DEATHS, ("oracle: journal", "fold: "), ("oracle: journal", "fold: ")),
    "disk-before-commit": (DEATHS, ("store: ",), ("fold: ", "oracle: ")),
    "offsets-before-produce": (DEATHS, ("rule F: ",), ("oracle: ", "fold: ", "generations: ")),
    "fold-misrouted": (DEATHS, ("fold: ",), ("fold: ", "oracle: ")),
    "restore-to-eof": (ZOMBIES, ("restore: ",), ("fold: ", "oracle: ")),
    "timer-without-offsets": (DEATHS, ("rule F: ",), ("fold: ", "once: ")),
    "batches-without-offsets": (DEATHS, ("rule F: ",), ("oracle: ", "once: ", "generations: ")),
    "revoke-without-barrier": (
        ZOMBIES,
        ("offsets: ", "fold: ", "restore: ", "once: ", "exit: ", "store: "),
        ("fold: ", "once: ", "oracle: "),
    ),
}

#: Seeds tried at most for each.
SEEDS_MAX = 60


def test_every_sabotage_is_tried() -> None:
    """Goal: a new switch cannot be forgotten here."""
    assert set(EXPECTED) == set(SABOTAGES)


@pytest.mark.parametrize("outcomes_only", [False, True], ids=["early", "consequences"])
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_a_broken_rule_is_found(name: str, outcomes_only: bool) -> None:
    """Goal and method: see the module."""
    plan, early, late = EXPECTED[name]
    wanted = late if outcomes_only else early
    base = Parameters(
        seed=1, ticks=3_000, events=150, plan=plan, plan_name=name, sabotage=name, outcomes_only=outcomes_only
    )
    seen = []
    for seed in range(1, SEEDS_MAX + 1):
        campaign = run_campaign(replace(base, seed=seed), 1)
        if not campaign.failed:
            continue
        (result,) = campaign.failed
        seen.append(result.failures[0])
        assert not any(word in seen[-1] for word in ("AttributeError", "TypeError", "AssertionError"))
        if result.failures[0].startswith(wanted):
            honest = World(replace(base, seed=seed, sabotage=None, outcomes_only=False)).run()
            assert honest.failures == []
            return
    pytest.fail(f"{name} was not found in {SEEDS_MAX} seeds; seen: {seen}")
