"""The second polling thread on a real consumer, against librdkafka's own mock cluster: no broker needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from engine.cluster import wait_for
from refold.engine.batchsource import BatchSource
from refold.engine.chunks import Chunk
from refold.engine.poll import QUEUED_BYTES_MAX


class Heard:
    """What the engine would be told."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.failures: list[BaseException] = []

    def deliver(self, chunks: list[Chunk]) -> None:
        self.chunks.extend(chunks)

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def from_epoch(self, epoch: int) -> bool:
        if self.failures:
            raise self.failures[0]
        return any(chunk.epoch == epoch for chunk in self.chunks)


class Quiet:
    def warning(self, *_: Any, **__: Any) -> None:
        return None


@pytest.fixture
def consumer() -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "test.mock.num.brokers": 1,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "allow.auto.create.topics": True,
            "log_level": 0,
        }
    )
    wait_for("the topic", lambda: len(made.list_topics("t", timeout=5).topics["t"].partitions) >= 2)
    return made


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def source(consumer: Consumer, heard: Heard) -> Iterator[BatchSource]:
    made = BatchSource(consumer, "t", heard, bootstrap="mock", log=Quiet())
    made.start()
    yield made
    made.stop(10)
    assert heard.failures == []


def test_a_partition_given_up_while_paused_is_read_when_it_comes_back(
    source: BatchSource, heard: Heard
) -> None:
    """Goal: back-pressure pauses everything, one partition leaves, the pause ends, and it comes back: it is
    read, or the inbox would wait for its batches for ever (rule G10). librdkafka remembers the pause."""
    source.begin(0, 1, 0, 0)
    source.begin(1, 2, 0, 0)
    wait_for("both ends", lambda: heard.from_epoch(1) and heard.from_epoch(2))
    full = Chunk("t", 0, 1, 0, 0, (), QUEUED_BYTES_MAX)
    source.flow.add(full.bytes, 0)
    wait_for("the pause", lambda: source.paused)
    source.end(0, 1)
    wait_for("its end", lambda: 0 not in source._fed)
    source.flow.done(full)
    wait_for("the pause's end", lambda: not source.paused)
    source.begin(0, 3, 0, 0)
    wait_for("its end again", lambda: heard.from_epoch(3))
