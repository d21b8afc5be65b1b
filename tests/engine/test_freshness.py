"""How far behind a worker says it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from refold.engine.freshness import Freshness
from refold.engine.lifecycle import State
from refold.topology.outage import AGAIN_S, Outage


class _Metrics:
    def __init__(self) -> None:
        self.gauges: dict[tuple[str, str], float] = {}

    def gauge(self, name: str, value: float, *, partition: str) -> None:
        self.gauges[name, partition] = value

    def count(self, name: str) -> None:
        self.gauges[name, ""] = self.gauges.get((name, ""), 0) + 1


class _Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def debug(self, *_: Any, **__: Any) -> None: ...

    def warning(self, event: str, **facts: Any) -> None:
        self.lines.append(("warning", event, facts))

    def info(self, event: str, **facts: Any) -> None:
        self.lines.append(("info", event, facts))


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
        self.metrics, self.log = _Metrics(), _Log()
        self.seconds, self.quiet, self.failure, self.silent = 0.0, False, 0, False
        self.outage = Outage(
            "b:1",
            self._ask,
            log=self.log,
            quiet=self._quieten,
            clock=lambda: self.seconds,
        )
        self.freshness = Freshness(
            self,  # type: ignore[arg-type]
            SimpleNamespace(inbox_ends=self._ends),  # type: ignore[arg-type]
            self.metrics,  # type: ignore[arg-type]
            self.outage,
            log=self.log,
            now_ms=lambda: self.now_ms,
        )

    def _quieten(self, on: bool) -> None:
        self.quiet = on

    def _ends(self, numbers: list[int]) -> dict[int, int]:
        assert numbers, "nothing is asked, and so nothing answers"
        if self.failure:
            raise KafkaException(KafkaError(self.failure, "no answer"))
        return dict.fromkeys(numbers, self.end)

    def _ask(self) -> None:
        if self.silent:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer"))

    async def looks(self, failure: int, seconds: int, *, silent: bool = False) -> None:
        """One look a second. ``silent``: no broker answers anything."""
        self.failure, self.silent = failure, silent
        for _ in range(seconds):
            await self.freshness.look(0.0)
            if self.outage.asking is not None:
                await self.outage.asking
            self.seconds += 1.0

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


# --- outages -----------------------------------------------------------------------------------------------

#: What librdkafka says of partitions whose leaders are all gone (measured).
NO_LEADERS = KafkaError._NOENT


@pytest.mark.parametrize("partitions", [0, 1])
async def test_an_outage_is_one_warning_and_its_end_one_line_that_says_how_long_it_was(
    partitions: int,
) -> None:
    """Goal: a log that reads "lost", "back after 41 s", also of a worker that owns nothing at the moment."""
    worker = _Worker()
    del worker.assignment[partitions:]
    await worker.looks(0, 3)
    await worker.looks(NO_LEADERS, 41, silent=True)
    assert worker.quiet
    assert [(level, event) for level, event, _ in worker.log.lines] == [("warning", "cluster_lost")]
    assert worker.log.lines[0][2]["bootstrap"] == "b:1"
    await worker.looks(0, 5)
    assert not worker.quiet
    assert [(level, event) for level, event, _ in worker.log.lines[1:]] == [("info", "cluster_back")]
    assert worker.log.lines[1][2]["after_seconds"] == 41.0


async def test_an_outage_that_goes_on_is_said_again_but_seldom() -> None:
    worker = _Worker()
    await worker.looks(KafkaError._TIMED_OUT, int(3 * AGAIN_S), silent=True)
    assert [event for _, event, _ in worker.log.lines] == ["cluster_lost"] * 3
    assert worker.log.lines[2][2]["seconds"] > 2 * AGAIN_S


async def test_a_moment_without_an_answer_and_leaders_that_move_are_no_outage() -> None:
    worker = _Worker()
    for _ in range(3):
        await worker.looks(KafkaError._TRANSPORT, 1, silent=True)
        await worker.looks(NO_LEADERS, 5)
        await worker.looks(0, 1)
    assert worker.log.lines == []
    assert not worker.quiet
