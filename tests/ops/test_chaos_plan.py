"""A seed decides a run, and every run shows each kind of death."""

from __future__ import annotations

import pytest

from refold.ops.fleet import IN_FLIGHT_POINTS, DeathKind
from refold.ops.verify.chaos import percentiles
from refold.ops.verify.plan import ChaosPlan


def shape(plan: ChaosPlan) -> list[tuple[float, str, str | None]]:
    return [(when, death.kind, death.point) for when, death in plan.deaths()]


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert shape(ChaosPlan(seed=3, seconds=60)) == shape(ChaosPlan(seed=3, seconds=60))
    assert shape(ChaosPlan(seed=3, seconds=60)) != shape(ChaosPlan(seed=4, seconds=60))


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_minute_holds_enough_deaths_of_every_kind(seed: int) -> None:
    deaths = [death for _, death in ChaosPlan(seed=seed, seconds=60).deaths()]
    assert len(deaths) >= 15
    assert {death.kind for death in deaths} == set(DeathKind)
    assert set(IN_FLIGHT_POINTS) <= {death.point for death in deaths}


def test_each_purpose_has_its_own_randomness() -> None:
    """Goal: one more draw in the traffic cannot move a death."""
    plan = ChaosPlan(seed=1, seconds=60)
    before = shape(plan)
    plan.random("traffic").random()
    assert shape(plan) == before


def test_percentiles_are_nearest_rank() -> None:
    assert percentiles([]) == {"p50": None, "p99": None, "max": None}
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0, "max": 3.0}
