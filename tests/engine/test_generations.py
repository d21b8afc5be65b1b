"""Generations on a real broker: rule G10 in every order, markers, records, the review list, the HTTP
answer."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from engine.check import fold_batches
from engine.cluster import ANSWER_S_MAX, Cluster, wait_for
from engine.generation_traffic import Generated, event, started
from engine.traffic import TENANT, message_event
from engine.workers import Worker, wait_ruled
from refold.core.envelope import Envelope
from refold.core.progress import Ack, Batch, Marker
from refold.core.slots import SlotMap, make_key
from refold.testing.kafka import Kafka
from refold.wire.batches import decode_item, encode_item
from refold.wire.envelope import encode_envelope
from refold.wire.journal import decode_journal
from refold.wire.reviews import decode_review

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


class Bench:
    """One worker, and a producer that waits for nothing by itself."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.slots = SlotMap(cluster.partitions)
        self.producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
        self.number = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def append(self, env: Envelope) -> str:
        key = make_key(TENANT, env.session)
        self.producer.produce(self.cluster.topics.inbox, encode_envelope(env), key, self.slots.partition(key))
        self.producer.flush(ANSWER_S_MAX)
        return env.event_id

    def delete(self, session: str) -> None:
        key = make_key(TENANT, session)
        self.producer.produce(self.cluster.topics.inbox, None, key, self.slots.partition(key))
        self.producer.flush(ANSWER_S_MAX)

    def put(self, key: bytes, item: Batch | Ack, producer: Producer | None = None) -> None:
        mine = producer or self.producer
        mine.produce(self.cluster.topics.batches, encode_item(item), key, self.slots.partition(key))
        mine.flush(ANSWER_S_MAX)

    def begin(self, session: str, generation: str) -> Generated:
        """Started, and its begin seen on the topic."""
        made = Generated(session, generation)
        self.append(started(session, self.next(), generation))
        wait_for(f"the begin of {generation}", lambda: self.markers(generation, "begin"))
        return made

    def markers(self, generation: str, kind: str) -> list[Marker]:
        found = []
        for message in self.cluster.read(self.cluster.topics.batches):
            item = decode_item(message.value())
            if isinstance(item, Marker) and (item.generation, item.kind) == (generation, kind):
                found.append(item)
        return found

    def journalled(self) -> list[str]:
        return [
            decode_journal(m.value()).env.event_id for m in self.cluster.read(self.cluster.topics.journal)
        ]

    def rejected(self) -> list[str]:
        return [
            dict(m.headers())["refold-code"].decode() for m in self.cluster.read(self.cluster.topics.rejected)
        ]

    def elsewhere(self, session: str) -> str:
        """A session on another partition."""
        mine = self.slots.partition(make_key(TENANT, session))
        names = (f"e{number}" for number in range(100))
        return next(name for name in names if self.slots.partition(make_key(TENANT, name)) != mine)


@pytest.fixture
def bench(cluster: Cluster) -> Bench:
    return Bench(cluster)


@pytest.fixture
def worker(cluster: Cluster, tmp_path: Path) -> Iterator[Worker]:
    with Worker(cluster, tmp_path, "a") as one:
        one.wait_live(4)
        yield one


def held_producer(cluster: Cluster) -> Producer:
    """Its transaction holds back what it wrote: batches that are there and cannot be read yet."""
    name = f"{cluster.prefix}.held"
    # Open as long as the test wants, and not as long as the machine is quick.
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 300_000,
        }
    )
    producer.init_transactions(ANSWER_S_MAX)
    producer.begin_transaction()
    return producer


def waiting(bench: Bench, cluster: Cluster, session: str = "s1") -> tuple[Generated, Producer, str]:
    """A Finished that was read before its last batch can be."""
    generation = bench.begin(session, "g1")
    bench.put(generation.key, generation.next_batch(b"Hello"))
    held = held_producer(cluster)
    bench.put(generation.key, generation.next_batch(b" world"), held)
    finished = bench.append(generation.finished(bench.next()))
    other = bench.append(message_event(1, bench.elsewhere(session)))
    wait_for("the other partitions to go on", lambda: other in bench.journalled())
    assert finished not in bench.journalled()
    assert bench.rejected() == []
    return generation, held, finished


def test_finished_is_read_first_and_its_batches_later(cluster: Cluster, bench: Bench, worker: Worker) -> None:
    """Goal: G10. Method: the last batch lies in an open transaction; the partition's inbox waits, others go
    on."""
    generation, held, finished = waiting(bench, cluster)
    behind = bench.append(message_event(2, "s1"))
    held.commit_transaction(ANSWER_S_MAX)
    wait_ruled(cluster)
    journal = bench.journalled()
    assert journal.index(finished) < journal.index(behind)
    (end,) = bench.markers("g1", "end")
    assert (end.state, end.last_seq, end.message_id) == ("finished", 2, "m-g1")
    progress = fold_batches(cluster).progress[generation.key + b"#g1"]
    assert (progress.produced, progress.length, progress.ended) == (2, 11, "finished")
    assert worker.stop() == 0


def test_batches_that_never_come(cluster: Cluster, bench: Bench, worker: Worker) -> None:
    """Goal: the same rejection whether they were aborted or never written, and the partition goes on."""
    generation, held, finished = waiting(bench, cluster)
    held.abort_transaction(ANSWER_S_MAX)
    generation.seq, generation.text = 1, b"Hello"
    never = bench.append(generation.finished(bench.next(), last_seq=7))
    # Its chain is not that of one batch: what was aborted is in it.
    behind = bench.append(message_event(2, "s1"))
    wait_ruled(cluster)
    journal = bench.journalled()
    assert behind in journal
    assert finished not in journal
    assert never not in journal
    assert bench.rejected() == ["batches_missing", "batches_missing"]
    assert bench.markers("g1", "end") == []


def test_a_worker_that_waits_for_batches_can_be_stopped(
    cluster: Cluster, bench: Bench, worker: Worker
) -> None:
    _, held, finished = waiting(bench, cluster)
    assert worker.stop() == 0
    held.commit_transaction(ANSWER_S_MAX)
    with worker:
        worker.wait_live(4)
        wait_ruled(cluster)
        assert finished in bench.journalled()


def test_a_partition_that_waits_for_batches_can_be_taken_away(
    cluster: Cluster, bench: Bench, worker: Worker, tmp_path: Path
) -> None:
    """Goal: neither the barrier nor the successor waits for the batches the first owner waited for."""
    _, held, finished = waiting(bench, cluster)
    with Worker(cluster, tmp_path, "b") as second:
        second.wait_live(2)
        worker.signal(signal.SIGKILL)
        worker.wait_end()
        second.wait_live(4)
        held.commit_transaction(ANSWER_S_MAX)
        wait_ruled(cluster)
        assert bench.journalled().count(finished) == 1
        assert len(bench.markers("g1", "end")) == 1
        assert second.stop() == 0


def answer(worker: Worker, path: str) -> tuple[int, Any]:
    url = next(json.loads(line)["url"] for line in worker.log().splitlines() if '"worker_started"' in line)
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=ANSWER_S_MAX) as found:
            return found.status, json.load(found)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_what_the_owner_says_of_a_generation(cluster: Cluster, bench: Bench, worker: Worker) -> None:
    """Goal: row, progress and place, committed only; waits for the begin; forgotten with its session."""
    key = make_key(TENANT, "s1")
    assert answer(worker, "/v1/generations/acme/s1/g1")[0] == 404
    bench.append(started("s1", bench.next(), "g1"))
    status, found = answer(worker, "/v1/generations/acme/s1/g1?wait_ms=10000")
    assert (status, found["topic"], found["partition"]) == (
        200,
        cluster.topics.batches,
        bench.slots.partition(key),
    )
    assert (found["row"]["state"], found["progress"]["attempt"], found["progress"]["produced"]) == (
        "started",
        1,
        0,
    )
    bench.put(key, Batch("g1", 1, 0))
    bench.put(key, Generated("s1", "g1").next_batch(b"text"))
    bench.put(key, Ack("g1", 1, "phone", 1))
    wait_ruled(cluster)

    def produced() -> bool:
        return bool(answer(worker, path)[1]["progress"]["produced"])

    # The worker hears of its commit a moment after everybody else.
    path = "/v1/generations/acme/s1/g1"
    wait_for("the batch in the answer", produced)
    _, found = answer(worker, path)
    assert (found["progress"]["produced"], found["progress"]["length"]) == (1, 4)
    assert [(ack["client"], ack["seq"]) for ack in found["progress"]["acks"]] == [("phone", 1)]
    bench.delete("s1")
    wait_ruled(cluster)
    wait_for("the generation to be forgotten", lambda: answer(worker, path)[0] == 404)
    (end,) = bench.markers("g1", "end")
    assert (end.state, end.error) == ("failed", "session_deleted")
    assert len(bench.markers("g1", "forget")) == 1
    last = {m.key(): m.value() for m in cluster.read(cluster.topics.generations)}
    assert last == {key + b"#g1": None}


def call_event(session: str, number: int, kind: str, **fields: Any) -> Envelope:
    return event(kind, session, number, {"operation_id": "op1", "extra": None, **fields})


def test_a_call_that_waits_for_a_person_is_on_the_review_list_until_it_is_settled(
    cluster: Cluster, bench: Bench, worker: Worker
) -> None:
    """Goal: R1. Method: an unknown outcome, settled by evidence; another one, whose session is deleted."""
    for session in ("s1", "s2"):
        number = bench.next()
        bench.append(call_event(session, number, "ToolCallIntended", tool="refund", arguments='{"order":1}'))
        lease = {"holder": "h1", "lease_ms": 1_000, "attempt": 1}
        bench.append(call_event(session, bench.next(), "ToolCallStarted", **lease))
        bench.append(
            call_event(session, bench.next(), "ToolCallOutcomeUnknown", attempt=1, reason="timed out")
        )
    wait_ruled(cluster)
    items = {m.key(): decode_review(m.value()) for m in cluster.read(cluster.topics.review)}
    first = items[make_key(TENANT, "s1") + b"#op1"]
    assert (first.kind, first.tool, first.arguments, first.attempt, first.reason) == (
        "unknown",
        "refund",
        '{"order":1}',
        1,
        "timed out",
    )
    assert len(items) == 2
    bench.append(call_event("s1", bench.next(), "ToolCallCompleted", summary="done", reconciled=True))
    bench.delete("s2")
    wait_ruled(cluster)
    assert bench.rejected() == []
    last = {m.key(): m.value() for m in cluster.read(cluster.topics.review)}
    assert set(last.values()) == {None}


def test_retention_that_passed_the_committed_offset_costs_the_open_generations_only(
    cluster: Cluster, bench: Bench, worker: Worker
) -> None:
    """Goal: the worker says what is gone and goes on. Method: batches deleted while nobody reads them."""
    generation = bench.begin("s1", "g1")
    bench.put(generation.key, generation.next_batch(b"one"))
    wait_ruled(cluster)
    assert worker.stop() == 0
    bench.put(generation.key, generation.next_batch(b"two"))
    partition = bench.slots.partition(generation.key)
    end = cluster.data_ends(cluster.topics.batches)[partition]
    where = TopicPartition(cluster.topics.batches, partition, end)
    for future in cluster.admin.delete_records([where]).values():
        future.result(ANSWER_S_MAX)
    bench.append(generation.finished(bench.next()))
    ok = bench.append(message_event(2, "s1"))
    with worker:
        worker.wait_live(4)
        assert '"batches_expired"' in worker.log()
        wait_ruled(cluster)
        assert ok in bench.journalled()
        assert bench.rejected() == ["batches_missing"]
        assert worker.stop() == 0


def test_a_deployment_without_the_new_topics_is_told_how_to_add_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    for future in cluster.admin.delete_topics([cluster.topics.batches, cluster.topics.review]).values():
        future.result(ANSWER_S_MAX)

    def gone() -> bool:
        return cluster.topics.batches not in cluster.admin.list_topics(timeout=ANSWER_S_MAX).topics

    wait_for("the topics to be gone", gone)
    with Worker(cluster, tmp_path, "a") as worker:
        assert worker.wait_end() == 78
        assert "an earlier version of refold created them: `refold topology apply` adds" in worker.log()
