from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from badinput.registry import serving
from badinput.world import World
from engine.workers import Worker
from refold.testing.kafka import Kafka


@pytest.fixture(scope="session")
def world(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Topics, one worker and bystanders, shared by all cases."""
    made = World(kafka.bootstrap, f"badinput-{uuid.uuid4().hex[:8]}")
    try:
        with serving() as url:
            directory = tmp_path_factory.mktemp("badinput")
            with Worker(
                made.cluster, directory, "w", session_timeout_ms=10_000, REFOLD_REGISTRY_URL=url
            ) as worker:
                worker.wait_live(made.cluster.partitions)
                made.populate()
                yield made
                assert worker.stop() == 0
    finally:
        made.close()
