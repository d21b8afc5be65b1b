"""The producer of batches on a fake: strokes that are shared, reports, failures, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from refold.client.generations import courier as courier_module
from refold.client.generations.courier import Courier, Strokes
from refold.client.generations.limits import STROKE_S
from refold.errors import PermissionDenied, RefoldError, TransientError, UsageError


class FakeProducer:
    """Acknowledges at a poll what was produced before the poll before it, unless held."""

    made: FakeProducer

    def __init__(self, config: dict[str, Any]) -> None:
        FakeProducer.made = self
        self.config = config
        self.waiting: list[Callable[[KafkaError | None, Any], None]] = []
        self.values: list[bytes] = []
        self.polls = 0
        self.held = False
        self.full = False
        self.fatal: KafkaError | None = None

    def produce(self, topic: str, *, value: bytes, key: bytes, partition: int, on_delivery: Any) -> None:
        if self.full:
            raise BufferError("Local: Queue full")
        self.values.append(value)
        self.waiting.append(on_delivery)

    def poll(self, timeout: float) -> int:
        assert timeout == 0
        self.polls += 1
        if self.fatal is not None:
            self.report(KafkaError(KafkaError._PURGE_QUEUE))
            raise KafkaException(self.fatal)
        if not self.held:
            self.report(None)
        return 0

    def report(self, error: KafkaError | None) -> None:
        waiting, self.waiting = self.waiting, []
        for told in waiting:
            told(error, None)

    def flush(self, timeout: float) -> int:
        return len(self.waiting)

    def purge(self) -> None:
        self.report(KafkaError(KafkaError._PURGE_INFLIGHT))


@pytest.fixture
async def courier(monkeypatch: pytest.MonkeyPatch) -> Courier:
    monkeypatch.setattr(courier_module, "Producer", FakeProducer)
    return Courier({"linger.ms": "1", "acks": "1"}, 500, "batches")


async def told(courier: Courier, *values: bytes) -> list[RefoldError | None]:
    """Send all of them, wait for all reports."""
    outcomes: list[RefoldError | None] = []
    done = asyncio.Event()

    def tell(outcome: RefoldError | None) -> None:
        outcomes.append(outcome)
        if len(outcomes) == len(values):
            done.set()

    for value in values:
        courier.start(b"t/s", 0, value, tell)
    await asyncio.wait_for(done.wait(), 60)
    return outcomes


async def test_calls_share_strokes_that_are_apart_and_the_first_does_not_wait() -> None:
    loop = asyncio.get_running_loop()
    strokes = Strokes()
    called: list[tuple[int, float]] = []
    done = asyncio.Event()

    def call(number: int) -> Callable[[], None]:
        def now() -> None:
            called.append((number, loop.time()))
            if number < 9:
                strokes.soon(call(number + 3))
            elif len(called) == 12:
                done.set()

        return now

    begun = loop.time()
    for number in range(3):
        strokes.soon(call(number))
    await asyncio.sleep(0)
    assert [number for number, _ in called] == [0, 1, 2]
    await asyncio.wait_for(done.wait(), 60)
    assert [number for number, _ in called] == list(range(12))
    # Three more strokes, each at least the interval after the one before.
    assert called[-1][1] - begun >= 3 * STROKE_S * 0.99


async def test_one_call_that_fails_does_not_stop_the_others() -> None:
    strokes = Strokes()
    done = asyncio.Event()

    def fails() -> None:
        raise ValueError("a fault")

    strokes.soon(fails)
    strokes.soon(done.set)
    await asyncio.wait_for(done.wait(), 60)
    done.clear()
    strokes.soon(done.set)
    await asyncio.wait_for(done.wait(), 60)


async def test_what_is_acknowledged_is_told_and_then_nothing_wakes_the_loop(courier: Courier) -> None:
    assert await told(courier, *(b"%d" % n for n in range(50))) == [None] * 50
    producer = FakeProducer.made
    assert producer.values == [b"%d" % n for n in range(50)]
    assert producer.polls == 1
    assert courier._timer is None
    assert producer.config["enable.idempotence"] is True
    assert (producer.config["acks"], producer.config["linger.ms"]) == ("all", "1")
    await courier.close(0.1)


async def test_a_full_queue_is_certainly_not_written_and_nobody_is_told(courier: Courier) -> None:
    courier.open()
    FakeProducer.made.full = True
    with pytest.raises(TransientError, match="not written"):
        courier.start(b"t/s", 0, b"v", lambda _: pytest.fail("told"))
    await courier.close(0.1)


async def test_a_fatal_error_is_the_reason_of_everything_it_takes_along(courier: Courier) -> None:
    courier.open()
    FakeProducer.made.fatal = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    (outcome,) = await told(courier, b"v")
    assert isinstance(outcome, PermissionDenied)
    await courier.close(0.1)


async def test_who_closes_says_that_the_outcome_is_unknown(courier: Courier) -> None:
    outcomes: list[RefoldError | None] = []
    courier.start(b"t/s", 0, b"v", outcomes.append)
    FakeProducer.made.held = True
    await courier.close(0.1)
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], TransientError)
    with pytest.raises(UsageError, match="closed"):
        courier.start(b"t/s", 0, b"v", outcomes.append)
    courier.open()
    assert len(outcomes) == 1
