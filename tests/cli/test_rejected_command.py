"""``refold rejected`` on a real broker: what it lists, shows and sends again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from refold.cli.main import run
from refold.cli.rejected import hexdump, parse_time
from refold.cli.rejected_records import HOPELESS, RejectedRecord, Selection, source_topic, target_partition
from refold.core.codes import REJECT_CODES
from refold.core.slots import SlotMap
from refold.errors import UsageError
from refold.testing.kafka import Kafka
from refold.topology import Topology
from refold.topology.names import TopicNames

PARTITIONS = 3
TEXT = b"Dear Sir, a customer's words"


@dataclass
class Site:
    topology: Topology
    bootstrap: str
    prefix: str
    capsys: pytest.CaptureFixture[str]
    producer: Producer

    def __call__(self, *args: str) -> tuple[int, dict[str, Any] | None, str]:
        """Exit code, the JSON object if any, and everything on both streams."""
        self.capsys.readouterr()
        code = run(["rejected", *args, "--bootstrap", self.bootstrap, "--prefix", self.prefix])
        captured = self.capsys.readouterr()
        last = captured.out.splitlines()[-1] if captured.out.strip() else ""
        value = json.loads(last) if "--json" in args and last else None
        return code, value, captured.out + captured.err

    def reject(
        self, key: bytes | None, value: bytes | None, code: str, *, commit: bool = True, offset: int = 0
    ) -> None:
        """As the worker does: in a transaction, with the original headers and its own."""
        self.producer.begin_transaction()
        headers = [
            ("traceparent", b"00-1"),
            ("refold-hops", b"1"),
            ("refold-code", code.encode()),
            ("refold-reason", f"because {code}".encode()),
            ("refold-origin", f"{self.topology.names.inbox}/1/{offset}".encode()),
            ("refold-append-ms", b"1700000000000"),
        ]
        self.producer.produce(self.topology.names.rejected, value, key, partition=0, headers=headers)
        self.producer.flush(30)
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)

    def inbox(self) -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(self.topology.names.inbox, p, 0) for p in range(PARTITIONS)])
        ended, out = set(), []
        deadline = time.monotonic() + 120
        while len(ended) < PARTITIONS and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
            else:
                out.append((message.partition(), message.key(), message.value(), message.headers() or []))
        consumer.close()
        assert len(ended) == PARTITIONS
        return out


@pytest.fixture
def site(
    kafka: Kafka, topic_prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    monkeypatch.setenv("COLUMNS", "200")
    topology = Topology.load(topic_prefix.rstrip("-"), partitions=PARTITIONS)
    topology.apply(kafka.bootstrap)
    prefix = topology.names.prefix
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{prefix}-w"})
    producer.init_transactions(30)
    yield Site(topology, kafka.bootstrap, prefix, capsys, producer)
    topology.delete(kafka.bootstrap)


@pytest.mark.broker
def test_an_empty_topic(site: Site) -> None:
    code, value, _ = site("list", "--json")
    assert (code, value) == (0, {"total": 0, "by_code": {}, "records": []})


@pytest.mark.broker
def test_list_filters_and_never_shows_content(site: Site) -> None:
    """Aborted transactions are invisible; code, origin and time select; payload bytes never appear."""
    site.reject(b"acme/1", TEXT, "session_closed", offset=5)
    site.reject(b"acme/2", TEXT, "session_closed", commit=False)
    site.reject(b"acme/3", TEXT, "bad_frame", offset=55)
    code, value, text = site("list", "--json")
    assert code == 0
    assert value is not None
    assert value["by_code"] == {"bad_frame": 1, "session_closed": 1}
    assert [r["key"] for r in value["records"]] == ["acme/1", "acme/3"]
    assert value["records"][0]["bytes"] == len(TEXT)
    assert "Dear Sir" not in text
    assert "Dear Sir" not in site("list")[2]
    for args, total in {
        ("--code", "bad_frame"): 1,
        ("--code", "bad_frame", "--code", "session_closed"): 2,
        ("--origin", site.topology.names.inbox): 2,
        ("--origin", f"{site.topology.names.inbox}/1/5"): 1,
        ("--origin", f"{site.topology.names.inbox}/2"): 0,
        ("--since", "1h"): 2,
        ("--until", "1h"): 0,
        ("--since", "2000-01-01T00:00:00+00:00"): 2,
    }.items():
        assert (site("list", *args, "--json")[1] or {})["total"] == total, args
    _, value, text = site("list", "--limit", "1", "--json")
    assert value is not None
    assert (value["total"], len(value["records"])) == (2, 1)
    assert "showing 1 of 2" in text


@pytest.mark.broker
def test_show(site: Site) -> None:
    site.reject(b"acme/1", TEXT, "unknown_schema")
    code, value, text = site("show", "0/0", "--json")
    assert code == 0
    assert value is not None
    assert value["way_out"].startswith("register the schema")
    assert ["traceparent", "00-1"] in value["headers"]
    assert value["append_ms"] == 1_700_000_000_000
    assert "Dear Sir" not in text
    _, value, _ = site("show", "0/0", "--payload", "--json")
    assert value is not None
    assert bytes.fromhex(value["payload_hex"]) == TEXT
    assert "Dear Sir" in site("show", "0/0", "--payload")[2]
    assert site("show", "0/7")[0] == 66
    assert site("show", "9/0")[0] == 66


@pytest.mark.broker
def test_replay_sends_the_original_bytes_to_the_partition_of_the_key(site: Site) -> None:
    """Key, value and foreign headers untouched, refold's own removed; dry run and refusals send nothing."""
    keys = [b"acme/1", b"acme/2", b"acme/3", b"acme/4"]
    for key in keys:
        site.reject(key, TEXT + key, "session_closed")
    site.reject(b"acme/9", b"\x07", "bad_frame")
    site.reject(b"acme/9", TEXT, "quarantined")
    _, value, _ = site("replay", "--all", "--dry-run", "--json")
    assert value is not None
    assert (value["selected"], value["sent"], value["skipped"]) == (4, 0, {"bad_frame": 1, "quarantined": 1})
    code, _, text = site("replay", "--all")
    assert (code, "--yes" in text) == (64, True)
    code, _, text = site("replay", "--code", "bad_frame", "--yes")
    assert (code, "--force" in text) == (64, True)
    assert site("replay", "0/99", "--yes")[0] == 66
    assert site.inbox() == []

    code, value, _ = site("replay", "--code", "session_closed", "--yes", "--json")
    assert (code, (value or {})["sent"]) == (0, 4)
    slots = SlotMap(PARTITIONS)
    got = {key: (partition, payload, headers) for partition, key, payload, headers in site.inbox()}
    assert got == {key: (slots.partition(key), TEXT + key, [("traceparent", b"00-1")]) for key in keys}

    code, value, _ = site("replay", "--code", "bad_frame", "--force", "--yes", "--json")
    assert (code, (value or {})["sent"]) == (0, 1)
    assert len(site.inbox()) == 5


@pytest.mark.broker
def test_null_values_and_missing_keys_survive_a_replay(site: Site) -> None:
    site.reject(None, None, "bad_key", offset=1)
    assert site("replay", "--code", "bad_key", "--force", "--yes")[0] == 0
    ((partition, key, value, _),) = site.inbox()
    assert (partition, key, value) == (1, None, None), "without a key: the partition it came from"


def test_every_code_is_either_hopeless_or_not_by_decision() -> None:
    assert set(REJECT_CODES) >= HOPELESS
    assert {"unknown_schema", "session_closed", "no_session"} <= set(REJECT_CODES) - HOPELESS


def test_selection() -> None:
    record = RejectedRecord(
        2, 7, 1_000, b"a/b", b"", (("refold-code", b"bad_id"), ("refold-origin", b"t/1/10"))
    )
    assert Selection().takes(record)
    assert Selection(origin="t/1").takes(record)
    assert not Selection(origin="t/1/1").takes(record), "an origin is a path, not a prefix of text"
    assert Selection(since_ms=1_000, until_ms=1_001).takes(record)
    assert not Selection(until_ms=1_000).takes(record)
    assert Selection(references=frozenset({"2/7"})).takes(record)
    assert target_partition(record, SlotMap(4)) == SlotMap(4).partition(b"a/b")


def test_a_replay_goes_to_the_source_the_record_came_from() -> None:
    names = TopicNames("p")

    def of(origin: bytes) -> str:
        return source_topic(RejectedRecord(0, 1, 2, b"a/b", b"", (("refold-origin", origin),)), names)

    assert of(b"p.batches/3/10") == names.batches
    assert of(b"p.inbox/3/10") == of(b"elsewhere/3/10") == of(b"") == names.inbox


def test_times() -> None:
    now = 1_800_000_000_000
    assert parse_time("2h", now_ms=now) == now - 7_200_000
    assert parse_time("1970-01-01T00:00:01+00:00", now_ms=now) == 1_000
    with pytest.raises(UsageError):
        parse_time("2 fortnights", now_ms=now)


def test_hexdump() -> None:
    assert hexdump(b"AB\x00\xff") == ["000000  41 42 00 ff" + " " * 36 + "  AB.."]
