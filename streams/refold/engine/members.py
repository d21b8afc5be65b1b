"""Who is in the workers' group, what they own, and whether they answer. For ``refold worker status``.
Blocks."""

from __future__ import annotations

import http.client
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.engine import group
from refold.topology.failures import explain
from refold.topology.names import TopicNames

REQUEST_TIMEOUT_S: Final = 10.0
PROBE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Member:
    """``ready``: what its readiness probe says, ``None`` when it does not answer."""

    instance: str
    url: str
    host: str
    partitions: tuple[int, ...]
    ready: bool | None

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "partitions": list(self.partitions)}


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
        _, instance, url = [*(member.client_id or "").split("|", 2), "", ""][:3]
        owned = [] if member.assignment is None else member.assignment.topic_partitions
        members.append(
            Member(
                instance or member.group_instance_id or member.member_id,
                url,
                member.host,
                tuple(sorted(tp.partition for tp in owned if tp.topic == topics.inbox)),
                _ready(url),
            )
        )
    return sorted(members, key=lambda member: member.instance)


def _ready(url: str) -> bool | None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname, parts.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/healthz/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
