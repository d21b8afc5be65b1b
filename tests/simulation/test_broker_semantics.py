"""Goal: the simulated broker does what a real one was measured to do (the facts in
docs/internals/simulator.md).

Method: one small experiment per fact, as they were first run against a real Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from refold.topology.groupoffsets import NOWHERE

from .admin import Admin
from .broker import DELETE_RETENTION_MS, Broker
from .consumer import GroupConsumer, Reader
from .groupreader import GroupReader
from .kafka import Membership
from .kernel import Kernel, Process
from .producer import Producer, Trouble


class Bench:
    def __init__(self) -> None:
        self.kernel = Kernel(random.Random(1))
        self.broker = Broker(self.kernel, ("in", "out"), 2, "g", random.Random(2))

    def producer(self, txid: str, timeout_ms: int = 10_000, trouble: Trouble | None = None) -> Producer:
        made = Producer(self.kernel, self.broker, txid, timeout_ms, trouble=trouble)
        made.init_transactions()
        return made

    def member(self, instance: str) -> Membership:
        group = self.broker.group
        member_id = group.join("", instance, frozenset(), 1_000_000)
        self.settle()
        for member in group.members.values():
            if not member.joined and group.preparing:
                group.join(member.member_id, member.instance, member.owned, member.timeout_us)
        found = group.members[member_id]
        return Membership(found.generation, member_id, instance)

    def settle(self) -> None:
        """Markers arrive."""
        self.kernel.wait(lambda: False, 50_000)

    def visible(self, topic: str = "out") -> list[bytes | None]:
        return [entry.value for entry in self.broker.log(topic, 0).committed()]

    def begin(self, producer: Producer, value: bytes) -> None:
        producer.begin_transaction()
        producer.produce("out", value, b"k", 0)
        producer.flush()


def code(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(raised.value.args[0].code())


def test_markers_occupy_offsets_and_aborted_records_are_invisible() -> None:
    bench = Bench()
    producer = bench.producer("a")
    bench.begin(producer, b"1")
    producer.abort_transaction()
    bench.settle()
    bench.begin(producer, b"2")
    producer.commit_transaction()
    bench.settle()
    log = bench.broker.log("out", 0)
    assert (log.end, log.stable) == (4, 4)
    assert bench.visible() == [b"2"]
    assert log.read(0, 10) == ([log.since(2)[0]], 4)


def test_end_of_partition_is_the_last_stable_offset_and_not_the_high_watermark() -> None:
    bench = Bench()
    bench.broker.append("out", 0, b"k", b"plain", None)
    bench.begin(bench.producer("a"), b"open")
    bench.broker.append("out", 0, b"k", b"after", None)
    log = bench.broker.log("out", 0)
    assert (log.stable, log.end) == (1, 3)
    reader = Reader(bench.kernel, bench.broker)
    reader.assign([TopicPartition("out", 0, 0)])
    first, end = reader.poll(0.1), reader.poll(0.1)
    assert first is not None
    assert end is not None
    assert first.value() == b"plain"
    assert (end.error().code(), end.offset()) == (KafkaError._PARTITION_EOF, 1)
    admin = Admin(bench.kernel, bench.broker, Trouble(), "in")
    wanted = TopicPartition("out", 0)
    ends = [
        admin.list_offsets({wanted: OffsetSpec.latest()}, isolation_level=level, request_timeout=1)
        for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
    ]
    assert [answer[wanted].result().offset for answer in ends] == [3, 1]


def test_end_txn_knows_no_members() -> None:
    """A member that was removed after it had sent its offsets can still commit (rule T's reason)."""
    bench = Bench()
    producer, who = bench.producer("a"), bench.member("i")
    bench.begin(producer, b"late")
    producer.send_offsets_to_transaction([TopicPartition("in", 0, 7, "m")], who.encode("g"))
    bench.broker.group.remove(who.member_id, "test")
    producer.commit_transaction()
    bench.settle()
    assert bench.visible() == [b"late"]
    assert bench.broker.group.offsets[0].offset == 7


def test_txn_offset_commit_is_fenced_by_member_and_generation_only() -> None:
    bench = Bench()
    who = bench.member("i")
    offsets = [TopicPartition("in", 1, 3)]
    stale = who._replace(generation=who.generation - 1)
    stranger = Membership(who.generation, "nobody", "")
    for metadata, expected in (
        (stale, KafkaError.ILLEGAL_GENERATION),
        (stranger, KafkaError.UNKNOWN_MEMBER_ID),
    ):
        producer = bench.producer("a")
        bench.begin(producer, b"x")
        with pytest.raises(KafkaException) as raised:
            producer.send_offsets_to_transaction(offsets, metadata.encode("g"))
        assert code(raised) == expected
        assert raised.value.args[0].txn_requires_abort()
        # An empty list, and metadata without a membership, are accepted from anybody.
        producer.abort_transaction()
        bench.begin(producer, b"zombie")
        producer.send_offsets_to_transaction([], metadata.encode("g"))
        producer.send_offsets_to_transaction(offsets, Membership(-1, "", "").encode("g"))
        producer.commit_transaction()
        bench.settle()
    assert bench.visible() == [b"zombie", b"zombie"]
    # A valid member may commit for a partition it does not own.
    second = bench.member("j")
    producer = bench.producer("b")
    bench.begin(producer, b"x")
    producer.send_offsets_to_transaction(offsets, second.encode("g"))
    producer.commit_transaction()


def test_stable_offsets_wait_for_the_marker() -> None:
    bench = Bench()
    producer, who = bench.producer("a"), bench.member("i")

    def fetch(stable: bool, partition: int = 0) -> int:
        level = "read_committed" if stable else "read_uncommitted"
        config = {"isolation.level": level, "retry.backoff.ms": 5}
        reader = GroupReader(bench.kernel, bench.broker, Trouble(), config)
        (found,) = reader.committed([TopicPartition("in", partition)], timeout=0.02)
        return int(found.offset)

    bench.begin(producer, b"x")
    producer.send_offsets_to_transaction([TopicPartition("in", 0, 4)], who.encode("g"))
    assert fetch(stable=False) < 0
    with pytest.raises(KafkaException) as raised:
        fetch(stable=True)
    assert code(raised) == KafkaError._TIMED_OUT, "it is asked again, as long as there is time"
    assert fetch(stable=True, partition=NOWHERE) < 0, "no transaction holds that"
    producer.commit_transaction()
    bench.settle()
    assert fetch(stable=True) == 4


def test_init_transactions_ends_the_former_life_and_fences_it() -> None:
    bench = Bench()
    old = bench.producer("a")
    bench.begin(old, b"old")
    bench.producer("a")
    bench.settle()
    assert bench.visible() == []
    assert bench.broker.log("out", 0).stable == bench.broker.log("out", 0).end
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction()
    assert raised.value.args[0].fatal()
    with pytest.raises(KafkaException):
        old.abort_transaction()


def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced() -> None:
    bench = Bench()
    slow = bench.producer("a", timeout_ms=500)
    bench.begin(slow, b"x")
    bench.kernel.wait(lambda: False, 900_000)
    assert bench.broker.transactions.timed_out == 1
    assert bench.visible() == []
    with pytest.raises(KafkaException) as raised:
        slow.commit_transaction()
    assert raised.value.args[0].fatal()


def test_a_hung_transaction_holds_the_stable_offset_until_an_operator_ends_it() -> None:
    bench = Bench()
    pid = bench.broker.hang("out", 0, b"hung")
    bench.begin(bench.producer("a"), b"x")
    bench.producer("a")
    bench.kernel.wait(lambda: False, 60_000_000)
    log = bench.broker.log("out", 0)
    assert log.stable == 0 < log.end
    bench.broker.end_hung("out", 0, pid)
    assert log.stable == log.end
    assert bench.visible() == []


def test_a_late_marker_does_not_bring_an_old_offset_back() -> None:
    bench = Bench()
    group = bench.broker.group
    nobody = Membership(-1, "", "")
    group.txn_commit(1, [(0, 5, "old")], nobody)
    group.txn_commit(2, [(0, 9, "new")], nobody)
    group.settle(2, True)
    group.settle(1, True)
    assert group.offsets[0].offset == 9


def test_compaction_keeps_offsets_markers_and_fresh_tombstones() -> None:
    bench = Bench()
    producer = bench.producer("a")
    for value in (b"1", b"2", None):
        producer.begin_transaction()
        producer.produce("out", value, b"k", 0)
        producer.produce("out", b"v", b"other", 0)
        producer.commit_transaction()
        bench.settle()
    log = bench.broker.log("out", 0)
    before = [entry.offset for entry in log.since(0) if entry.control]
    end = log.end
    bench.broker.compact("out", 0, log.end)
    assert [(e.key, e.value) for e in log.committed()] == [(b"k", None), (b"other", b"v")]
    assert [entry.offset for entry in log.since(0) if entry.control] == before
    assert log.end == end
    bench.kernel.wait(lambda: False, (DELETE_RETENTION_MS + 1_000) * 1_000)
    bench.broker.compact("out", 0, log.end)
    assert [(e.key, e.value) for e in log.committed()] == [(b"other", b"v")]


def test_a_static_member_that_returns_gets_its_place_without_a_rebalance() -> None:
    """And the member it replaces is fenced. What it had given up is nobody's until the next rebalance
    (measured)."""
    bench = Bench()
    group = bench.broker.group
    first = bench.member("i")
    assert group.members[first.member_id].given == frozenset({0, 1})
    generation = group.generation
    again = group.join("", "i", frozenset(), 1_000_000)
    assert group.generation == generation
    assert group.outcome(again, -1) == (generation, frozenset({0, 1}))
    assert group.heartbeat(first.member_id, "i", generation) == KafkaError.FENCED_INSTANCE_ID


def test_a_member_that_was_silent_too_long_gives_everything_up_by_itself() -> None:
    """librdkafka's own session clock: on_lost before any request (measured)."""
    bench = Bench()
    kernel, process = bench.kernel, Process("p")
    consumer = GroupConsumer(
        kernel, bench.broker, process, "i", topic="in", session_ms=1_000, fetch_records_max=3
    )
    told: list[str] = []

    def assign(client: GroupConsumer, partitions: list[TopicPartition]) -> None:
        told.append("assign")
        client.incremental_assign(partitions)

    def lost(client: GroupConsumer, partitions: list[TopicPartition]) -> None:
        told.append("lost")
        assert Membership.decode(client.consumer_group_metadata()).generation == -1
        client.incremental_unassign(partitions)

    def body() -> None:
        consumer.subscribe(["in"], on_assign=assign, on_revoke=lost, on_lost=lost)
        while True:
            consumer.poll(0.02)

    kernel.spawn(process, "poll", body)
    kernel.wait(lambda: told == ["assign"], 1_000_000)
    kernel.stop(process)
    kernel.wait(lambda: not bench.broker.group.members, 3_000_000)
    kernel.resume(process)
    kernel.wait(lambda: told == ["assign", "lost", "assign"], 1_000_000)
    kernel.shutdown()
    assert told == ["assign", "lost", "assign"]


def test_an_abortable_error_stays_until_the_abort() -> None:
    class Refuses(Trouble):
        left = 1

        def delivery_fails(self) -> bool:
            self.left -= 1
            return self.left == 0

    bench = Bench()
    producer = bench.producer("a", trouble=Refuses())
    failures: list[object] = []
    producer.begin_transaction()
    producer.produce("out", b"x", b"k", 0, lambda error, message: failures.append(error))
    assert producer.flush() == 0
    assert len(failures) == 1
    assert failures[0] is not None
    calls: list[Callable[[], None]] = [
        producer.commit_transaction,
        lambda: producer.produce("out", b"y", b"k", 0),
    ]
    for call in calls:
        with pytest.raises(KafkaException) as raised:
            call()
        assert raised.value.args[0].txn_requires_abort()
    producer.abort_transaction()
    bench.begin(producer, b"again")
    producer.commit_transaction()
    bench.settle()
    assert bench.visible() == [b"again"]
