"""Rule S1: which members keep a copy of which partition. Pure; a function of the group's description alone.

A partition's standbys are the first k of the group's members by rendezvous hash, its owner left out. So all
members compute the same from the same description; when a member leaves, only the copies that it kept, or
that its partitions' new owners kept, move; each member keeps about ``k * partitions / members`` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from refold.core.rendezvous import ranking


@dataclass(frozen=True, slots=True)
class Roster:
    """The group at one moment. ``owners``: partition → instance, without partitions that nobody owns."""

    members: frozenset[str]
    owners: Mapping[int, str]


def standbys(partition: int, members: Iterable[str], owner: str | None, k: int) -> list[str]:
    """The instances that keep a copy, first in line first; fewer than ``k`` where there are not enough."""
    return [name for name in ranking(partition, members) if name != owner][:k]


def kept_by(instance: str, roster: Roster, partitions: int, k: int) -> frozenset[int]:
    """The partitions of which ``instance`` is to keep a copy; none where it is not a member."""
    if k <= 0 or instance not in roster.members:
        return frozenset()
    return frozenset(
        number
        for number in range(partitions)
        if instance in standbys(number, roster.members, roster.owners.get(number), k)
    )
