"""A call of librdkafka that does not come back ends the worker."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from client.worker_process import Worker, refold
from refold.broker import EmbeddedBroker
from refold.client import Refold
from refold.engine.stuck import LOOKS_MAX, Stuck
from refold.settings import Settings


def test_only_one_call_seen_too_often_is_stuck() -> None:
    stuck = Stuck()
    assert not any(stuck.look(0.0) for _ in range(10 * LOOKS_MAX)), "no call is under way"
    assert not any(stuck.look(float(number)) for number in range(1, 10 * LOOKS_MAX)), "calls come back"
    looks = [stuck.look(7.5) for _ in range(LOOKS_MAX + 1)]
    assert looks == [False] * LOOKS_MAX + [True]
    assert not stuck.look(8.5)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_an_idle_worker_outlives_its_only_broker_s_absence(tmp_path: Path) -> None:
    """Goal: what is sent after the broker came back is ruled on by the same life of the worker. librdkafka's
    default way to find brokers again hung the next commit for ever."""
    prefix = f"away-{uuid.uuid4().hex[:8]}"
    with EmbeddedBroker(directory=tmp_path / "broker") as broker:
        refold(broker.bootstrap, prefix, "topology", "apply", "--partitions", "2")
        worker = Worker(broker.bootstrap, prefix, tmp_path, "a-0")
        worker.start()
        try:
            worker.wait_started()
            async with Refold(Settings(topic_prefix=prefix), bootstrap=broker.bootstrap) as rf:
                assert (await (await rf.session("chat").append("1", message_id="m1")).ruling()).seq == 1
            await asyncio.to_thread(broker.stop)
            await asyncio.sleep(AWAY_S)
            await asyncio.to_thread(broker.start)
            async with Refold(Settings(topic_prefix=prefix), bootstrap=broker.bootstrap) as rf:
                receipt = await rf.session("chat").append("2", message_id="m2")
                assert (await receipt.ruling(timeout=90)).seq == 2
            assert worker.process is not None
            assert worker.process.poll() is None, worker.log
        finally:
            worker.kill()


#: As long as somebody took who was trying it: the worker's session (30 s) outlives it.
AWAY_S = 20.0
