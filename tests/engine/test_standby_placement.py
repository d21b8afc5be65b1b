"""Who keeps which copy: rule S1 without a group."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from refold.core.rendezvous import ranking, score
from refold.engine.standby.placement import Roster, kept_by, standbys

names = st.lists(st.text("abcdefgh-0123456789", min_size=1, max_size=6), min_size=1, max_size=9, unique=True)
partitions = st.integers(0, 200)


def test_scores_are_a_wire_contract() -> None:
    """Workers of two versions, and clients, must come to the same order."""
    assert score(0, "a") == 0xB78B2EF3C704F401
    assert ranking(2, ["w-1", "w-2", "w-3"]) == ["w-2", "w-3", "w-1"]


@given(names, partitions, st.integers(0, 4), st.randoms(use_true_random=False))
def test_all_members_compute_the_same(
    members: list[str], partition: int, k: int, chance: random.Random
) -> None:
    owner = chance.choice([*members, None])
    found = standbys(partition, members, owner, k)
    shuffled = members[:]
    chance.shuffle(shuffled)
    assert standbys(partition, frozenset(shuffled), owner, k) == found
    assert owner not in found
    assert len(found) == len(set(found)) == min(k, len(set(members) - {owner}))
    roster = Roster(frozenset(members), {} if owner is None else {partition: owner})
    keepers = {name for name in members if partition in kept_by(name, roster, partition + 1, k)}
    assert keepers == set(found)


@given(names, partitions, st.integers(1, 4), st.randoms(use_true_random=False))
def test_who_leaves_moves_only_its_own_copies(
    members: list[str], partition: int, k: int, chance: random.Random
) -> None:
    """Goal: minimal movement. A copy is made where one was lost, and nowhere else."""
    owner = chance.choice(members)
    before = standbys(partition, members, owner, k)
    gone = chance.choice(members)
    left = [name for name in members if name != gone]
    if gone == owner:
        # Promoted is whoever the group's assignor takes: from the standbys, or from the others.
        successor = chance.choice(left) if left else None
        after = standbys(partition, left, successor, k)
        lost = {successor} & set(before)
    else:
        after = standbys(partition, left, owner, k)
        lost = {gone} & set(before)
    made = set(after) - set(before)
    assert set(before) - set(after) == lost
    assert len(made) <= len(lost)


def test_copies_are_spread_evenly() -> None:
    """Goal: no member keeps much more than its share. 1 000 partitions over 10 members, k = 2: 200 each, and
    the hash is fixed, so this is no matter of luck."""
    members = [f"worker-{number}" for number in range(10)]
    roster = Roster(frozenset(members), {number: members[number * 10 // 1_000] for number in range(1_000)})
    counts = [len(kept_by(name, roster, 1_000, 2)) for name in members]
    assert sum(counts) == 2_000
    assert min(counts) > 150
    assert max(counts) < 250


def test_one_that_is_no_member_keeps_nothing_and_neither_does_anybody_without_standbys() -> None:
    roster = Roster(frozenset({"a", "b"}), {0: "a", 1: "b"})
    assert kept_by("c", roster, 2, 1) == frozenset()
    assert kept_by("a", roster, 2, 0) == frozenset()
    assert (kept_by("a", roster, 2, 1), kept_by("b", roster, 2, 1)) == ({1}, {0})
