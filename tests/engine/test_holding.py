"""The inbox waits for batches (rule G10): when what was read to its end stands, and when it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from refold.engine import batchfold
from refold.engine.assignment import Assignment, Partition
from refold.engine.batchfold import BatchFold
from refold.engine.chunks import Chunk
from refold.engine.lifecycle import State
from refold.engine.poll import QUEUED_RECORDS_MAX, Flow
from refold.engine.sessions import Sessions
from refold.errors import StorageError

PARTITION = 0
UNTIL_S = 10.0


class Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def __len__(self) -> int:
        return 1


class Nothing:
    """Poller, source, log and metrics: whatever is called, nothing happens."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


class Telling(Nothing):
    """A poller that notes what it is told."""

    def __init__(self, told: list[tuple[Any, ...]]) -> None:
        self._told = told

    def park(self, *what: int) -> None:
        self._told.append(("park", *what))

    def begin(self, *what: int, anew: bool = False) -> None:
        assert not anew, "its position is all that is wrong"
        self._told.append(("begin", *what))


class Held(BatchFold):
    """All records are finishes that name batches nobody has; ``ruled`` are those that were ruled on."""

    def __init__(self, end: Callable[[int], int]) -> None:
        self.assignment = Assignment()
        self.held_flow = Flow()
        self.told: list[tuple[Any, ...]] = []
        self.poller = Telling(self.told)  # type: ignore[assignment]
        self.batches = self._log = self._metrics = Nothing()  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self._tasks = set()
        self.failure = self._loop.create_future()
        self.current = self.cache = self.sides = self.book = Nothing()  # type: ignore[assignment]
        self.stopping = False
        self.batches_end = end
        self.sessions = Sessions.__new__(Sessions)
        self.sessions._assignment = self.assignment
        self.ruled: list[int] = []
        self.owner = self.assignment.add(PARTITION, 1)
        self.owner.state = State.LIVE
        self.owner.position = self.owner.batches_position = 0

    async def _serve(self, *_: Any) -> None:
        raise AssertionError("nothing is restored hot first here")

    async def _bring_up(self, owner: Partition, **_: Any) -> None:  # type: ignore[override]
        return None

    def chunk(self, first: int, count: int) -> Chunk:
        owner = self.owner
        messages: list[Any] = [Message(first + n) for n in range(count)]
        return Chunk("t.inbox", PARTITION, owner.epoch, owner.fetch_epoch, first, messages, count)

    def hold(self, *chunks: Chunk) -> None:
        self._hold(self.owner, chunks[0], 0)
        for chunk in chunks[1:]:
            self._keep(self.owner, chunk)

    async def _fold_from(self, chunk: Chunk, at: int) -> int:
        owner = self.assignment.live(chunk.partition, chunk.epoch, chunk.fetch_epoch)
        while owner is not None and at < len(chunk):
            record: Any = chunk.messages[at]
            record.partition = PARTITION
            if not self.sessions.caught_up(_Record(record.offset())):  # type: ignore[arg-type]
                return at
            self.ruled.append(record.offset())
            at += 1
            owner.position = record.offset() + 1
        return len(chunk)

    def _arrives(self, now: float) -> None:
        return None

    def _let_go(self) -> None:
        return None


class _Record:
    partition = PARTITION

    def __init__(self, offset: int) -> None:
        self.offset = offset


async def until(condition: Callable[[], bool], what: str) -> None:
    end = asyncio.get_running_loop().time() + UNTIL_S
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


async def test_one_look_serves_all_that_was_there() -> None:
    """Goal: a flood of finishes for batches nobody wrote does not cost a request each."""
    looks = 0

    def end(_partition: int) -> int:
        nonlocal looks
        looks += 1
        return 0

    held = Held(end)
    held.hold(held.chunk(0, 500), held.chunk(500, 500))
    await until(lambda: held.owner.held is None, "all to be ruled")
    assert held.ruled == list(range(1_000))
    assert looks == 1
    held.hold(held.chunk(1_000, 1))
    await until(lambda: held.owner.held is None, "the later one to be ruled")
    assert looks == 2, "what came later may name batches that came later"


@pytest.mark.parametrize("what", ["abort", "store"])
async def test_what_was_read_before_a_rewind_does_not_stand_after_it(what: str) -> None:
    """Goal: the partition is read again from further back while its mark is being asked for; the same record
    then waits anew, for batches that were taken back as well. Otherwise it would be refused for good."""
    asked, answer = threading.Event(), threading.Event()
    looks = 0

    def end(_partition: int) -> int:
        nonlocal looks
        looks += 1
        if looks == 1:
            asked.set()
            assert answer.wait(UNTIL_S)
        return 7

    held = Held(end)
    first = held.owner
    held.hold(held.chunk(0, 1))
    await until(asked.is_set, "the mark to be asked for")
    if what == "abort":
        held._rewind(first, 0, 0)
    else:
        held._reopen(PARTITION, StorageError("planted"))
        first.state, first.position, first.batches_position = State.LIVE, 0, 0
    held._keep(first, held.chunk(0, 1))
    answer.set()
    await until(lambda: looks == 2, "the second look")
    assert held.ruled == []
    first.batches_position = 7
    first.wake()
    await until(lambda: held.ruled == [0], "the ruling")
    assert not held.failure.done()


async def test_a_long_wait_parks_its_partition_and_reads_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a producer's open transaction on batches costs its own partition time and nobody else anything:
    what is held goes, no more is fetched, and it is read again from the waiting record on when the batches
    are there; the look at their end still stands."""
    monkeypatch.setattr(batchfold, "HOLD_S_MAX", 0.02)
    held = Held(lambda _: 7)
    owner = held.owner
    held.hold(held.chunk(0, 10), held.chunk(10, 10))
    assert (held.held_flow.records, held.held_flow.bytes) == (20, 20)
    await until(lambda: bool(held.told), "the partition to be parked")
    held._keep(owner, held.chunk(20, 10))
    assert owner.held is not None
    assert len(owner.held) == held.held_flow.records == held.held_flow.bytes == 0
    assert held.told == [("park", PARTITION, 1, 0)]
    owner.batches_position = 7
    owner.wake()
    await until(lambda: owner.held is None, "it to be over")
    assert held.told[1:] == [("begin", PARTITION, 1, 1, 0)]
    assert (owner.position, owner.batches_position, owner.caught_up) == (0, 7, 20)
    assert await held._fold_from(held.chunk(0, 30), 0) == 20, "what was here when the look was taken"
    assert owner.parked == -1
    assert not held.failure.done()


async def test_what_is_held_is_bounded() -> None:
    """Goal: however much comes during a look, no more is kept than may wait to be folded."""
    look = threading.Event()
    held = Held(lambda _: look.wait(UNTIL_S) and 0)
    held.hold(held.chunk(0, QUEUED_RECORDS_MAX - 1))
    assert held.told == []
    held._keep(held.owner, held.chunk(QUEUED_RECORDS_MAX - 1, 1))
    assert held.told == [("park", PARTITION, 1, 0)]
    assert held.held_flow.records == 0
    look.set()
    await until(lambda: held.owner.held is None, "the look")
    assert held.told[1:] == [("begin", PARTITION, 1, 1, 0)]


async def test_a_rewind_of_a_parked_partition_ends_the_parking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an abort begins the partition again; what is polled then is folded, also if it comes before the
    waiting task has noticed."""
    monkeypatch.setattr(batchfold, "HOLD_S_MAX", 0.02)
    held = Held(lambda _: 7)
    owner = held.owner
    held.hold(held.chunk(0, 1))
    await until(lambda: bool(held.told), "the partition to be parked")
    held._rewind(owner, 0, 0)
    held._keep(owner, held.chunk(0, 1))
    await until(lambda: len(held.told) == 3, "the new wait to be a long one too")
    assert held.told == [
        ("park", PARTITION, 1, 0),
        ("begin", PARTITION, 1, 1, 0),
        ("park", PARTITION, 1, 1),
    ]
    owner.batches_position = 7
    owner.wake()
    await until(lambda: owner.held is None, "it to be over")
    assert held.told[3:] == [("begin", PARTITION, 1, 2, 0)]
    assert held.ruled == []


async def test_a_long_wait_with_nothing_to_park_is_no_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: where sessions wait and not the partition (rules H) nothing is held, and a producer's open
    transaction on batches costs the loop nothing. Method: the time for parking is over at once; what is
    waited for moves after many rounds of the loop."""
    monkeypatch.setattr(batchfold, "HOLD_S_MAX", 0.0)
    monkeypatch.setattr(batchfold, "CATCH_UP_WARN_S", 600.0)
    waits, real = 0, asyncio.wait

    def waiting(*given: Any, **named: Any) -> Any:
        nonlocal waits
        waits += 1
        return real(*given, **named)

    held = Held(lambda _: 7)
    monkeypatch.setattr(asyncio, "wait", waiting)
    waiter = asyncio.ensure_future(held._wait_for_batches(held.owner, held.chunk(0, 0)))
    await until(lambda: waits > 0, "the mark")
    for _ in range(200):
        await asyncio.sleep(0)
    assert waits == 1
    held.owner.batches_position = 7
    held.owner.wake()
    await asyncio.wait_for(waiter, UNTIL_S)
    assert held.told == []
