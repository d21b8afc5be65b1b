"""Who is in the workers' group, what they own, and whether they answer. For ``refold worker status``.
Blocks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.engine import group
from refold.engine.probe import ask
from refold.topology.failures import explain
from refold.topology.names import TopicNames

REQUEST_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """``ready``: what its readiness probe says, ``None`` when it does not answer. ``states``: what it says of
    each of its partitions (:class:`refold.api.view.PartitionRow`); empty when it does not answer."""

    instance: str
    url: str
    host: str
    partitions: tuple[int, ...]
    ready: bool | None
    states: tuple[dict[str, Any], ...] = ()

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "partitions": list(self.partitions), "states": list(self.states)}


def look(admin: AdminClient, prefix: str, bootstrap: str) -> list[Member]:
    topics = TopicNames(prefix)
    try:
        description = group.describe(admin, topics.group, REQUEST_TIMEOUT_S)
    except KafkaException as raised:
        raise explain(raised, doing="describing the workers' group", bootstrap=bootstrap) from None
    if description is None:
        return []
    members = []
    for member in description.members:
        url = [*(member.client_id or "").split("|", 2), "", ""][2]
        ready = _ready(url)
        owned = [] if member.assignment is None else member.assignment.topic_partitions
        members.append(
            Member(
                group.instance_of(member),
                url,
                member.host,
                tuple(sorted(tp.partition for tp in owned if tp.topic == topics.inbox)),
                ready,
                () if ready is None else _states(url),
            )
        )
    return sorted(members, key=lambda member: member.instance)


def _ready(url: str) -> bool | None:
    answer = ask(url, "/healthz/ready")
    return None if answer is None else answer[0] == 200


def _states(url: str) -> tuple[dict[str, Any], ...]:
    answer = ask(url, "/healthz/partitions")
    if answer is None or answer[0] != 200:
        # Gone meanwhile, or of a version without this page.
        return ()
    try:
        return tuple(json.loads(answer[1])["partitions"])
    except (ValueError, KeyError, TypeError):
        return ()
