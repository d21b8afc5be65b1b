"""What a worker with standbys asks the cluster: the group's members, stable ends of changelogs. Blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from confluent_kafka import ConsumerGroupState, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from refold.engine import group
from refold.engine.standby.placement import Roster
from refold.topology.logends import known_ends
from refold.topology.names import TopicNames

REQUEST_TIMEOUT_S: Final = 5.0


def look(admin: AdminClient, topics: TopicNames) -> Roster | None:
    """The group as described; ``None`` while it rebalances (what is described then is half of two
    assignments) or where there is none. Raises ``KafkaException``."""
    described = group.describe(admin, topics.group, REQUEST_TIMEOUT_S)
    if described is None or described.state is not ConsumerGroupState.STABLE:
        return None
    owners: dict[int, str] = {}
    members: set[str] = set()
    for member in described.members:
        instance = group.instance_of(member)
        members.add(instance)
        assigned = [] if member.assignment is None else member.assignment.topic_partitions
        owners.update({tp.partition: instance for tp in assigned if tp.topic == topics.inbox})
    return Roster(frozenset(members), owners)


def stable_ends(
    admin: AdminClient, topics: TopicNames, partitions: Sequence[int]
) -> dict[int, tuple[int, int, int]]:
    """Last stable offsets of state, history and generations per partition, in one request per broker; without
    the partitions of which one has no leader. Raises ``KafkaException``."""
    names = (topics.state, topics.history, topics.generations)
    ends = known_ends(
        admin,
        {TopicPartition(name, number): OffsetSpec.latest() for number in partitions for name in names},
        IsolationLevel.READ_COMMITTED,
        REQUEST_TIMEOUT_S,
    )
    return {
        number: (
            ends[topics.state, number],
            ends[topics.history, number],
            ends[topics.generations, number],
        )
        for number in partitions
        if all((name, number) in ends for name in names)
    }
