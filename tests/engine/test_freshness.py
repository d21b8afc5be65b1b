"""How far behind a worker says it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from refold.engine.freshness import Freshness
from refold.engine.lifecycle import State


class _Metrics:
    def __init__(self) -> None:
        self.gauges: dict[tuple[str, str], float] = {}

    def gauge(self, name: str, value: float, *, partition: str) -> None:
        self.gauges[name, partition] = value

    def count(self, name: str) -> None:
        self.gauges[name, ""] = self.gauges.get((name, ""), 0) + 1


class _Log:
    def debug(self, *_: Any, **__: Any) -> None: ...

    warning = debug


def _partition(number: int) -> SimpleNamespace:
    return SimpleNamespace(
        number=number,
        epoch=1,
        state=State.LIVE,
        lag=None,
        committed=0,
        position=0,
        batches_position=0,
        parked=-1,
        full=-1,
        ruled_ms=0,
    )


class _Worker:
    """One partition, an inbox that ends at ``end``, and a clock."""

    def __init__(self) -> None:
        self.owner, self.end, self.now_ms = _partition(0), 0, 1_000_000
        self.assignment = [self.owner]
        self.anew: list[int] = []
        self.metrics = _Metrics()
        self.freshness = Freshness(
            self,  # type: ignore[arg-type]
            SimpleNamespace(inbox_ends=lambda numbers: dict.fromkeys(numbers, self.end)),  # type: ignore[arg-type]
            self.metrics,  # type: ignore[arg-type]
            log=_Log(),
            now_ms=lambda: self.now_ms,
        )

    def read_anew(self, owner: Any) -> None:
        self.anew.append(owner.number)

    async def staleness_s(self) -> float:
        oldest = await self.freshness.look(0.0)
        assert self.metrics.gauges["refold_staleness_seconds", "0"] == oldest
        return oldest


async def test_the_age_of_what_waits_is_that_of_what_was_ruled_on_last() -> None:
    worker = _Worker()
    worker.owner.ruled_ms, worker.end = 990_000, 5
    assert await worker.staleness_s() == 10.0
    worker.owner.committed = worker.owner.position = 4
    assert await worker.staleness_s() == 0.0, "what is left may be a marker"
    assert worker.metrics.gauges["refold_lag_records", "0"] == 1


async def test_a_partition_nothing_was_ever_ruled_on_of_grows_stale_too() -> None:
    """It said 0 for ever: a new partition whose records are not read raised no alarm."""
    worker = _Worker()
    assert await worker.staleness_s() == 0.0
    worker.end = 3
    assert await worker.staleness_s() == 0.0
    worker.now_ms += 7_000
    assert await worker.staleness_s() == 7.0
    worker.owner.committed = worker.owner.position = 3
    assert await worker.staleness_s() == 0.0
    worker.end = 9
    assert await worker.staleness_s() == 0.0, "counted anew"


async def test_the_age_does_not_outlive_the_assignment() -> None:
    worker = _Worker()
    worker.end = 3
    await worker.staleness_s()
    worker.assignment.clear()
    assert await worker.freshness.look(0.0) == 0.0
    worker.assignment.append(worker.owner)
    worker.now_ms += 60_000
    assert await worker.staleness_s() == 0.0
