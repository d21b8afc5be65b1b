"""Envelope and journal: the spliced record is the encoded record, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.envelope import ACTOR_KINDS, LINK_KINDS, Actor, Envelope, InboxOrigin, SessionLink
from refold.errors import InvalidRecord, UsageError
from refold.wire.avrotypes import named_types
from refold.wire.codec import decode, encode, encode_body
from refold.wire.envelope import decode_envelope, encode_envelope, envelope_body, from_record, to_record
from refold.wire.framing import guid_frame
from refold.wire.journal import decode_journal, journal_value
from wire.support import LONGS, TEXTS, SchemaDir, installed, newest, strategy

ENVELOPES = strategy(newest("refold.Envelope").schema).map(lambda r: from_record(r, b""))
PLAIN = Envelope("e-1", "acme", "s-1", "MessageAppended", event_time_ms=1, payload=b"\0")


def test_the_cores_enums_are_the_schemas() -> None:
    types = named_types(newest("refold.Envelope").schema)
    assert types["refold.ActorKind"]["symbols"] == list(ACTOR_KINDS)
    assert types["refold.LinkKind"]["symbols"] == list(LINK_KINDS)
    assert list(Actor._fields) == [f["name"] for f in types["refold.Actor"]["fields"]]
    assert list(InboxOrigin._fields) == [f["name"] for f in types["refold.InboxOrigin"]["fields"]]
    assert list(SessionLink._fields) == [f["name"] for f in types["refold.SessionLink"]["fields"]]


@settings(max_examples=300, deadline=None)
@given(env=ENVELOPES)
def test_an_envelope_comes_back_with_its_own_bytes(env: Envelope) -> None:
    value = encode_envelope(env)
    read = decode_envelope(value)
    assert read == env
    assert read.raw == value[5:]
    assert encode_envelope(read) == value
    assert encode("refold.Envelope", to_record(read)) == value
    assert envelope_body(read) == envelope_body(env)


@settings(max_examples=300, deadline=None)
@given(env=ENVELOPES, seq=LONGS, time_ms=LONGS, partition=st.integers(0, 2**31 - 1), offset=LONGS)
def test_a_spliced_journal_record_is_the_encoded_one(
    env: Envelope, seq: int, time_ms: int, partition: int, offset: int
) -> None:
    """The join of four numbers and the producer's bytes equals encoding the whole record."""
    read = decode_envelope(encode_envelope(env))
    record = {
        "seq": seq,
        "time_ms": time_ms,
        "inbox_partition": partition,
        "inbox_offset": offset,
        "event": to_record(env),
    }
    spliced = journal_value(seq, time_ms, partition, offset, read)
    assert spliced == encode("refold.JournalRecord", record)
    assert spliced == journal_value(seq, time_ms, partition, offset, env)
    entry = decode_journal(spliced)
    assert entry == (seq, time_ms, partition, offset, env)
    assert entry.env.raw == read.raw


@settings(max_examples=1000, deadline=None)
@given(env=ENVELOPES, data=st.data())
def test_accepted_envelope_bytes_are_the_canonical_ones(env: Envelope, data: st.DataObject) -> None:
    """One value has one encoding: whatever is accepted re-encodes to itself, so splicing equals encoding."""
    value = encode_envelope(env)
    at = data.draw(st.integers(5, len(value)))
    damaged = value[:at] + data.draw(st.binary(max_size=3)) + value[at + data.draw(st.integers(0, 3)) :]
    try:
        read = decode_envelope(damaged)
    except InvalidRecord:
        return
    assert encode("refold.Envelope", to_record(read)) == damaged


def test_a_frame_by_guid_is_read_and_written_back_by_id() -> None:
    body = envelope_body(PLAIN)
    read = decode_envelope(guid_frame(newest("refold.Envelope").guid) + body)
    assert read == PLAIN
    assert read.raw == body
    assert encode_envelope(read) == encode_envelope(PLAIN)
    record = journal_value(1, 2, 3, 4, PLAIN)
    assert decode_journal(guid_frame(newest("refold.JournalRecord").guid) + record[5:]) == (1, 2, 3, 4, PLAIN)


@pytest.mark.parametrize("partition", [-1, 2**31])
def test_a_journal_record_needs_a_partition(partition: int) -> None:
    with pytest.raises(OverflowError):
        journal_value(1, 1, partition, 1, PLAIN)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_journal_record_needs_64_bit_numbers(number: int) -> None:
    with pytest.raises(OverflowError):
        journal_value(number, 1, 1, 1, PLAIN)


def test_a_journal_record_with_a_wide_partition_is_refused() -> None:
    good = journal_value(1, 2, 3, 4, PLAIN)
    with pytest.raises(InvalidRecord) as caught:
        decode_journal(good[:7] + b"\xfe\xff\xff\xff\x1f" + good[8:])
    assert caught.value.code == "undecodable"


def test_d27_an_envelope_field_out_of_range_is_named() -> None:
    with pytest.raises(UsageError, match=r"Envelope\.type_version is 2147483648"):
        encode_envelope(PLAIN.replace(type_version=2**31))
    with pytest.raises(UsageError, match=r"ProducerStamp\.counter"):
        encode_envelope(PLAIN.replace(producer_id="p", producer_counter=2**63))
    with pytest.raises(InvalidRecord, match=r"Envelope\.session"):
        encode_envelope(PLAIN.replace(session="\ud83d"))


def test_replace_forgets_the_bytes() -> None:
    read = decode_envelope(encode_envelope(PLAIN))
    forwarded = read.replace(origin=InboxOrigin("in", 1, 2, 3, 1))
    assert forwarded.raw == b""
    again = decode_envelope(encode_envelope(forwarded))
    assert again.origin == InboxOrigin("in", 1, 2, 3, 1)
    assert again.replace(origin=None) == PLAIN


def test_reprs_hold_no_payload() -> None:
    env = PLAIN.replace(payload=b"my secret", actor=Actor("user", name="my secret"))
    assert "secret" not in repr(env)


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(TEXTS, min_size=3, max_size=3))
def test_unknown_types_pass_through_untouched(texts: list[str]) -> None:
    """Types grow by new subjects: the envelope of a type nobody knows keeps its payload, whatever it is."""
    env = Envelope(texts[0], "t", "s", "Nobody" + texts[1], 9, payload=texts[2].encode() + b"\xff\0")
    assert decode_journal(journal_value(1, 1, 0, 0, decode_envelope(encode_envelope(env)))).env == env


def evolved(tmp_path: Any) -> SchemaDir:
    """Schemas with a second version of the envelope and of the journal record that nests it."""
    directory = SchemaDir(tmp_path)
    schema = directory.read("envelope/v1.avsc")
    schema["fields"].insert(
        3, {"name": "region", "type": ["null", "string"], "default": None, "doc": "Region."}
    )
    schema["fields"].insert(
        4, {"name": "tags", "type": {"type": "array", "items": "string"}, "default": [], "doc": "Tags."}
    )
    directory.write("envelope/v2.avsc", schema)
    directory.add_version("refold.Envelope", 2, "envelope/v2.avsc")
    directory.write("journal_record/v2.avsc", directory.read("journal_record/v1.avsc"))
    directory.add_version("refold.JournalRecord", 2, "journal_record/v2.avsc", {"refold.Envelope": 2})
    return directory


def test_an_envelope_of_an_older_schema_is_re_encoded_into_the_newest(tmp_path: Any) -> None:
    """Old producers go on during a roll-out; what they wrote is spliced in the current form."""
    old_value, old_journal = encode_envelope(PLAIN), journal_value(1, 2, 3, 4, PLAIN)
    with installed(evolved(tmp_path).lock()) as known:
        read = decode_envelope(old_value)
        assert read == PLAIN
        assert read.raw != old_value[5:]
        assert read.raw == encode_body("refold.Envelope", {**to_record(PLAIN), "region": None, "tags": []})
        assert decode_journal(old_journal) == (1, 2, 3, 4, PLAIN)
        assert decode_journal(old_journal).env.raw == read.raw
        spliced = journal_value(1, 2, 3, 4, read)
        assert spliced[:5] == known.get("refold.JournalRecord", 2).frame
        assert decode(spliced).record["event"]["tags"] == []
        assert decode_journal(spliced) == (1, 2, 3, 4, PLAIN)
        new_value = encode("refold.Envelope", {**to_record(PLAIN), "region": "eu", "tags": ["a"]})
        assert decode_envelope(new_value).raw == new_value[5:]
    with pytest.raises(InvalidRecord) as caught:
        decode_envelope(new_value)
    assert caught.value.code == "unknown_schema"
