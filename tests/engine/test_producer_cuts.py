"""The producer behind a proxy that cuts its connections: before a request is passed on, after it was, and
with what was on its way arriving late. Whatever is cut, readers see each committed record once, in order, and
the offsets committed last."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, TopicPartition

from engine.producer_world import (
    CUT,
    LATE,
    LOSE,
    PASS,
    RACE,
    Behind,
    behind_proxy,
    committed,
    flushed,
    noting,
    once,
    patiently,
    producer,
    settled,
    topics,
    unjoined,
)  # fmt: skip
from refold.protocol import requests
from refold.protocol.dialect import FIRST, SECOND, Dialect

pytestmark = [pytest.mark.broker, pytest.mark.slow]

WRITTEN = (requests.PRODUCE, requests.COMMIT_OFFSETS, requests.END_TRANSACTION)

#: What a transaction sends: the dialect, and a request's key.
SENT = [
    *(
        pytest.param(FIRST, api.key, id=f"first-{api.key}")
        for api in (*WRITTEN, requests.ADD_PARTITIONS, requests.ADD_OFFSETS)
    ),
    *(pytest.param(SECOND, api.key, id=f"second-{api.key}") for api in WRITTEN),
]
BOTH = pytest.mark.parametrize(
    "dialect", [pytest.param(FIRST, id="first"), pytest.param(SECOND, id="second")]
)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    with behind_proxy(tmp_path_factory.mktemp("kafka")) as behind:
        yield behind


@pytest.fixture(autouse=True)
def passing(behind: Behind) -> Iterator[None]:
    yield
    behind.proxy.decide = lambda _: PASS


@pytest.mark.parametrize("what", [CUT, LOSE, RACE])
@pytest.mark.parametrize(("dialect", "key"), SENT)
def test_a_cut_at_any_request_of_a_transaction_is_not_noticed(
    behind: Behind, topic_prefix: str, dialect: Dialect, key: int, what: str
) -> None:
    """Goal: no abort, no second record. Method: the first transaction warms the connections up, the second
    is cut, the third finds the producer as it should be."""
    topic, group = f"{topic_prefix}t", f"{topic_prefix}g"
    topics(behind.direct, topic)
    made = producer(behind.bootstrap, topic, dialect=dialect, group=group)
    meta = unjoined(behind.direct, group)
    told: dict[bytes, int] = {}
    behind.proxy.done.clear()
    for number in range(3):
        if number == 1:
            behind.proxy.decide = once(key, what)
        patiently(made.begin_transaction)
        patiently(
            made.send_offsets_to_transaction, [TopicPartition(topic, 0, number, f"m{number}")], meta, 5.0
        )
        for record in range(3):
            for partition in (0, 1):
                value = b"%d-%d-%d" % (partition, number, record)
                made.produce(topic, value, b"k", partition, noting(told, value))
        flushed(made, 5.0)
        patiently(made.commit_transaction, 5.0)
    assert behind.proxy.done[key, what] == 1
    for partition in (0, 1):
        found = settled(behind.direct, topic, partition, 9)
        assert [v for _, v in found] == [b"%d-%d-%d" % (partition, n, r) for n in range(3) for r in range(3)]
        assert [told[v or b""] for _, v in found] == [offset for offset, _ in found]
    at = committed(behind.direct, group, TopicPartition(topic, 0))
    assert (at.offset, at.metadata) == (2, "m2")


@pytest.mark.parametrize("what", [CUT, LOSE, RACE])
@pytest.mark.parametrize(
    ("dialect", "api"),
    [
        (FIRST, requests.END_TRANSACTION),
        (FIRST, requests.INIT_PRODUCER_ID),
        (SECOND, requests.END_TRANSACTION),
    ],
)
def test_a_cut_in_an_abort_is_not_noticed_either(
    behind: Behind, topic_prefix: str, dialect: Dialect, api: requests.Api, what: str
) -> None:
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    made = producer(behind.bootstrap, topic, dialect=dialect)
    behind.proxy.done.clear()
    for number in range(3):
        patiently(made.begin_transaction)
        made.produce(topic, b"%d" % number, b"k", 0)
        flushed(made, 5.0)
        if number == 1:
            behind.proxy.decide = once(api.key, what)
            patiently(made.abort_transaction, 5.0)
        else:
            patiently(made.commit_transaction, 5.0)
    assert behind.proxy.done[api.key, what] == 1
    assert [v for _, v in settled(behind.direct, topic, 0, 2)] == [b"0", b"2"]


@pytest.mark.parametrize("what", [CUT, LOSE])
@pytest.mark.parametrize(
    ("dialect", "api"), [(FIRST, requests.INIT_PRODUCER_ID), (SECOND, requests.END_TRANSACTION)]
)
def test_a_call_that_times_out_in_an_abort_is_called_again(
    behind: Behind, topic_prefix: str, dialect: Dialect, api: requests.Api, what: str
) -> None:
    """The new epoch's answer is lost at the last moment: the old one must not be used for anything then."""
    topic = f"{topic_prefix}t"
    topics(behind.direct, topic)
    made = producer(behind.bootstrap, topic, dialect=dialect)
    made.begin_transaction()
    made.produce(topic, b"aborted", b"k", 0)
    flushed(made, 5.0)
    times = 0

    def decide(key: int) -> str:
        nonlocal times
        times += key == api.key
        return what if key == api.key and times < 40 else PASS

    behind.proxy.decide = decide
    with pytest.raises(KafkaException) as raised:
        made.abort_transaction(0.3)
    assert raised.value.args[0].retriable()
    behind.proxy.decide = lambda _: PASS
    patiently(made.abort_transaction, 5.0)
    patiently(made.begin_transaction)
    made.produce(topic, b"after", b"k", 0)
    patiently(made.commit_transaction, 5.0)
    assert [v for _, v in settled(behind.direct, topic, 0, 1)] == [b"after"]


@pytest.mark.parametrize(("dialect", "key"), SENT)
def test_what_arrives_in_the_next_transaction_does_nothing_to_it(
    behind: Behind, topic_prefix: str, dialect: Dialect, key: int
) -> None:
    """Goal: a request that was under way when its connection broke, was sent again and answered, and arrives
    when the next transaction is open, must not end it, add to it or write to it."""
    topic, group = f"{topic_prefix}t", f"{topic_prefix}g"
    topics(behind.direct, topic)
    made = producer(behind.bootstrap, topic, dialect=dialect, group=group)
    meta = unjoined(behind.direct, group)

    def open_one(number: int) -> None:
        patiently(made.begin_transaction)
        patiently(made.send_offsets_to_transaction, [TopicPartition(topic, 0, number, "m")], meta, 5.0)
        made.produce(topic, b"%d" % number, b"k", 0)
        flushed(made, 5.0)

    behind.proxy.decide = once(key, LATE)
    open_one(1)
    patiently(made.commit_transaction, 5.0)
    open_one(2)
    assert behind.proxy.deliver() == 1
    patiently(made.abort_transaction, 5.0)
    open_one(3)
    patiently(made.commit_transaction, 5.0)
    assert [v for _, v in settled(behind.direct, topic, 0, 2)] == [b"1", b"3"]
    assert committed(behind.direct, group, TopicPartition(topic, 0)).offset == 3


@BOTH
def test_a_hundred_transactions_cut_at_random(behind: Behind, topic_prefix: str, dialect: Dialect) -> None:
    assert attack(behind, topic_prefix, dialect, seed=0, transactions=100) > 30, "cuts"


def attack(behind: Behind, topic_prefix: str, dialect: Dialect, seed: int, transactions: int = 200) -> int:
    """How many requests were cut."""
    rng = random.Random(seed)
    names, group = [f"{topic_prefix}a", f"{topic_prefix}b"], f"{topic_prefix}g"
    topics(behind.direct, *names)
    places = [(name, partition) for name in names for partition in (0, 1)]
    meta = unjoined(behind.direct, group)
    made = producer(behind.bootstrap, names[0], dialect=dialect, group=group, batch_bytes=600)
    cuts = random.Random(seed + 1_000)
    weights = (88, 4, 4, 4)
    behind.proxy.done.clear()
    behind.proxy.decide = lambda _: cuts.choices((PASS, CUT, LOSE, RACE), weights)[0]
    expected: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    told: dict[tuple[str, int], dict[bytes, int]] = defaultdict(dict)
    offset = -1

    def timeout() -> float:
        return rng.choice((0.01, 0.1, 5.0))

    for number in range(transactions):
        records: list[tuple[tuple[str, int], bytes]] = []
        patiently(made.begin_transaction)
        if with_offsets := rng.random() < 0.8:
            sent = [TopicPartition(names[0], p, number, f"m{number}") for p in (0, 1)]
            patiently(made.send_offsets_to_transaction, sent, meta, timeout())
        for place in places:
            for at in range(rng.choice((0, 1, 3, 20))):
                value = b"%d-%d-" % (number, at) + b"x" * rng.randrange(100)

                made.produce(place[0], value, b"k", place[1], noting(told[place], value))
                records.append((place, value))
            if rng.random() < 0.2:
                flushed(made, timeout())
        if rng.random() < 0.1:
            patiently(lambda: made.abort_transaction(timeout()))
            continue
        if rng.random() < 0.7:
            flushed(made, timeout())
        patiently(lambda: made.commit_transaction(timeout()))
        offset = number if with_offsets else offset
        for place, value in records:
            expected[place].append(value)
    behind.proxy.decide = lambda _: PASS
    for place in places:
        found = settled(behind.direct, *place, len(expected[place]))
        assert [value for _, value in found] == expected[place]
        assert [told[place][value or b""] for _, value in found] == [at for at, _ in found]
    for partition in (0, 1):
        at = committed(behind.direct, group, TopicPartition(names[0], partition))
        assert (at.offset, at.metadata) == (offset, f"m{offset}")
    return sum(count for (_, what), count in behind.proxy.done.items() if what != PASS)
