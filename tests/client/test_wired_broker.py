"""The SDK's own producer on real brokers: behind a proxy that cuts its connections, with a broker that hangs,
restarts or refuses, and with leaders that move. Whatever happens, each record is told once what became of it,
and what is told to be in is in the topic once, at that offset."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from engine.producer_world import (
    CUT,
    LATE,
    LOSE,
    PASS,
    RACE,
    Behind,
    behind_proxy,
    once,
    topics,
    visible,
)
from refold.broker import EmbeddedBroker, EmbeddedCluster
from refold.client.delivery import Delivery, Outcome
from refold.client.sender import Sender
from refold.client.wired import carrier as carrier_module
from refold.client.wired import courier as courier_module
from refold.client.wired.courier import SEQUENCES, Courier
from refold.errors import ConfigError, PermissionDenied, TransientError, UsageError
from refold.protocol import requests

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ANSWER_S_MAX = 60.0
PRODUCE = requests.PRODUCE.key

#: No two records of these tests are the same.
NUMBERS = count()


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    with behind_proxy(tmp_path_factory.mktemp("kafka")) as behind:
        yield behind


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "behind" in request.fixturenames:
        request.getfixturevalue("behind").proxy.decide = lambda _: PASS
    names = [thread.name for thread in threading.enumerate()]
    assert not {"refold-delivery", "refold-courier"}.intersection(names)


@asynccontextmanager
async def sending(bootstrap: str, timeout_ms: int = 60_000, **table: Any) -> Any:
    sender = Sender({"bootstrap.servers": bootstrap, **table}, delivery_timeout_ms=timeout_ms)
    try:
        yield sender
    finally:
        await sender.close(0)


class Letters:
    """What was sent to a topic, and what was told of it."""

    def __init__(self, sender: Sender, topic: str) -> None:
        self._sender = sender
        self.topic = topic
        self.told: dict[bytes, list[Outcome]] = {}
        self._all = asyncio.Event()

    def send(self, partitions: Iterable[int], value: bytes = b"") -> list[bytes]:
        sent = []
        for partition in partitions:
            text = b"%d-%d-%s" % (partition, next(NUMBERS), value)
            self.told[text] = []
            headers = (("h", b"v"),)
            self._sender.start(self.topic, b"k%d" % partition, text, headers, partition, self._told(text))
            sent.append(text)
        return sent

    def _told(self, value: bytes) -> Callable[[Outcome], None]:
        def tell(outcome: Outcome) -> None:
            self.told[value].append(outcome)
            if all(self.told.values()):
                self._all.set()

        return tell

    async def answered(self) -> None:
        async with asyncio.timeout(ANSWER_S_MAX):
            while not all(self.told.values()):
                self._all.clear()
                await self._all.wait()

    async def delivered(self) -> None:
        await self.answered()
        wrong = {
            value: told for value, told in self.told.items()
            if len(told) != 1 or not isinstance(told[0], Delivery)
        }  # fmt: skip
        assert not wrong

    async def check(self, bootstrap: str) -> None:
        """What was told to be in is where that said and nowhere else, and nothing is there that was not
        sent."""
        partitions = sorted({int(value.split(b"-")[0]) for value in self.told})
        for partition in partitions:
            found = await asyncio.to_thread(visible, bootstrap, self.topic, partition)
            at = dict(found)
            copies = Counter(value for _, value in found)
            assert copies.keys() <= self.told.keys()
            for value, told in self.told.items():
                if int(value.split(b"-")[0]) != partition:
                    continue
                assert len(told) == 1
                if isinstance(told[0], Delivery):
                    assert told[0].partition == partition
                    assert at[told[0].offset] == value
                    assert copies[value] == 1


def courier_of(sender: Sender) -> Courier:
    assert sender._carrier is not None
    [courier] = sender._carrier._couriers.values()
    return courier


# --- cut connections -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [CUT, LOSE, RACE])
@pytest.mark.parametrize(
    "api",
    [
        pytest.param(requests.API_VERSIONS, id="api-versions"),
        pytest.param(requests.METADATA, id="metadata"),
        pytest.param(requests.INIT_PRODUCER_ID, id="init-producer-id"),
        pytest.param(requests.PRODUCE, id="produce"),
    ],
)
async def test_a_cut_at_any_request_is_not_noticed(
    behind: Behind, topic_prefix: str, api: requests.Api, what: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    behind.proxy.done.clear()
    behind.proxy.decide = once(api.key, what)
    async with sending(behind.bootstrap) as sender:
        letters = Letters(sender, topic)
        for turn in range(3):
            if turn == 1:
                behind.proxy.decide = once(api.key, what)
            letters.send([0, 1, 0, 1])
            await letters.delivered()
        await letters.check(behind.direct)
    assert behind.proxy.done[api.key, what] >= 1


async def test_a_request_that_arrives_late_is_a_repeat(behind: Behind, topic_prefix: str) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    async with sending(behind.bootstrap) as sender:
        letters = Letters(sender, topic)
        for _ in range(3):
            behind.proxy.decide = once(PRODUCE, LATE)
            letters.send([0, 0, 1])
            await letters.delivered()
            assert behind.proxy.deliver() == 1
        await letters.check(behind.direct)


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads take turns a hundred times as often: what one does falls between two steps of another."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager")
async def test_cuts_at_random_under_load(behind: Behind, topic_prefix: str) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic, partitions=4)
    dice = random.Random(7)
    behind.proxy.decide = lambda _: dice.choice([PASS, PASS, PASS, CUT, LOSE, RACE])
    async with sending(behind.bootstrap) as sender:
        letters = Letters(sender, topic)
        for _ in range(60):
            letters.send(range(4))
            await asyncio.sleep(0.005)
        await letters.delivered()
        await letters.check(behind.direct)


# --- sizes and numbers -----------------------------------------------------------------------------------


def large() -> bytes:
    """What compresses is taken: a topic's limit counts what is sent."""
    return os.urandom(8_000).hex().encode()


async def test_of_a_batch_that_is_too_large_only_the_large_record_is_refused(
    behind: Behind, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic, config={"max.message.bytes": "5000"})
    async with sending(behind.bootstrap) as sender:
        letters = Letters(sender, topic)
        letters.send([0, 0, 1])
        [refused] = letters.send([0], large())
        letters.send([0, 0, 1])
        await letters.answered()
        letters.send([0, 0, 1])
        await letters.answered()
        [said] = letters.told.pop(refused)
        assert isinstance(said, UsageError)
        assert "split it" in str(said)
        await letters.delivered()
        await letters.check(behind.direct)


def limit(bootstrap: str, topic: str, size: int) -> None:
    """Returns when the broker keeps to it: it is asked with a record for partition 1."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(ANSWER_S_MAX)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    refused: list[Any] = []
    while not any(refused):
        producer.produce(topic, large(), partition=1, on_delivery=lambda error, _: refused.append(error))
        producer.flush(ANSWER_S_MAX)


async def test_numbers_of_a_batch_that_may_be_in_are_not_used_again(
    behind: Behind, topic_prefix: str
) -> None:
    """Goal: no record is taken for a repeat of another, and told that one's offset. Method: the answer to a
    batch is lost; when it is sent again, its topic takes no such batch any more."""
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    turns = count()

    def decide(key: int) -> str:
        turn = next(turns) if key == PRODUCE else -1
        if turn == 1:
            limit(behind.direct, topic, 5_000)
        return LOSE if turn == 0 else PASS

    async with sending(behind.bootstrap) as sender:
        letters = Letters(sender, topic)
        behind.proxy.decide = decide
        [first] = letters.send([0], large())
        await letters.answered()
        assert next(turns) >= 2
        [said] = letters.told[first]
        assert isinstance(said, TransientError)
        assert "outcome unknown" in str(said), "it is written"
        letters.send([0])
        await letters.answered()
        letters.send([0, 0])
        await letters.answered()
        await letters.check(behind.direct)
        assert sum(isinstance(told[0], Delivery) for told in letters.told.values()) == 3


async def test_a_broker_that_has_lost_count_is_sent_other_numbers(behind: Behind, topic_prefix: str) -> None:
    """Method: numbers that it does not expect; then all records of one partition are deleted as well."""
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    async with sending(behind.bootstrap) as sender:
        letters = Letters(sender, topic)
        letters.send([0, 1])
        await letters.delivered()
        courier = courier_of(sender)
        before = courier._who
        courier._sequences[topic, 0] += 7
        letters.send([0, 1, 0])
        await letters.delivered()
        assert courier._who != before
        await letters.check(behind.direct)
        admin = AdminClient({"bootstrap.servers": behind.direct, "log_level": 0})
        for made in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
            made.result(ANSWER_S_MAX)
        after = Letters(sender, topic)
        after.send([0, 0])
        await after.delivered()
        assert [told[0].offset for told in after.told.values()] == [3, 4]  # type: ignore[union-attr]


async def test_numbers_begin_again_after_the_last(behind: Behind, topic_prefix: str) -> None:
    """Method: a broker that knows nothing of a producer takes any number as its first."""
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    async with sending(behind.bootstrap) as sender:
        letters = Letters(sender, topic)
        letters.send([1])
        await letters.delivered()
        courier = courier_of(sender)
        before = courier._who
        courier._sequences[topic, 0] = SEQUENCES - 2
        for _ in range(3):
            behind.proxy.decide = once(PRODUCE, LOSE)
            letters.send([0, 0, 0])
            await letters.delivered()
        assert courier._who == before
        assert courier._sequences[topic, 0] == 7
        await letters.check(behind.direct)


# --- what is not there, and who may not ------------------------------------------------------------------


async def test_a_topic_that_is_not_there_is_a_matter_of_configuration(
    behind: Behind, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of one of two topics only; of a partition that it has not as well."""
    monkeypatch.setattr(carrier_module, "TOPIC_UNKNOWN_S_MAX", 0.3)
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    async with sending(behind.bootstrap) as sender:
        missing = Letters(sender, f"{topic_prefix}missing")
        missing.send([0, 1])
        there = Letters(sender, topic)
        there.send([0, 1])
        await there.delivered()
        beyond = Letters(sender, topic)
        beyond.send([2])
        for letters in (missing, beyond):
            await letters.answered()
            for [said] in letters.told.values():
                assert isinstance(said, ConfigError)
                assert "topology apply" in str(said)
        topics(behind.direct, missing.topic)
        while True:
            later = Letters(sender, missing.topic)
            later.send([0])
            await later.answered()
            if all(isinstance(said, Delivery) for [said] in later.told.values()):
                break
        await later.check(behind.direct)


async def test_a_name_that_no_topic_can_have_is_told_at_once(behind: Behind) -> None:
    async with sending(behind.bootstrap, timeout_ms=600_000) as sender:
        letters = Letters(sender, "no/topic")
        letters.send([0])
        await letters.answered()
        [[said]] = letters.told.values()
        assert isinstance(said, TransientError)
        assert "outcome unknown" in str(said)


async def test_a_table_that_tunes_the_producer_gets_librdkafkas(behind: Behind, topic_prefix: str) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    async with sending(behind.bootstrap, **{"linger.ms": "1"}) as sender:
        letters = Letters(sender, topic)
        letters.send([0, 1, 0])
        await letters.delivered()
        assert sender._opened is not None
        assert sender._carrier is None
        await letters.check(behind.direct)


JAAS = """
org.apache.kafka.common.security.plain.PlainLoginModule required
  username="broker" password="broker-pw" user_broker="broker-pw" user_some="some-pw" user_none="none-pw"
  user_sees="sees-pw";
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """``some`` may write to `open` and see `shut`, ``sees`` may see both."""
    with EmbeddedBroker(tmp_path_factory.mktemp("secured"), jaas=JAAS) as broker:
        topics(broker.internal_bootstrap, "open", "shut")
        allowed = [
            AclBinding(
                ResourceType.TOPIC, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation,
                AclPermissionType.ALLOW,
            )
            for user, name, operation in (
                ("some", "open", AclOperation.WRITE),
                ("some", "shut", AclOperation.DESCRIBE),
                ("sees", "open", AclOperation.DESCRIBE),
                ("sees", "shut", AclOperation.DESCRIBE),
            )
        ]  # fmt: skip
        admin = AdminClient({"bootstrap.servers": broker.internal_bootstrap})
        for made in admin.create_acls(allowed).values():
            made.result(ANSWER_S_MAX)
        yield broker


def as_user(broker: EmbeddedBroker, user: str, password: str) -> AbstractAsyncContextManager[Sender]:
    table = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user,
        "sasl.password": password,
    }  # fmt: skip
    made: AbstractAsyncContextManager[Sender] = sending(broker.bootstrap, **table)
    return made


@pytest.mark.parametrize("user", ["some", "sees", "none"])
async def test_who_may_not_write_is_told_so_and_others_of_the_request_are_delivered(
    secured: EmbeddedBroker, user: str
) -> None:
    """``some`` is refused by the answer to the records, ``sees`` a producer id, ``none`` the leaders."""
    async with as_user(secured, user, f"{user}-pw") as sender:
        shut, opened = Letters(sender, "shut"), Letters(sender, "open")
        for _ in range(2):
            shut.send([0, 1])
            opened.send([0, 1])
            await shut.answered()
            await opened.answered()
        for [said] in shut.told.values():
            assert isinstance(said, PermissionDenied)
            assert "grant WRITE on it" in str(said)
        if user == "some":
            await opened.delivered()
            await opened.check(secured.internal_bootstrap)


async def test_a_wrong_password_is_told_at_once(secured: EmbeddedBroker) -> None:
    async with as_user(secured, "some", "wrong-pw") as sender:
        letters = Letters(sender, "open")
        letters.send([0, 1])
        await letters.answered()
        for [said] in letters.told.values():
            assert isinstance(said, PermissionDenied)
            assert "credentials" in str(said)
            assert "wrong-pw" not in str(said)


# --- brokers that hang, restart and move -----------------------------------------------------------------


@contextmanager
def suspended(broker: EmbeddedBroker) -> Iterator[None]:
    broker.suspend()
    try:
        yield
    finally:
        broker.resume()


async def test_a_broker_that_hangs_makes_nothing_late(behind: Behind, topic_prefix: str) -> None:
    """Goal: told in time, also what is for a partition whose leader is not known yet; and delivered again
    when the broker goes on, without a second producer."""
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic, partitions=3)
    async with sending(behind.direct, timeout_ms=300) as sender:
        warm = Letters(sender, topic)
        warm.send([0])
        await warm.answered()
        letters = Letters(sender, topic)
        with suspended(behind.broker):
            letters.send([0, 0])
            await asyncio.sleep(0.05)
            letters.send([0, 1, 2])
            await letters.answered()
            for [said] in letters.told.values():
                assert isinstance(said, TransientError)
                assert "outcome unknown" in str(said)
        while True:
            after = Letters(sender, topic)
            after.send([0, 1, 2])
            await after.answered()
            if all(isinstance(said, Delivery) for [said] in after.told.values()):
                break
        places = {(topic, said.partition, said.offset) for [said] in after.told.values()}  # type: ignore[union-attr]
        assert len(places) == 3


async def test_closing_while_a_broker_hangs_tells_everything(behind: Behind, topic_prefix: str) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    sender = Sender({"bootstrap.servers": behind.direct}, delivery_timeout_ms=600_000)
    letters = Letters(sender, topic)
    try:
        letters.send([0, 1])
        await letters.delivered()
        with suspended(behind.broker):
            late = Letters(sender, topic)
            late.send([0, 1, 0, 1])
            await sender.close(0.1)
            for [said] in late.told.values():
                assert isinstance(said, TransientError)
                assert "closed before the event was acknowledged" in str(said)
    finally:
        await sender.close(0)


async def test_a_restart_under_load_loses_nothing_and_repeats_nothing(
    behind: Behind, topic_prefix: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    async with sending(behind.direct) as sender:
        letters = Letters(sender, topic)
        restart = asyncio.create_task(asyncio.to_thread(behind.broker.restart))
        while not restart.done():
            letters.send([0, 1])
            await asyncio.sleep(0.01)
        await restart
        letters.send([0, 1])
        await letters.delivered()
        await letters.check(behind.direct)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """1 GB for the length of these tests. A node that is silent for two seconds leads nothing any more."""
    soon = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "200"}
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), nodes=3, properties=soon) as cluster:
        yield cluster
        for number in cluster.numbers:
            # Sooner done than stopped.
            cluster.kill_node(number)


def led(cluster: EmbeddedCluster, topic: str, *leaders: int) -> None:
    """A topic whose partitions are led by these nodes, with copies on all."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    copies = [[leader, *(other for other in cluster.numbers if other != leader)] for leader in leaders]
    new = NewTopic(topic, len(leaders), replica_assignment=copies)
    for made in admin.create_topics([new]).values():
        made.result(ANSWER_S_MAX)


async def test_a_node_that_hangs_holds_up_no_other_and_what_moves_is_found(
    cluster: EmbeddedCluster, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: first node 1 hangs, the only one that the client was told of and has asked for leaders; it
    would wait for that answer as long as the test. What node 1 led moves. Then node 2 is killed."""
    monkeypatch.setattr(carrier_module, "ANSWER_S_MAX", 2 * ANSWER_S_MAX)
    monkeypatch.setattr(courier_module, "ANSWER_S_MAX", 1.0)
    topic = f"{topic_prefix}t"
    led(cluster, topic, 1, 2, 3)
    node = cluster._of(1)
    async with sending(node.bootstrap) as sender:
        letters = Letters(sender, topic)
        letters.send([0, 1])
        await letters.delivered()
        with suspended(node):
            letters.send([0])
            # Partition 2 is new: its leader is asked for, at the node that hangs.
            letters.send([1, 2])
            await letters.delivered()
        killed = asyncio.create_task(asyncio.to_thread(cluster.kill_node, 2))
        for _ in range(20):
            letters.send([0, 1, 2])
            await asyncio.sleep(0.02)
        await killed
        letters.send([0, 1, 2])
        await letters.delivered()
        await letters.check(cluster.bootstrap)
