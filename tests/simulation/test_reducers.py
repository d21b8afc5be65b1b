"""Goal: parts of reducers, and the notes about those that stop, are a function of the journal: whatever dies,
moves or aborts. And nothing else of a session differs where reducers are.

Method: the swarm with two reducers, one of which raises at some events. The oracle folds them by the straight
loop; after every commit the state must be the fold of the journal, byte for byte.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from refold.core import reducers as pure
from refold.core.reducers import Reducer, Registry
from refold.engine.reducers import Guard
from refold.reducers.event import Event, viewer

from .campaign import run_campaign
from .parameters import Parameters

SEEDS = 6
#: An event in so many makes the second reducer raise.
RAISES = 40


def counts(state: Any, event: Event) -> Any:
    """Messages by role and facts by name, with the time of the last one."""
    what = event.payload.get("role") or event.payload.get("name")
    state[what] = state.get(what, 0) + 1
    state["at"] = event.time_ms
    return state


def breaks(state: Any, event: Event) -> Any:
    if zlib.crc32(event.event_id.encode()) % RAISES == 0:
        raise ValueError(event.event_id)
    return {"last": event.event_id, "n": state.get("n", 0) + 1}


@pytest.fixture
def stopped() -> Iterator[Counter[str]]:
    types = frozenset({"MessageAppended", "FactSet"})
    found: Counter[str] = Counter()
    registry = Registry(
        [Reducer("counts", 1, types, b"{}", counts, {}), Reducer("breaks", 1, types, b"{}", breaks, {})],
        viewer({}),
    )
    pure.install(registry)
    still = 0.0
    registry.guard = Guard(
        lambda name, reason: found.update([f"{name} {reason}"]), lambda: still, lambda: still
    )
    yield found
    pure.install(None)


def test_a_swarm_of_faults_changes_nothing_of_the_parts(stopped: Counter[str]) -> None:
    campaign = run_campaign(Parameters(seed=901, plan_name="swarm"), SEEDS)
    assert not campaign.failed, [(r.failures, r.parameters.command()) for r in campaign.failed]
    assert campaign.compared["state = fold(journal)"] > 100
    assert set(stopped) == {"breaks raised"}
    assert stopped["breaks raised"] > SEEDS
