"""A live partition whose store is found bad: closed when no commit writes to it, set aside, restored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.test_holding import PARTITION, UNTIL_S, Held, Nothing, until
from refold.engine.assignment import Partition
from refold.engine.batchfold import BatchFold
from refold.engine.config import EngineConfig
from refold.engine.lifecycle import TABLE, Reopened, State
from refold.engine.metrics import NoMetrics
from refold.engine.overlay import Overlay
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.store import UnreadableStore
from refold.engine.takeover import Cancelled
from refold.errors import StorageError

PATH = Path("p00000")
ROTTEN = UnreadableStore("planted", PATH)


class FakeStore:
    def __init__(self, told: list[tuple[Any, ...]]) -> None:
        self._told = told

    def close(self, *, flush: bool = True) -> None:
        self._told.append(("close", flush))

    def flush(self) -> None:
        raise StorageError("no space left")


class Discarding(Nothing):
    """A cache that notes what it is told."""

    def __init__(self, name: str, told: list[tuple[Any, ...]]) -> None:
        self._name = name
        self._told = told

    def discard_partition(self, number: int) -> None:
        self._told.append((self._name, number))


class Live(Held):
    """One live partition; what happens to its store is in ``told``. It is not restored: nothing is left."""

    _bring_up = BatchFold._bring_up

    def __init__(self) -> None:
        super().__init__(lambda _: 0)
        self._idle = asyncio.Event()
        self._idle.set()
        self._disk_pool = ThreadPoolExecutor(1)
        self.standbys = None
        self.moved: list[str] = []
        self.counted: list[str] = []
        self._log = self._metrics = self  # type: ignore[assignment]
        self._restorer = self  # type: ignore[assignment]
        self.owner.written = self.written = Written(FakeStore(self.told), "", "", "", 0, 0, 0)  # type: ignore[arg-type]

    def set_aside(self, number: int, why: str) -> None:
        self.told.append(("aside", number, why))

    def info(self, event: str, **fields: Any) -> None:
        self.moved.append(fields.get("why", event))

    def error(self, event: str, **_: Any) -> None:
        self.moved.append(event)

    def count(self, name: str, _amount: float = 1, **labels: str) -> None:
        self.counted += [label for key, label in labels.items() if key == "reason"]

    async def _jitter(self, owner: Partition) -> None:
        assert owner.written is None
        self.told.append(("restore", owner.number))
        raise Cancelled


@pytest.fixture
async def live() -> Live:
    made = Live()
    made.batches = Nothing()  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("why", "error", "event", "aside"),
    [
        (Reopened.WRITE, StorageError("disk full"), "store_write_failed", None),
        (Reopened.WRITE, ROTTEN, "store_write_failed", "damaged"),
        (Reopened.READ, ROTTEN, "store_unreadable", "damaged"),
        (Reopened.DIFFERS, StorageError("wrong"), "store_differs", "differs"),
        (Reopened.OLD, StorageError("slow"), "store_too_old", "too_old"),
        (Reopened.ARRIVED, StorageError("a checkpoint"), "checkpoint_arrived", None),
    ],
)
async def test_every_reason_has_its_end(
    live: Live, why: Reopened, error: StorageError, event: str, aside: str | None
) -> None:
    """Goal: only what is bad is set aside: after a full disk what is there is as good as before."""
    live.distrust(live.owner, live.written, error, why)
    assert live.owner.state is State.WAITING
    await until(lambda: ("restore", PARTITION) in live.told, "the restore")
    expected = [("close", False), ("restore", PARTITION)]
    if aside is not None:
        expected.insert(1, ("aside", PARTITION, aside))
    assert live.told == expected
    assert live.moved == [event, why.value]
    assert live.counted == ([] if aside is None else [aside])
    assert why.value in TABLE[State.LIVE][State.WAITING]


async def test_a_commit_in_flight_ends_before_the_store_is_closed(live: Live) -> None:
    """Goal: the commit thread writes to the store of a partition that a read has given up meanwhile; nothing
    more is folded of it at once. What that write meets is no second reason."""
    live.inflight = Overlay()
    live._idle.clear()
    live._unreadable(live.owner, live.written, ROTTEN)
    assert live.assignment.live(PARTITION, live.owner.epoch, live.owner.fetch_epoch) is None
    await asyncio.sleep(0.05)
    assert live.assignment.written(PARTITION) is live.written
    assert live.told == []
    live._unreadable(live.owner, live.written, ROTTEN)
    live._reopen(PARTITION, StorageError("and it could not be written either"))
    live.inflight = None
    live._idle.set()
    await until(lambda: ("restore", PARTITION) in live.told, "the restore")
    assert live.told == [("close", False), ("aside", PARTITION, "damaged"), ("restore", PARTITION)]


async def test_a_store_of_before_is_none_of_todays_business(live: Live) -> None:
    """Goal: who found fault with a copy that was replaced meanwhile (a validation lasts) closes nothing."""
    live.distrust(live.owner, Written(FakeStore([]), "", "", "", 0, 0, 0), ROTTEN, Reopened.DIFFERS)  # type: ignore[arg-type]
    assert live.owner.state is State.LIVE
    live.assignment.add(PARTITION, 9).written = live.written
    live.distrust(live.owner, live.written, ROTTEN, Reopened.DIFFERS)
    assert live.owner.state is State.LIVE
    assert live.told == []


async def test_a_flush_that_fails_is_a_write_that_failed(live: Live) -> None:
    """Goal: the disk is full when it is flushed between commits: the partition is restored, the worker's
    heartbeat goes on."""
    await live.flush_stores()
    await until(lambda: ("restore", PARTITION) in live.told, "the restore")
    assert live.moved[0] == "store_write_failed"


async def test_a_read_on_another_thread_is_told_on_the_loop(live: Live) -> None:
    """Goal: what readers ask for is read on the disk thread; the overlay, the cache and the tasks of a
    partition are the loop's alone."""
    threads: list[int] = []
    real = live._reopen

    def reopen(*given: Any) -> None:
        threads.append(threading.get_ident())
        real(*given)

    live._reopen = reopen  # type: ignore[method-assign]
    await live.on_disk(lambda: live._unreadable(live.owner, live.written, ROTTEN))
    await until(lambda: ("restore", PARTITION) in live.told, "the restore")
    assert threads == [threading.get_ident()]


async def test_what_is_remembered_until_the_commit_in_flight_is_over_goes_too(live: Live) -> None:
    """Goal: its seal may look up the partition's rows as they were before it, and its confirmation remembers
    timers; nothing of that is there when the partition is restored."""
    live.inflight = Overlay()
    live._idle.clear()
    live._unreadable(live.owner, live.written, ROTTEN)
    live.cache, live.sides = Discarding("cache", live.told), Discarding("sides", live.told)  # type: ignore[assignment]
    live.inflight = None
    live._idle.set()
    await until(lambda: ("restore", PARTITION) in live.told, "the restore")
    assert live.told[:3] == [("cache", PARTITION), ("sides", PARTITION), ("close", False)]


class Long:
    """A restorer with restores that last until they are let go, or called off."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.looked: list[Any] = []
        self.let_go = threading.Event()

    def unread(self, numbers: list[int]) -> dict[int, int]:
        self.looked.append(numbers)
        return {}

    def missing(self, number: int) -> float:
        self.looked.append(number)
        return 1.0

    def run(self, number: int, cancelled: Callable[[], bool], _progress: Any) -> Any:
        self.running.add(number)
        while not self.let_go.wait(0.01):
            if cancelled():
                break
        raise Cancelled


class Owning(BatchFold):
    """Partitions come and go; nothing of them is ever served."""

    async def _serve(self, *_: Any) -> None:
        raise AssertionError("nothing is restored hot first here")

    async def _fold_from(self, chunk: Any, at: int) -> int:
        raise AssertionError("nothing is fed")

    def _arrives(self, now: float) -> None:
        raise AssertionError("nothing is fed")

    def _let_go(self) -> None:
        return None


async def test_a_partition_is_given_up_while_all_restore_threads_are_busy(tmp_path: Path) -> None:
    """Goal: partitions that come while others' restores last for minutes, and go again in the next rebalance,
    do not hold it up: it waits for 70 s and then ends the worker."""
    long = Long()
    config = EngineConfig(kafka={}, prefix="t", instance="a", data_dir=tmp_path, restores_max=2)
    owning = Owning(
        config,
        restorer=long,  # type: ignore[arg-type]
        points=Points(),
        metrics=NoMetrics(),
        log=Nothing(),
    )
    owning.poller = owning.batches = Nothing()  # type: ignore[assignment]
    owning._assigned([(0, 1), (1, 2)])
    try:
        await until(lambda: long.running == {0, 1}, "the long restores")
        long.looked.clear()
        owning._assigned([(2, 3), (3, 4), (4, 5)])
        async with asyncio.timeout(UNTIL_S):
            await owning._give_up([2, 3, 4], State.REVOKED)
        assert long.running == {0, 1}
        assert [2, 3, 4] in long.looked
    finally:
        long.let_go.set()
        await owning._give_up([0, 1], State.REVOKED)
