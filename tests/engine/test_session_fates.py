"""Oversized, quarantined, deleted: sessions that meet a limit of the engine, on the real broker.

Every other kind of bad input is in tests/badinput.
"""

from __future__ import annotations

import json
import sys
import textwrap
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.traffic import TENANT, Sent, message_event
from engine.workers import Worker, wait_ruled
from refold.core.slots import SlotMap, make_key
from refold.testing.kafka import Kafka
from refold.wire.envelope import encode_envelope
from refold.wire.journal import decode_journal
from refold.wire.snapshot import decode_snapshot

pytestmark = pytest.mark.broker

SLOTS = SlotMap(4)


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


class Sender:
    """Produces one record at a time and remembers where it went."""

    def __init__(self, cluster: Cluster) -> None:
        self._topic = cluster.topics.inbox
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 2_000_000})
        self.sent = Sent()

    def send(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> tuple[int, int]:
        places: list[tuple[int, int]] = []

        def noted(error: object, message: object) -> None:
            assert error is None
            places.append((message.partition(), message.offset()))  # type: ignore[attr-defined]

        where = SLOTS.partition(key) if partition is None and key else partition or 0
        self._producer.produce(self._topic, value, key, where, on_delivery=noted, headers=headers)
        self._producer.flush(30)
        return places[0]

    def good(self, number: int, session: str, **changes: object) -> None:
        env = message_event(number, session, **changes)
        self.send(encode_envelope(env), make_key(TENANT, session))
        self.sent.accepted.add(env.event_id)
        self.sent.order.setdefault(session, []).append(env.event_id)

    def bad(self, value: bytes | None, key: bytes | None, **where: object) -> tuple[int, int]:
        place = self.send(value, key, **where)  # type: ignore[arg-type]
        self.sent.rejected.add(place)
        return place


def test_oversized_events_are_ruled_on_and_do_not_block(cluster: Cluster, tmp_path: Path) -> None:
    """A 1 MB message through an inbox that takes it, with a journal that does not."""
    tight = Cluster(cluster.bootstrap, cluster.prefix + "-tight")
    tight.create(
        inbox={"max.message.bytes": "2000000"},
        journal={"max.message.bytes": "500000"},
        rejected={"max.message.bytes": "500000"},
    )
    sender = Sender(tight)
    key = make_key(TENANT, "s1")
    sender.good(1, "s1")
    large = encode_envelope(message_event(2, "s1", text="x" * 900_000))
    place = sender.bad(large, key)
    sender.good(3, "s1")
    with Worker(tight, tmp_path, "a") as worker:
        worker.wait_live(4)
        wait_ruled(tight)
        assert worker.stop() == 0
    assert differences(tight, sender.sent) == []
    (message,) = tight.read(tight.topics.rejected)
    headers = dict(message.headers())
    assert headers["refold-code"] == b"too_large"
    assert headers["refold-value-length"] == str(len(large)).encode()
    assert large.startswith(message.value())
    assert headers["refold-origin"].decode().endswith(f"/{place[0]}/{place[1]}")


#: Raises at one event, in the middle of the fold: a bug of ours, planted.
BROKEN_FOLD = """
import refold.core.evolve, refold.engine.step as step
real = step.evolve
def evolve(session, seq, time_ms, partition, offset, env, event):
    real(session, seq, time_ms, partition, offset, env, event)
    if env.event_id == "e3":
        raise RuntimeError("planted: " + env.event_id)
step.evolve = evolve
from refold.cli.main import main
main(sys.argv[1:])
"""


def test_a_session_whose_fold_raises_is_quarantined_and_the_others_go_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    sender = Sender(cluster)
    for number in range(1, 4):
        sender.good(number, "s1")
    for number in range(10, 20):
        sender.good(number, "s2")
    sender.good(4, "s1")
    for number in (3, 4):
        sender.sent.accepted.discard(f"e{number}")
    del sender.sent.order["s1"]
    worker = Worker(cluster, tmp_path, "a")
    worker.command = [sys.executable, "-c", "import sys\n" + textwrap.dedent(BROKEN_FOLD)]
    with worker:
        worker.wait_live(4)
        wait_ruled(cluster)
        url = next(
            json.loads(line)["url"] for line in worker.log().splitlines() if '"worker_started"' in line
        )
        request = urllib.request.Request(
            f"{url}/v1/sessions/{TENANT}/s1", headers={"Accept": "application/json"}
        )

        def quarantined() -> bool:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return bool(json.loads(answer.read())["status"] == "quarantined")

        # The worker hears of its commit a moment after everybody else.
        wait_for("the state to say so", quarantined)
        assert worker.stop() == 0
    assert '"session_quarantined"' in worker.log()
    assert "planted: e3" not in worker.log()  # the text of an exception may quote payload
    types = Counter(
        decode_journal(message.value()).env.type
        for message in cluster.read(cluster.topics.journal)
        if message.key() == make_key(TENANT, "s1")
    )
    assert types == {"MessageAppended": 2, "SessionQuarantined": 1, "SessionEventParked": 2}
    rejected = cluster.read(cluster.topics.rejected)
    assert [dict(m.headers())["refold-code"] for m in rejected] == [b"quarantined"] * 2
    stored = {m.key(): m.value() for m in cluster.read(cluster.topics.state)}
    snapshot = decode_snapshot(stored[make_key(TENANT, "s1")])
    assert (snapshot["status"], snapshot["parked"], snapshot["seq"]) == ("quarantined", 2, 5)
    assert decode_snapshot(stored[make_key(TENANT, "s2")])["seq"] == 10


def test_deleted_sessions_leave_a_tombstone_and_may_begin_again(cluster: Cluster, tmp_path: Path) -> None:
    """D20, D24: value, delete, value; more than a block of history in between; restart without the disk."""
    sender = Sender(cluster)
    key = make_key(TENANT, "s1")
    for number in range(1, 140):
        sender.good(number, "s1")
    sender.good(500, "s2")
    first = Worker(cluster, tmp_path, "a")
    with first:
        first.wait_live(4)
        wait_ruled(cluster)
        sender.send(None, key)
        sender.send(None, make_key(TENANT, "never-was"))
        wait_ruled(cluster)
        assert {m.key(): m.value() for m in cluster.read(cluster.topics.state)}[key] is None
        blocks = {m.key(): m.value() for m in cluster.read(cluster.topics.history)}
        assert blocks == {b"acme/s1#00000000": None, b"acme/s1#00000001": None}
        sender.good(200, "s1")
        wait_ruled(cluster)
        assert first.stop() == 0
    for name in ("s1",):
        del sender.sent.order[name]
    journal = [decode_journal(m.value()) for m in cluster.read(cluster.topics.journal) if m.key() == key]
    assert [e.seq for e in journal] == [*range(1, 141), 1]
    sender.sent.accepted.add(journal[139].env.event_id)
    second = Worker(cluster, tmp_path, "b")
    with second:
        second.wait_live(4)
        sender.good(201, "s1")
        del sender.sent.order["s1"]
        wait_ruled(cluster)
        assert second.stop() == 0
    last = [decode_journal(m.value()) for m in cluster.read(cluster.topics.journal) if m.key() == key][-1]
    assert (last.seq, last.env.event_id) == (2, "e201")
    stored = {m.key(): m.value() for m in cluster.read(cluster.topics.state)}
    assert decode_snapshot(stored[key])["seq"] == 2
