"""An outage of all brokers, as a client's user hears of it: two lines, and the cause in the errors."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from refold.broker.ports import LOOPBACK
from refold.client import Refold
from refold.client import connection as connections
from refold.client import watch as watches
from refold.client.receipts import Refused, Ruling
from refold.client.watch import Watch
from refold.core.codes import REJECT_CODES, WAY_OUT, RejectCode
from refold.errors import TransientError, UnavailableError
from refold.servers import with_cause

#: A port of the discard service: nothing listens there, and none is given to anybody.
NOBODY = f"{LOOPBACK}:9"
NOTHING_LISTENS = f"nothing listens on {NOBODY}"
BROKEN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")


class Cluster:
    """``answers``: whether a question is answered."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer"))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def watch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Watch]:
    caplog.set_level(logging.INFO, "refold.client")
    monkeypatch.setattr(watches, "PAUSE_S", 0.0)
    made = Watch(NOBODY, cluster.ask)
    yield made
    await made.close()


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(one.levelno, one.getMessage()) for one in caplog.records if one.name == "refold.client"]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - a condition of other threads
            await asyncio.sleep(0.01)


async def test_an_outage_is_one_warning_and_its_end_one_line(
    watch: Watch, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: however often connections break and however long it lasts. librdkafka tells on threads."""
    cluster.answers = False
    threads = [threading.Thread(target=watch.told, args=(BROKEN,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await until(lambda: cluster.asked > 20)
    watch.told(BROKEN)
    [(level, text)] = lines(caplog)
    assert level == logging.WARNING
    assert text.startswith("cluster_lost ")
    assert NOTHING_LISTENS in text
    cluster.answers = True
    await until(lambda: len(lines(caplog)) > 1)
    [_, (level, text)] = lines(caplog)
    assert (level, text.split()[0]) == (logging.INFO, "cluster_back")
    asked = cluster.asked
    watch.doubt()
    await until(lambda: cluster.asked > asked)
    assert cluster.asked == asked + 1, "answered: no more is asked"
    assert len(lines(caplog)) == 2


async def test_a_broken_connection_while_others_answer_is_no_outage(
    watch: Watch, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    watch.told(BROKEN)
    await until(lambda: cluster.asked == 1)
    watch.told(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    await asyncio.sleep(0.05)
    assert (cluster.asked, lines(caplog)) == (1, [])


async def test_errors_of_an_outage_end_with_its_cause(watch: Watch, cluster: Cluster) -> None:
    """Goal: one text, for the log and for whoever prints the exception; none before and none after."""
    assert str(watch.because(TransientError("not acknowledged"))) == "not acknowledged"
    cluster.answers = False
    watch.doubt()
    await until(lambda: watch.because(TransientError("x")).cause is not None)
    assert (
        str(watch.because(TransientError("not acknowledged")))
        == f"not acknowledged. Cause: {NOTHING_LISTENS}."
    )
    cluster.answers = True
    await until(lambda: watch.because(TransientError("x")).cause is None)


async def test_a_closed_watch_asks_nobody(watch: Watch, cluster: Cluster) -> None:
    await watch.close()
    watch.told(BROKEN)
    watch.doubt()
    await asyncio.sleep(0.05)
    assert cluster.asked == 0


async def test_a_client_that_finds_nobody_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "METADATA_TIMEOUT_S", 0.5)
    with pytest.raises(UnavailableError) as raised:
        async with Refold(bootstrap=NOBODY):
            pass
    text = str(raised.value)
    assert text.endswith(f"Cause: {NOTHING_LISTENS}.")
    assert "`refold broker up`" in text
    assert "bootstrap=" in text
    assert str(with_cause(raised.value)) == text, "a command adds nothing to it"


@pytest.mark.parametrize("code", REJECT_CODES)
def test_a_refusal_says_what_to_do(code: RejectCode) -> None:
    refused = Refused("e1", Ruling("rejected", None, code, "because"))
    assert str(refused) == f"event e1 was rejected, {code}: because. What to do: {WAY_OUT[code]}."


def test_a_refusal_of_a_newer_version_says_what_it_can() -> None:
    assert str(Refused("e1", Ruling("rejected", None, "new_code", "so"))).endswith("new_code: so.")
