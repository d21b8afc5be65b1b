"""Foreign partitioners feed the same sessions at once: one owner each, each producer's order kept.

librdkafka's default (CRC32) sends most keys elsewhere than Java's murmur2, but one key always to one place:
its records are forwarded in order. A random partitioner spreads one session over all partitions, which are
read in no common order: then order is kept by waiting for rulings, or, with a producer stamp, by refusing to
go back (rule U1), which drops what was overtaken. docs/concepts/bad-input.md says so.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from engine.cluster import Cluster, wait_for
from engine.traffic import TENANT, message_event
from engine.workers import Worker, wait_ruled
from refold.core.slots import SlotMap, make_key
from refold.testing.kafka import Kafka
from refold.topology import Topology
from refold.wire.envelope import encode_envelope
from refold.wire.journal import decode_journal

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = 4
SESSIONS = [f"s{number}" for number in range(12)]
EVENTS = 25
ROUNDS = 4


class Feeder:
    """One producer process's worth of events: ``events`` per session, in order, by one partitioner."""

    def __init__(self, cluster: Cluster, name: str, partitioner: str, *, stamped: bool) -> None:
        self.name = name
        self.stamped = stamped
        self.sent: dict[str, list[str]] = {session: [] for session in SESSIONS}
        self.failed: list[object] = []
        self._inbox = cluster.topics.inbox
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "partitioner": partitioner,
                "enable.idempotence": True,
                "linger.ms": 1,
            }
        )

    def round(self) -> None:
        """One more event of every session."""
        for session, ids in self.sent.items():
            number = len(ids) + 1
            stamp = {"producer_id": self.name, "producer_epoch": 1, "producer_counter": number}
            env = message_event(
                number,
                session,
                event_id=f"{self.name}-{session}-{number}",
                type=f"acme.{self.name}",
                payload=b"",
                **(stamp if self.stamped else {}),
            )
            ids.append(env.event_id)
            self._producer.produce(
                self._inbox,
                encode_envelope(env),
                make_key(TENANT, session),
                on_delivery=lambda error, _: self.failed.append(error) if error else None,
            )

    def flush(self) -> None:
        assert self._producer.flush(30) == 0
        assert self.failed == []

    def run(self) -> None:
        for _ in range(EVENTS):
            self.round()
        self._producer.flush(30)


@pytest.fixture
def cluster(kafka: Kafka) -> Cluster:
    prefix = f"partitioners-{uuid.uuid4().hex[:8]}"
    Topology.load(prefix, partitions=PARTITIONS).apply(kafka.bootstrap)
    return Cluster(kafka.bootstrap, prefix, partitions=PARTITIONS)


def test_one_owner_and_each_producers_order(cluster: Cluster, tmp_path: Path) -> None:
    """Goal: five producers at once on two workers; per session one partition, per producer its order."""
    java = Feeder(cluster, "java", "murmur2_random", stamped=True)
    crc32 = Feeder(cluster, "crc32", "consistent_random", stamped=True)
    plain = Feeder(cluster, "random-plain", "random", stamped=False)
    waiting = Feeder(cluster, "random-waiting", "random", stamped=True)
    overtaking = Feeder(cluster, "random-overtaking", "random", stamped=True)
    threads = [threading.Thread(target=f.run) for f in (java, crc32, plain, overtaking)]
    with Worker(cluster, tmp_path, "a") as a, Worker(cluster, tmp_path, "b") as b:
        wait_for("both workers to own some", lambda: bool(a.live()) and bool(b.live()))
        for thread in threads:
            thread.start()
        for _ in range(ROUNDS):
            # What the SDK's `wait="accepted"` does: the next event only when the last one was ruled on.
            waiting.round()
            waiting.flush()
            ids = {ids[-1] for ids in waiting.sent.values()}
            wait_for("the round's rulings", lambda ids=ids: ids <= journalled(cluster))  # type: ignore[misc]
        for thread in threads:
            thread.join()
        wait_ruled(cluster)
        owners = cluster.members()
        assert sorted(n for owned in owners.values() for n in owned) == list(range(PARTITIONS))
        assert all(owners[name] for name in ("a", "b"))
        assert a.stop() == b.stop() == 0
    for feeder in (java, crc32, plain, waiting, overtaking):
        feeder.flush()
    order = orders(cluster)
    for feeder in (java, crc32, waiting):
        assert order[feeder.name] == feeder.sent, feeder.name
    unordered = {session: sorted(ids) for session, ids in order[plain.name].items()}
    assert unordered == {session: sorted(ids) for session, ids in plain.sent.items()}
    for session, ids in order[overtaking.name].items():
        numbers = [int(event_id.rsplit("-", 1)[1]) for event_id in ids]
        assert numbers == sorted(set(numbers)), session
        assert numbers[-1] == EVENTS, session
    assert cluster.read(cluster.topics.rejected) == []
    assert astray(cluster) > EVENTS


def journalled(cluster: Cluster) -> set[str]:
    return {decode_journal(m.value()).env.event_id for m in cluster.read(cluster.topics.journal)}


def orders(cluster: Cluster) -> dict[str, dict[str, list[str]]]:
    """Producer → session → event ids as journalled; every record at home, every session gapless."""
    slots = SlotMap(PARTITIONS)
    seqs: dict[bytes, int] = defaultdict(int)
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: {session: [] for session in SESSIONS})
    for message in cluster.read(cluster.topics.journal):
        key = message.key()
        assert message.partition() == slots.partition(key)
        entry = decode_journal(message.value())
        seqs[key] += 1
        assert entry.seq == seqs[key]
        found[entry.env.type.removeprefix("acme.")][entry.env.session].append(entry.env.event_id)
    return found


def astray(cluster: Cluster) -> int:
    """Inbox records on another partition than their key's."""
    slots = SlotMap(PARTITIONS)
    return sum(m.partition() != slots.partition(m.key()) for m in cluster.read(cluster.topics.inbox))
