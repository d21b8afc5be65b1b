"""A partition that librdkafka has lost is fetched again."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

from client.worker_process import Worker, refold
from refold.client import Refold
from refold.engine.stalls import LONE_ATTEMPTS_MAX, STALLED_S, STALLED_S_MAX, Stalls
from refold.settings import Settings
from refold.testing.kafka import Kafka


def test_only_what_waits_and_does_not_move_is_begun_anew() -> None:
    stalls = Stalls()
    assert not stalls.look(0, 1, (5, 0), 0, 0.0), "nothing to read"
    assert not stalls.look(0, 1, (5, 0), 2, 1.0)
    assert not stalls.look(0, 1, (5, 0), 2, 0.9 + STALLED_S)
    assert not stalls.look(0, 1, (6, 0), 2, 1.0 + STALLED_S), "it moves"
    assert not stalls.look(0, 1, (6, 1), 2, 2.0 + 2 * STALLED_S), "batches move"
    assert stalls.look(0, 1, (6, 1), 2, 2.0 + 3 * STALLED_S)
    assert not stalls.look(0, 2, (6, 1), 2, 100.0), "another assignment"
    assert not stalls.look(0, 2, (6, 1), 0, 200.0), "it is at the end"
    assert not stalls.look(0, 2, (6, 1), 2, 201.0), "and counts from new"


def test_it_is_tried_less_and_less_often() -> None:
    stalls, tried = Stalls(), []
    for second in range(1_000):
        if stalls.look(3, 1, (0, 0), 2, float(second)):
            tried.append(second)
    gaps = [after - before for before, after in zip([0, *tried], tried, strict=False)]
    assert gaps[:5] == [STALLED_S, 2 * STALLED_S, 4 * STALLED_S, 8 * STALLED_S, STALLED_S_MAX]
    assert set(gaps[5:]) == {STALLED_S_MAX}


def test_what_may_be_a_marker_is_tried_a_few_times_for_each_end() -> None:
    """A marker at the end of an idle partition is never read: once a minute for ever is a false alarm."""
    stalls = Stalls()
    tried = [second for second in range(1_000) if stalls.look(3, 1, (7, 0), 1, float(second))]
    assert len(tried) == LONE_ATTEMPTS_MAX
    assert stalls.look(3, 1, (7, 0), 2, 1_000.0), "another record came, and is not read either"
    assert not stalls.look(3, 1, (8, 0), 1, 1_100.0)
    assert stalls.look(3, 1, (8, 0), 1, 1_100.0 + STALLED_S), "another end"


def test_partitions_that_left_are_forgotten() -> None:
    stalls = Stalls()
    for number in range(10):
        stalls.look(number, 1, (0, 0), 2, 0.0)
    stalls.keep({4})
    assert not stalls.look(5, 1, (0, 0), 2, STALLED_S)
    assert stalls.look(4, 1, (0, 0), 2, STALLED_S)


@pytest.mark.broker
@pytest.mark.slow
async def test_a_lost_partition_is_fetched_again_and_nothing_is_ruled_on_twice(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Goal: a partition that is assigned and started and never fetched is noticed by its waiting records."""
    prefix = f"lost-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "1")
    program = [sys.executable, str(Path(__file__).with_name("losing_worker.py"))]
    worker = Worker(kafka.bootstrap, prefix, tmp_path, "l-0", program=program)
    worker.start()
    try:
        worker.wait_started()
        async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as rf:
            session = rf.session("chat")
            receipts = [await session.append(f"{n}", message_id=f"m{n}") for n in range(3)]
            assert [(await receipt.ruling()).seq for receipt in receipts] == [1, 2, 3]
            assert [e.payload["message_id"] async for e in session.events()] == ["m0", "m1", "m2"]  # type: ignore[index]
        assert "lost partition 0" in worker.log
        assert '"reads_begun_anew"' in worker.log
    finally:
        worker.kill()
