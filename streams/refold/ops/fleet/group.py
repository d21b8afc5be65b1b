"""Who owns which partition, read from the group description as a client would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

#: One description; a coordinator that is busy with a rebalance still answers at once.
DESCRIBE_S_MAX: Final = 10.0


def owners(admin: AdminClient, group: str, topic: str) -> Mapping[int, str]:
    """partition of ``topic`` -> instance name. Empty while the coordinator cannot say. Blocks up to 10 s."""
    try:
        described: Any = admin.describe_consumer_groups([group], request_timeout=DESCRIBE_S_MAX)[
            group
        ].result()
    except KafkaException:
        return {}
    found: dict[int, str] = {}
    for member in described.members:
        instance = member.client_id.split("|")[1] if "|" in member.client_id else member.client_id
        for tp in member.assignment.topic_partitions if member.assignment else ():
            if tp.topic == topic:
                found[tp.partition] = instance
    return found


def owned_by(worker: str, found: Mapping[int, str]) -> tuple[int, ...]:
    """The worker's partitions among what :func:`owners` found."""
    return tuple(sorted(partition for partition, name in found.items() if name == worker))
