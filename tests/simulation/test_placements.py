"""Goal: how an inbox is cut into batches and where workers die changes nothing.

Method: one inbox, fed a thousand times with other batch boundaries and deaths; and, for inboxes of up to four
events, every place of every commit exhaustively.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from .placements import COMMIT_PLACES, PLACES, Placement, feed, make_inbox

FEEDINGS = 1_000
EVENTS = 30
SESSIONS = 4


def test_one_inbox_in_a_thousand_batchings_and_crash_placements() -> None:
    """Goal: equal journal, state and rejected, byte for byte, and state = fold(journal) after every commit.

    Method: the checkers of the simulator look at every commit of every feeding; the ends are compared with
    each other. Two of three feedings have one worker on one partition, the others two workers that take over.
    """
    chance = random.Random(20_261_129)
    inboxes = {
        (workers, partitions): make_inbox(7, EVENTS, partitions=partitions, sessions=SESSIONS)
        for workers, partitions in ((1, 1), (2, 2))
    }
    ends: dict[tuple[int, int], set[tuple[Any, ...]]] = {shape: set() for shape in inboxes}
    struck: Counter[tuple[str, str]] = Counter()
    batchings: set[tuple[int, ...]] = set()
    compared = 0
    for seed in range(FEEDINGS):
        shape = (2, 2) if seed % 3 == 2 else (1, 1)
        actions = ("kill", "kill", "stop") if shape == (2, 2) else ("kill",)
        placements = [
            Placement(chance.choice(PLACES), chance.randint(1, 4), chance.choice(actions))
            for _ in range(chance.randint(1, 2))
        ]
        outcome = feed(inboxes[shape], placements, seed=seed, workers=shape[0], partitions=shape[1])
        assert not outcome.result.failures, (seed, placements, outcome.result.failures)
        ends[shape].add((outcome.journal, tuple(sorted(outcome.states.items())), outcome.rejected))
        struck.update(placement.place for placement in outcome.struck)
        batchings.add(outcome.batches)
        compared += outcome.result.compared["state = fold(journal)"]
    assert {shape: len(found) for shape, found in ends.items()} == {(1, 1): 1, (2, 2): 1}
    assert all(
        journal and states and rejected for found in ends.values() for journal, states, rejected in found
    )
    assert set(struck) == set(PLACES)
    assert min(struck.values()) >= 10
    assert compared >= 5 * FEEDINGS
    assert len(batchings) >= FEEDINGS // 10


@pytest.mark.parametrize("events", [1, 2, 3, 4])
def test_every_crash_place_and_takeover_position(events: int) -> None:
    """Goal: the small cases, all of them. Method: an inbox of ``events`` records x every place of a commit x
    each of the first commits x kill or stop-until-taken-over, with a second worker that takes over; for the
    smaller two also with the successor killed at each step of its own takeover."""
    inbox = make_inbox(100 + events, events, partitions=1, sessions=1)
    base = feed(inbox, [], seed=1, workers=2, partitions=1)
    assert not base.result.failures
    takeover = PLACES[len(COMMIT_PLACES) :] if events <= 2 else ()
    successors = [None, *(Placement(step, 2, "kill") for step in takeover)]
    hits = 0
    cases = itertools.product(COMMIT_PLACES, range(1, min(events, 2) + 2), ("kill", "stop"), successors)
    for number, (place, nth, action, successor) in enumerate(cases):
        placements = [Placement(place, nth, action), *([] if successor is None else [successor])]
        outcome = feed(inbox, placements, seed=number, workers=2, partitions=1)
        assert not outcome.result.failures, (placements, outcome.result.failures)
        assert (outcome.journal, outcome.states, outcome.rejected) == (
            base.journal,
            base.states,
            base.rejected,
        )
        hits += len(outcome.struck)
    assert hits >= 2 * len(COMMIT_PLACES)
