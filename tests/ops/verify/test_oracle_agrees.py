"""Two models of one contract: the oracle's and core's, on the traffic of a chaos run, without Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core import Accepted, Duplicate, decide, evolve, initial
from refold.core.rulings import Rejected
from refold.core.session import Session
from refold.core.slots import SlotMap, split_key
from refold.errors import InvalidRecord
from refold.ops.verify import traffic as traffic_module
from refold.ops.verify.judge import judge
from refold.ops.verify.oracle import predict
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.readback import Record
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import journal_value
from refold.wire.snapshot import encode_snapshot

RECORDS = 6_000
Topic = dict[int, list[Record]]


class Produced:
    """A producer that keeps what it is given; the partitioner is worked out from its configuration."""

    log: list[tuple[int, bytes | None, bytes]] = []  # noqa: RUF012 - shared by all producers of one run

    def __init__(self, config: dict[str, Any]) -> None:
        self._java = config.get("partitioner") == "murmur2_random"

    def produce(self, _topic: str, value: bytes, key: bytes | None, **options: Any) -> None:
        slots = SlotMap(PLAN.partitions)
        if "partition" in options:
            partition = options["partition"]
        elif self._java and key:
            partition = slots.partition(key)
        else:
            partition = (
                len(value) * 7 + len(self.log)
            ) % PLAN.partitions  # anything but the right one, mostly
        self.log.append((partition, key, value))

    def poll(self, _timeout: float) -> None: ...


PLAN = ChaosPlan(seed=7, seconds=60, sessions=60)


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Topic:
    """What a run sends, forwards appended as a worker would."""
    monkeypatch.setattr(traffic_module, "Producer", Produced)
    monkeypatch.setattr(Produced, "log", [])
    traffic = traffic_module.Traffic(PLAN, "x.inbox", {})
    for _ in range(RECORDS):
        traffic._one()
    topic: Topic = {p: [] for p in range(PLAN.partitions)}
    slots = SlotMap(PLAN.partitions)
    for partition, key, value in Produced.log:
        place = len(topic[partition])
        topic[partition].append(Record(partition, place, key, value, (), place))
        try:
            split_key(key)
        except InvalidRecord:
            continue
        home = slots.partition(key or b"")
        if home != partition:
            origin = (("refold-origin", f"x.inbox/{partition}/{place}".encode()),)
            topic[home].append(Record(home, len(topic[home]), key, value, origin, place))
    return topic


def work(inbox: Topic) -> tuple[Topic, Topic, Topic]:
    """(journal, state, rejected) as core rules, one record at a time."""
    journal: Topic = {p: [] for p in inbox}
    state: Topic = {p: [] for p in inbox}
    rejected: Topic = {p: [] for p in inbox}
    sessions: dict[bytes, Session] = {}
    slots = SlotMap(PLAN.partitions)

    def out(
        topic: Topic, partition: int, key: bytes | None, value: bytes | None, *headers: tuple[str, bytes]
    ) -> None:
        topic[partition].append(Record(partition, len(topic[partition]), key, value, headers, 0))

    def refuse(record: Record, code: str) -> None:
        origin = f"x.inbox/{record.partition}/{record.offset}".encode()
        out(
            rejected, record.partition, record.key, record.value,
            ("refold-code", code.encode()), ("refold-origin", origin),
        )  # fmt: skip

    for partition, records in inbox.items():
        for record in records:
            try:
                tenant, name = split_key(record.key)
                key = record.key or b""
                if slots.partition(key) != partition:
                    continue
                envelope = decode_envelope(record.value)
                if (envelope.tenant, envelope.session) != (tenant, name):
                    raise InvalidRecord("key_mismatch", "the key names another session")
                event = decode_event(envelope)
            except InvalidRecord as bad:
                refuse(record, bad.code)
                continue
            session = sessions.setdefault(key, initial(tenant, name))
            ruling = decide(session, envelope, event, record.time_ms)
            if isinstance(ruling, Rejected):
                refuse(record, ruling.code)
            elif isinstance(ruling, Accepted):
                value = journal_value(ruling.seq, ruling.time_ms, partition, record.offset, envelope)
                out(journal, partition, key, value)
                evolve(session, ruling.seq, ruling.time_ms, partition, record.offset, envelope, event)
                out(state, partition, key, encode_snapshot(session))
            else:
                assert isinstance(ruling, Duplicate)
    return journal, state, rejected


def test_core_and_oracle_agree_on_the_traffic(inbox: Topic) -> None:
    """Goal: the oracle asks for what the contract says. Method: let core rule on it, judge every step."""
    world = predict(inbox)
    journal, state, rejected = work(inbox)
    verdict = judge(world, inbox, journal, state, rejected)
    assert verdict.differences == []
    assert verdict.clean
    # The traffic must hold each kind, or agreement says little.
    assert {"bytes", "conflict", "expected_seq", "key"} == set(world.rejected.values())
    assert world.duplicates > 100
    assert len(world.misrouted) > 100
    assert any(session.tools for session in world.sessions.values())
    assert any(session.facts for session in world.sessions.values())
