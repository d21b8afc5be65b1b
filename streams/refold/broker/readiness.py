"""Usable means: a metadata request is answered by *our* cluster and names a broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from refold.broker.ports import LOOPBACK, answers
from refold.broker.properties import NODE_ID

#: 1.5 s on an idle machine, 60 s seen with a load of 30 per core; twice that is a fault, not a slow start.
START_S_MAX: Final = 120.0
#: One probe. A healthy broker answers in milliseconds.
PROBE_S_MAX: Final = 1.0
POLL_S: Final = 0.05


def answers_metadata(
    port: int, cluster_id: str, *, node_id: int = NODE_ID, seconds: float = PROBE_S_MAX
) -> bool:
    """Whether the broker at ``port`` answers for ``cluster_id`` and knows ``node_id`` as a live broker of it.
    Blocks up to ``seconds``."""
    if not answers(port):
        return False  # librdkafka would print a line for every refused connection
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    settings = {"bootstrap.servers": f"{LOOPBACK}:{port}", "log_level": 0, "error_cb": lambda error: None}
    try:
        metadata = AdminClient(settings).list_topics(timeout=seconds)
    except KafkaException:
        return False
    # A broker is listed once it is unfenced; the id tells ours from another one on a port we once had.
    return node_id in metadata.brokers and metadata.cluster_id == cluster_id


def wait_until_usable(
    port: int, cluster_id: str, *, alive: Callable[[], bool], node_id: int = NODE_ID
) -> bool:
    """Block until usable, dead, or START_S_MAX is over. Returns whether it is usable."""
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and alive():
        if answers_metadata(port, cluster_id, node_id=node_id):
            return True
        time.sleep(POLL_S)
    return False
