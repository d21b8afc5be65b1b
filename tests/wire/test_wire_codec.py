"""The codec against fastavro, against wrong values and against arbitrary bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core.codes import REJECT_CODES
from refold.errors import InvalidRecord, UsageError
from refold.wire.codec import decode, decode_body, encode, encode_body
from refold.wire.envelope import decode_envelope
from refold.wire.framing import guid_frame
from refold.wire.journal import decode_journal
from refold.wire.parts import KINDS, Part, check_parts
from wire.support import SUBJECTS, minimal, newest, sample, strategy

PARSED = {subject: fastavro.parse_schema(newest(subject).schema) for subject in SUBJECTS}
RECORDS = {subject: strategy(newest(subject).schema) for subject in SUBJECTS}

PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


OUTCOMES = {None, *REJECT_CODES}


def outcome(read: Callable[[Any], object], value: Any) -> str | None:
    """The code it is refused with, None when it is taken; any other exception comes through."""
    try:
        read(value)
    except InvalidRecord as error:
        return error.code
    return None


def refused(value: bytes | None, expect: str | None = None) -> str:
    with pytest.raises(InvalidRecord) as caught:
        decode(value, expect)
    assert caught.value.code in REJECT_CODES
    return caught.value.code


@pytest.mark.parametrize("subject", SUBJECTS)
@PROPERTY
@given(data=st.data())
def test_encode_and_decode_agree_with_fastavro(subject: str, data: st.DataObject) -> None:
    """An independent Avro implementation reads and writes the same bytes, for every schema."""
    record = data.draw(RECORDS[subject])
    body = encode_body(subject, record)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[subject], record)
    assert body == out.getvalue()
    assert fastavro.schemaless_reader(io.BytesIO(body), PARSED[subject]) == record
    framed = encode(subject, record)
    assert framed == newest(subject).frame + body
    assert decode(framed) == (subject, newest(subject).version, record)
    assert decode(guid_frame(newest(subject).guid) + body).record == record
    assert decode_body(subject, body) == record


@pytest.mark.parametrize("subject", SUBJECTS)
def test_missing_fields_are_written_as_their_defaults(subject: str) -> None:
    record = decode(encode(subject, minimal(newest(subject).schema))).record
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[subject], minimal(newest(subject).schema))
    assert record == fastavro.schemaless_reader(io.BytesIO(out.getvalue()), PARSED[subject])


@pytest.mark.parametrize("subject", SUBJECTS)
def test_an_unknown_key_is_refused_by_name(subject: str) -> None:
    """fastavro drops it without a word: a renamed field would lose its value."""
    record = {**sample(newest(subject).schema), "txet": 1}
    with pytest.raises(UsageError, match="txet"):
        encode(subject, record)


def test_an_unknown_key_in_a_nested_record_is_refused_by_name() -> None:
    part = {"type": "text", "text": "x", "dta": b""}
    with pytest.raises(UsageError, match=r"refold\.Part has no field 'dta'"):
        encode("refold.event.MessageAppended", {"message_id": "m", "role": "user", "content": [part]})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UsageError, match=r"MessageAppended\.role is missing"):
        encode("refold.event.MessageAppended", {"message_id": "m", "content": []})


def test_an_unknown_subject_is_named() -> None:
    with pytest.raises(UsageError, match=r"refold\.event\.Nonsense"):
        encode("refold.event.Nonsense", {})


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("attempt", 2**31, "attempt is 2147483648, outside a 32-bit"),
        ("attempt", -(2**31) - 1, "32-bit"),
        ("lease_ms", 2**63, "lease_ms is 9223372036854775808, outside a 64-bit"),
        ("attempt", True, "attempt must be a 32-bit integer, not bool"),
        ("attempt", 1.0, "attempt must be a 32-bit integer, not float"),
        ("holder", b"x", "holder must be a string, not bytes"),
        ("holder", None, "holder must be a string, not NoneType"),
        ("extra", "x", "extra must be bytes, not str"),
    ],
)
def test_d27_a_value_that_does_not_fit_is_refused_by_name(field: str, value: Any, text: str) -> None:
    """D27: fastavro takes 2147483648 for a top-level int; epoch milliseconds in an int would be garbage."""
    record = {"operation_id": "o", "attempt": 1, "holder": "h", "lease_ms": 1, field: value}
    with pytest.raises(UsageError, match=text):
        encode("refold.event.ToolCallStarted", record)


def test_an_unknown_enum_symbol_is_refused_on_write() -> None:
    record = {**minimal(newest("refold.Envelope").schema), "actor": {"kind": "ghost"}}
    with pytest.raises(UsageError, match=r"refold\.Actor\.kind must be one of user, assistant"):
        encode("refold.Envelope", record)


def test_lists_and_records_of_other_types_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="content must be a list"):
        encode("refold.event.MessageAppended", {"message_id": "m", "role": "user", "content": "hello"})
    with pytest.raises(UsageError, match=r"refold\.Part must be a mapping, not str"):
        encode("refold.event.MessageAppended", {"message_id": "m", "role": "user", "content": ["hello"]})
    with pytest.raises(UsageError, match="is_error must be true or false"):
        encode("refold.event.ToolCallCompleted", {"is_error": 1})


def test_d25_nul_and_pairs_come_back_unchanged() -> None:
    """D25: one odd character must neither fail the save nor poison later reads."""
    for text in ("a\u0000b", json.loads('"\\ud83d\\ude00"'), "\u2028", "\ufffe", "\U0010ffff"):
        value = encode("refold.event.FactSet", {"name": "n", "value": text})
        assert decode(value).record["value"] == text


def test_d25_a_lone_surrogate_is_refused_at_the_door_naming_the_field() -> None:
    with pytest.raises(InvalidRecord) as caught:
        encode("refold.event.FactSet", {"name": "n", "value": json.loads('"\\ud83d"')})
    assert caught.value.code == "lone_surrogate"
    assert "refold.event.FactSet.value" in caught.value.reason


def test_d25_a_lone_surrogate_of_another_encoder_is_refused_on_read() -> None:
    good = encode("refold.event.FactSet", {"name": "n", "value": "xyz"})
    assert refused(good.replace(b"xyz", b"\xed\xa0\xbd")) == "lone_surrogate"
    assert refused(good.replace(b"xyz", b"x\xed\xa0")) == "lone_surrogate"
    assert refused(good.replace(b"xyz", b"x\xffz")) == "bad_text"
    assert refused(good.replace(b"xyz", b"\xc0\x80z")) == "bad_text"


def test_d24_null_empty_and_short_values_are_refused_without_a_registry_call() -> None:
    """D24: each has its code, so that the rejected record says what was wrong."""
    assert refused(None) == "empty_value"
    assert refused(b"") == "empty_value"
    assert refused(b"\0\0\0") == "bad_frame"
    assert refused(b"\1" + b"\0" * 15) == "bad_frame"
    assert refused(b'{"a": 1}') == "bad_magic"
    assert refused(b"\2\0\0\0\1x") == "bad_magic"
    assert refused(b"\0\0\0\0\5x") == "unknown_schema"
    assert refused(b"\1" + b"\7" * 16 + b"x") == "unknown_schema"
    assert refused(newest("refold.event.FactSet").frame) == "undecodable"


def test_a_record_of_another_subject_is_refused() -> None:
    value = encode("refold.event.FactRemoved", {"name": "n"})
    assert refused(value, "refold.event.FactSet") == "unknown_subject"
    for read in (decode_envelope, decode_journal):
        with pytest.raises(InvalidRecord) as caught:
            read(value)
        assert caught.value.code == "unknown_subject"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x02n\x02v\x01", id="union branch -1"),
        pytest.param(b"\x02n\x02v\x04", id="union branch 2"),
        pytest.param(b"\x82\x00n\x02v\x00", id="number with a needless byte"),
        pytest.param(b"\x01n\x02v\x00", id="negative length"),
        pytest.param(b"\x02n\x02v\x00\x00", id="bytes after the record"),
        pytest.param(b"\x02n\x02v", id="ends early"),
        pytest.param(b"\x02n\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01v\x00", id="length 2^63-1"),
        pytest.param(b"\x02n" + b"\xff" * 11 + b"\x01v\x00", id="number of 12 bytes"),
    ],
)
def test_bytes_that_only_python_would_read_are_refused(body: bytes) -> None:
    """They would be spliced into the public state record and break every other Avro program."""
    assert refused(newest("refold.event.FactSet").frame + body) == "undecodable"


def test_out_of_range_ints_booleans_and_symbols_are_refused_on_read() -> None:
    started = encode_body(
        "refold.event.ToolCallStarted", {"operation_id": "o", "attempt": 1, "holder": "h", "lease_ms": 1}
    )
    frame = newest("refold.event.ToolCallStarted").frame
    assert decode(frame + started).record["attempt"] == 1
    assert refused(frame + started.replace(b"\x02o\x02", b"\x02o\xfe\xff\xff\xff\x7f", 1)) == "undecodable"
    frame = newest("refold.event.ToolCallIntended").frame
    schema = newest("refold.event.ToolCallIntended").schema
    record = minimal(schema) | {"operation_id": "o", "tool": "t", "arguments": "XYZ"}
    body = encode_body("refold.event.ToolCallIntended", record)
    assert refused(frame + body.replace(b"XYZ\x01", b"XYZ\x02")) == "undecodable"
    env = encode_body(
        "refold.Envelope",
        minimal(newest("refold.Envelope").schema) | {"actor": {"kind": "user", "id": "IDIDI"}},
    )
    mark = b"\x02\x00\x02\x0aIDIDI"
    assert env.count(mark) == 1
    for index in (b"\x01", b"\x0c"):
        assert (
            refused(newest("refold.Envelope").frame + env.replace(mark, b"\x02" + index + b"\x02\x0aIDIDI"))
            == "undecodable"
        )


def test_arrays_in_blocks_are_read_as_other_encoders_write_them() -> None:
    """Java's blocking encoder writes negative counts with a size; the size must be true."""
    frame = newest("refold.HistoryBlock").frame
    blocks = b"\x02" + b"\x03\x04\x0a\x0c" + b"\x02\x0e" + b"\x00"
    assert decode(frame + blocks).record == {"first_seq": 1, "offsets": [5, 6, 7]}
    assert refused(frame + b"\x02" + b"\x03\x06\x0a\x0c" + b"\x00") == "undecodable"
    assert refused(frame + b"\x02" + b"\xfe\xff\xff\xff\x0f\x0a" + b"\x00") == "undecodable"


def test_defaults_are_never_shared_between_records() -> None:
    """fastavro hands every record the same default list; one append would show up in all sessions."""
    value = encode("refold.event.ToolCallCompleted", {})
    first, second = decode(value).record, decode(value).record
    first["content"].append("x")
    assert second["content"] == []
    assert decode(value).record["content"] == []
    assert encode("refold.event.ToolCallCompleted", {}) == value


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_arbitrary_bytes_raise_invalid_record_or_decode(data: st.DataObject) -> None:
    """Fuzz: random bytes, also behind a known frame, and damaged records; only InvalidRecord comes out."""
    subject = data.draw(st.sampled_from(SUBJECTS))
    frame = newest(subject).frame
    good = encode(subject, sample(newest(subject).schema))
    kind = data.draw(st.sampled_from(["random", "framed", "damaged", "cut"]))
    if kind == "random":
        value = data.draw(st.binary(max_size=60))
    elif kind == "framed":
        value = frame + data.draw(st.binary(max_size=80))
    elif kind == "cut":
        value = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        at = data.draw(st.integers(5, len(good) - 1))
        value = (
            good[:at]
            + data.draw(st.binary(min_size=1, max_size=4))
            + good[at + data.draw(st.integers(0, 4)) :]
        )
    assert {outcome(read, value) for read in (decode, decode_envelope, decode_journal)} <= OUTCOMES
    if kind == "cut":
        assert refused(value)
    assert {outcome(check_parts, [Part(kind, data=value)]) for kind in KINDS} <= OUTCOMES


@settings(max_examples=800, deadline=None)
@given(data=st.data())
def test_what_is_accepted_is_what_fastavro_reads(data: st.DataObject) -> None:
    """Differential fuzz: our reader accepts nothing that reads differently elsewhere."""
    subject = data.draw(st.sampled_from(SUBJECTS))
    good = encode(subject, data.draw(RECORDS[subject]))
    at = data.draw(st.integers(5, len(good)))
    value = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)) :]
    try:
        record = decode(value).record
    except InvalidRecord:
        return
    assert fastavro.schemaless_reader(io.BytesIO(value[5:]), PARSED[subject]) == record
