"""One worker for the pages about agents."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from client.worker_process import refold, worker
from refold.testing.kafka import Kafka


@pytest.fixture(scope="session")
def agents_prefix(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The topic prefix of a running worker; each page has sessions or a tenant of its own."""
    prefix = f"agents-pages-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "1")
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("agents-pages"), "w-0"):
        yield prefix
