"""The workers' group as the cluster describes it. For start-up and ``refold worker status``. Blocks."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from refold.engine.kafkaerrors import error_of

SETTLING_POLL_S: Final = 0.2


def describe(admin: AdminClient, group: str, timeout_s: float) -> Any:
    """The group's description, ``None`` when there is no such group. Asks again, for at most ``timeout_s``
    plus one call, while the group's coordinator is still loading; raises ``KafkaException``."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            return admin.describe_consumer_groups([group], request_timeout=timeout_s)[group].result()
        except KafkaException as raised:
            error = error_of(raised)
            if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            if error is None or not _settling(error) or time.monotonic() > end:
                raise
            time.sleep(SETTLING_POLL_S)


def instance_of(member: Any) -> str:
    """The instance name of a described member; it is part of the client id (``kind|instance|url``)."""
    _, instance, _ = [*(member.client_id or "").split("|", 2), "", ""][:3]
    return instance or member.group_instance_id or str(member.member_id)


def _settling(error: KafkaError) -> bool:
    """A broker that has just started loads its coordinators for a moment; the admin client does not call
    that retriable."""
    return error.retriable() or error.code() in (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
