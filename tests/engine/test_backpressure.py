"""Bounded memory between poll and fold: wait a moment, then pause, never stop polling; resume when half is
free."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from refold.engine import poll
from refold.engine.chunks import Chunk
from refold.engine.poll import QUEUED_RECORDS_MAX, Flow, Poller, _Source


class FakeMessage:
    def __init__(self, partition: int, offset: int, size: int = 10) -> None:
        self._place = partition, offset
        self._size = size

    def __len__(self) -> int:
        return self._size

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "t.inbox"

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]


class FakeConsumer:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause(self, partitions: list[Any]) -> None:
        self.calls.append(f"pause {[tp.partition for tp in partitions]}")

    def resume(self, partitions: list[Any]) -> None:
        self.calls.append(f"resume {[tp.partition for tp in partitions]}")


class Listener:
    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def deliver(self, chunks: list[Chunk]) -> None:
        self.chunks += chunks


@pytest.fixture
def poller(monkeypatch: pytest.MonkeyPatch) -> Poller:
    monkeypatch.setattr(poll, "ROOM_WAIT_S", 0.01)
    made = Poller(FakeConsumer(), "t.inbox", Listener(), bootstrap="", log=None)  # type: ignore[arg-type]
    made._sources = {0: _Source(1, "m", 3, 0, True), 1: _Source(2, "m"), 2: _Source(3, "m", 0, 5, True)}
    return made


def take(poller: Poller, partition: int, first: int, count: int, size: int = 10) -> None:
    poller._take([FakeMessage(partition, first + at, size) for at in range(count)])  # type: ignore[misc]


def test_chunks_follow_each_other_and_carry_their_epochs(poller: Poller) -> None:
    take(poller, 0, 0, 3)
    take(poller, 0, 7, 1)  # offsets have gaps where markers are
    chunks = poller._listener.chunks  # type: ignore[attr-defined]
    assert [(c.epoch, c.fetch_epoch, c.follows, c.next_offset) for c in chunks] == [
        (1, 3, 0, 3),
        (1, 3, 3, 8),
    ]
    assert (poller.flow.records, poller.flow.bytes) == (4, 40)


def test_a_partition_that_is_not_fed_yet_delivers_nothing(poller: Poller) -> None:
    take(poller, 1, 0, 5)
    take(poller, 9, 0, 5)
    assert poller._listener.chunks == []  # type: ignore[attr-defined]
    assert poller.flow.records == 0


@pytest.mark.parametrize("limit", ["records", "bytes"])
def test_it_pauses_what_is_fed_and_resumes_at_half(poller: Poller, limit: str) -> None:
    count, size = (QUEUED_RECORDS_MAX // 4, 1) if limit == "records" else (2, poll.QUEUED_BYTES_MAX // 8)
    for at in range(4):
        take(poller, 0, at * count, count, size)
        poller._press()
    calls = poller._consumer.calls  # type: ignore[attr-defined]
    assert calls == ["pause [0, 2]"]
    assert poller.paused == 3
    first, second, third, _ = poller._listener.chunks  # type: ignore[attr-defined]
    poller.flow.done(first)
    poller.flow.done(second)
    poller._press()
    assert calls == ["pause [0, 2]"]
    poller.flow.done(third)
    poller._press()
    assert calls == ["pause [0, 2]", "resume [0, 2]"]


def test_a_parked_partition_stays_parked_whatever_the_back_pressure_does(poller: Poller) -> None:
    calls = poller._consumer.calls  # type: ignore[attr-defined]
    poller._park(0, 1, 2)
    assert calls == [], "a rewind has overtaken it"
    poller._park(0, 1, 3)
    assert calls == ["pause [0]"]
    take(poller, 2, 5, QUEUED_RECORDS_MAX, 1)
    poller._press()
    poller.flow.done(poller._listener.chunks[0])  # type: ignore[attr-defined]
    poller._press()
    assert calls == ["pause [0]", "pause [2]", "resume [2]"]


def test_room_that_comes_within_the_wait_needs_no_pause() -> None:
    flow = Flow()
    chunk = Chunk("t.inbox", 0, 1, 0, 0, [FakeMessage(0, 0)], poll.QUEUED_BYTES_MAX)  # type: ignore[list-item]
    flow.add(chunk.bytes, 1)
    assert flow.full
    threading.Timer(0.02, flow.done, [chunk]).start()
    assert flow.wait_room(60.0)
    assert (flow.bytes, flow.records) == (0, 0)
