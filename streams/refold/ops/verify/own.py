"""What a run on a real cluster has for its own: topics and a group under a unique prefix, gone at its end.

So a run touches nothing of the user's, and two runs nothing of each other's.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.errors import UnavailableError
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.cluster import Cluster

#: Where the group's coordinator does not answer; librdkafka's own default would be a minute.
DELETE_GROUP_S_MAX: Final = 10.0


def own_settings(settings: Settings, what: str, seed: int, partitions: int) -> Settings:
    """The user's settings, under a prefix that names the run: ``refold-<what>-<seed>-<8 hex digits>``."""
    prefix = f"refold-{what}-{seed}-{uuid.uuid4().hex[:8]}"
    return settings.model_copy(update={"topic_prefix": prefix, "partitions": partitions})


async def leave(
    settings: Settings,
    directory: Path,
    say: Callable[[str], None],
    *,
    keep: bool,
    kept: str = "data and logs",
) -> None:
    """The end of a run under :func:`own_settings`: ``directory``, topics and group go, or it is said where
    they stay. Raises as :func:`delete`."""
    if keep:
        say(f"kept: topics {settings.topic_prefix}.*, {kept} in {directory}")
        return
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
    topology = Topology.of(settings)
    topics = [topology.full_name(topic.name) for topic in topology.topics]
    await asyncio.to_thread(delete, settings, topics, topology.names.group)


def delete(settings: Settings, topics: Sequence[str], group: str) -> None:
    """Delete them; absent is fine. Blocks: where no broker answers for six seconds, which it then raises.

    Raises a RefoldError for a topic that stays. A group that stays is no error: members of killed processes
    are in it until their session is over, and Kafka forgets it by itself after its topics.
    """
    try:
        Cluster(settings).delete(list(topics))
    except TimeoutError:
        raise UnavailableError(
            f"{settings.kafka.bootstrap} did not delete {', '.join(topics)} in time. Look at the brokers'"
            " logs, then delete them by hand."
        ) from None
    # A client of its own: one that outlived the group's coordinator gets no answer (refold.topology.lasting).
    admin = AdminClient({"log_level": 2, **settings.kafka_config("admin")})
    for future in admin.delete_consumer_groups([group], request_timeout=DELETE_GROUP_S_MAX).values():
        with contextlib.suppress(KafkaException):
            future.result()
