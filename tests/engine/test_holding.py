"""The inbox waits for batches (rule G10): when what was read to its end stands, and when it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from refold.engine.assignment import Assignment, Partition
from refold.engine.batchfold import BatchFold
from refold.engine.chunks import Chunk
from refold.engine.lifecycle import State
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


class Held(BatchFold):
    """All records are finishes that name batches nobody has; ``ruled`` are those that were ruled on."""

    def __init__(self, end: Callable[[int], int]) -> None:
        self.assignment = Assignment()
        self.poller = self.batches = self._log = self._metrics = Nothing()  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self._tasks = set()
        self.failure = self._loop.create_future()
        self.current = self.cache = self.generations = self.book = Nothing()  # type: ignore[assignment]
        self.stopping = False
        self.batches_end = end
        self.sessions = Sessions.__new__(Sessions)
        self.sessions._assignment = self.assignment
        self.ruled: list[int] = []
        self.owner = self.assignment.add(PARTITION, 1)
        self.owner.state = State.LIVE
        self.owner.position = self.owner.batches_position = 0

    async def _bring_up(self, owner: Partition, **_: Any) -> None:  # type: ignore[override]
        return None

    def chunk(self, first: int, count: int) -> Chunk:
        owner = self.owner
        messages: list[Any] = [Message(first + n) for n in range(count)]
        return Chunk("t.inbox", PARTITION, owner.epoch, owner.fetch_epoch, first, messages, count)

    def hold(self, *chunks: Chunk) -> None:
        self._hold(self.owner, chunks[0], 0)
        assert self.owner.held is not None
        self.owner.held.extend(chunks[1:])

    async def _fold_from(self, chunk: Chunk, at: int) -> int:
        owner = self.assignment.live(chunk.partition, chunk.epoch, chunk.fetch_epoch)
        while owner is not None and at < len(chunk):
            record: Any = chunk.messages[at]
            record.partition = PARTITION
            if not self.sessions.caught_up(_Record(record.offset())):  # type: ignore[arg-type]
                return at
            self.ruled.append(record.offset())
            at += 1
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
    assert first.held is not None
    first.held.append(held.chunk(0, 1))
    answer.set()
    await until(lambda: looks == 2, "the second look")
    assert held.ruled == []
    first.batches_position = 7
    first.wake()
    await until(lambda: held.ruled == [0], "the ruling")
    assert not held.failure.done()
