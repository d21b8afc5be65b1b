"""A real broker goes away under a client and comes back: what its log and its errors say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.broker import EmbeddedBroker
from refold.client import Refold
from refold.errors import TransientError
from refold.settings import load_settings
from refold.topology import Topology

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PATIENCE_S = 60.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - a condition of other threads
            await asyncio.sleep(0.05)


async def test_an_outage_is_two_lines_and_the_cause_of_what_fails_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: who reads the log of an application, or prints its exception, knows that it is the brokers, and
    since when. Method: a broker of its own stops in order, as in a restart."""

    def said(word: str) -> list[str]:
        texts = [one.getMessage() for one in caplog.records if one.name == "refold.client"]
        return [text for text in texts if text.startswith(word)]

    caplog.set_level(logging.INFO, "refold.client")
    broker = EmbeddedBroker(tmp_path / "broker")
    await asyncio.to_thread(broker.start)
    try:
        Topology.load(prefix="out", partitions=1).apply(broker.bootstrap)
        # Long enough that the outage is known before the event is given up.
        flags = {"topic_prefix": "out", "client.delivery_timeout_ms": 10_000}
        async with Refold(load_settings(None, flags), bootstrap=broker.bootstrap) as rf:
            chat = rf.session("s")
            await chat.append("a word nobody logs")
            await asyncio.to_thread(broker.stop)
            with pytest.raises(TransientError) as raised:
                await chat.append("another word")
            why = f"nothing listens on {broker.bootstrap}"
            assert str(raised.value).endswith(f"Cause: {why}.")
            [lost] = said("cluster_lost")
            assert why in lost
            await asyncio.to_thread(broker.start)
            await until(lambda: bool(said("cluster_back")))
            await chat.retry()
    finally:
        await asyncio.to_thread(broker.stop)
    assert (len(said("cluster_lost")), len(said("cluster_back"))) == (1, 1)
    assert "word" not in caplog.text
