"""pytest fixtures for tests that need a real Kafka: ``pytest_plugins = ["refold.testing.kafka"]``.

``REFOLD_TEST_BOOTSTRAP`` uses a cluster of yours (topics are created and left under unique prefixes).
Otherwise one embedded broker is started per test process, on first use; with pytest-xdist that is one per
worker, so that no worker depends on another's life (about 300 MB each).
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from refold.broker import EmbeddedBroker


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the tests' Kafka is. ``broker`` is ``None`` for a cluster of yours: don't kill that one."""

    bootstrap: str
    broker: EmbeddedBroker | None = None


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A running Kafka, shared by the tests of this process: keep to topics under ``topic_prefix``."""
    if given := os.environ.get("REFOLD_TEST_BOOTSTRAP"):
        yield Kafka(given)
        return
    from refold.broker import EmbeddedBroker

    with EmbeddedBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield Kafka(broker.bootstrap, broker)


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """Unique per test, legal in topic, group and transactional-id names, and readable in a log."""
    # Kafka's names end at 249 characters; 60 + 10 leave room for what the test appends.
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60].strip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}-"
