"""What the producer writes and reads, against bytes made by others: aiokafka's structs where they have the
version or one of the same form, else by hand from the protocol's guide."""

from __future__ import annotations

import struct

import pytest
from aiokafka.protocol import coordination, metadata, produce, transaction
from aiokafka.record.default_records import DefaultRecordBatch
from confluent_kafka import KafkaError

from refold.protocol import errors, requests
from refold.protocol.batches import LZ4, Batch
from refold.protocol.dialect import FEATURE, FIRST, SECOND, Dialect, spoken
from refold.protocol.requests import Identity, Member
from refold.protocol.wire import Reader, Writer

WHO = Identity(4_000_000_000_000, 7)
PLACES = [("a", 0), ("b", 2), ("a", 1)]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2**31 - 1, "ffffffff07"),
    ],
)
def test_unsigned_varints_at_their_boundaries(value: int, encoded: str) -> None:
    written = bytes(Writer().uvarint(value).out)
    assert written.hex() == encoded
    assert Reader(written).uvarint() == value


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 16_382, 16_383, 32_767])
def test_strings_of_both_encodings_at_their_boundaries(length: int) -> None:
    text = "x" * length
    first, compact = bytes(Writer().string(text).out), bytes(Writer().compact(text).out)
    assert first == struct.pack(">h", length) + text.encode()
    assert compact == bytes(Writer().uvarint(length + 1).out) + text.encode()
    assert (Reader(first).string(), Reader(compact).compact()) == (text, text)


def test_lengths_are_of_bytes_and_null_is_not_empty() -> None:
    assert bytes(Writer().string("ü").out) == b"\0\2\xc3\xbc"
    assert bytes(Writer().compact("ü").out) == b"\3\xc3\xbc"
    assert (bytes(Writer().string(None).out), bytes(Writer().compact(None).out)) == (b"\xff\xff", b"\0")
    assert (Reader(b"\xff\xff").string(), Reader(b"\0").compact()) == (None, None)
    assert (Reader(b"\0\0").string(), Reader(b"\1").compact()) == ("", "")


@pytest.mark.parametrize(("name", "bits"), [("i8", 8), ("i16", 16), ("i32", 32), ("i64", 64)])
def test_numbers_are_signed_and_end_where_their_width_does(name: str, bits: int) -> None:
    for value in (0, -1, 1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))):
        written = bytes(getattr(Writer(), name)(value).out)
        assert written == value.to_bytes(bits // 8, "big", signed=True)
        assert getattr(Reader(written), name)() == value
    with pytest.raises((struct.error, OverflowError)):
        getattr(Writer(), name)(2 ** (bits - 1))


def test_an_answer_that_ends_early_is_an_error_wherever_it_ends() -> None:
    whole = bytes(Writer().i16(3).string("abc").compact("abc").i64(5).out)

    def read(data: bytes) -> None:
        reader = Reader(data)
        reader.i16()
        reader.string()
        reader.compact()
        reader.i64()

    read(whole)
    for end in range(len(whole)):
        with pytest.raises((IndexError, struct.error)):
            read(whole[:end])


def test_arrays_may_be_null_and_tagged_fields_are_skipped() -> None:
    assert Reader(b"\xff\xff\xff\xff").array(Reader.i8) == []
    assert Reader(b"\0").compact_array(Reader.i8) == []
    assert Reader(b"\0\0\0\2\5\6").array(Reader.i8) == [5, 6]
    assert Reader(b"\3\5\6").compact_array(Reader.i8) == [5, 6]
    reader = Reader(b"\2\1\3xyz\x80\1\0\x2a")
    reader.tags()
    assert reader.i8() == 42


def test_a_produce_request_is_aiokafkas() -> None:
    data = {("a", 0): b"first", ("b", 2): b"", ("a", 1): b"x" * 300}
    theirs = produce.ProduceRequest_v7(
        transactional_id="id",
        required_acks=-1,
        timeout=3_000,
        topics=[("a", [(0, b"first"), (1, b"x" * 300)]), ("b", [(2, b"")])],
    )
    assert requests.produce("id", 3_000, data) == theirs.encode()


def test_a_produce_answer_is_aiokafkas() -> None:
    answer = produce.ProduceResponse_v7(
        topics=[("a", [(0, 0, 5_000_000_000, -1, 0), (1, 6, -1, -1, -1)]), ("b", [(2, 0, 9, -1, 3)])],
        throttle_time_ms=0,
    )
    assert requests.read_produced(Reader(answer.encode())) == {
        ("a", 0): (0, 5_000_000_000),
        ("a", 1): (6, -1),
        ("b", 2): (0, 9),
    }


def test_metadata_is_aiokafkas() -> None:
    theirs = metadata.MetadataRequest_v5(topics=["a", "b"], allow_auto_topic_creation=False)
    assert requests.metadata(["a", "b"]) == theirs.encode()
    answer = metadata.MetadataResponse_v5(
        throttle_time_ms=0,
        brokers=[(1, "one", 9092, None), (2, "two", 9093, "rack")],
        cluster_id="c",
        controller_id=1,
        topics=[
            (0, "a", False, [(0, 0, 1, [1, 2], [1], []), (0, 1, 2, [2], [2], [1]), (5, 2, 1, [1], [], [1])]),
            (3, "b", False, []),
        ],
    )
    found = requests.read_metadata(Reader(answer.encode()))
    assert found.nodes == {1: ("one", 9092), 2: ("two", 9093)}
    assert found.leaders == {("a", 0): 1, ("a", 1): 2, ("a", 2): -1}
    assert found.errors == {"b": 3}


def test_finding_a_coordinator_is_aiokafkas() -> None:
    for kind in (requests.GROUP, requests.TRANSACTION):
        theirs = coordination.FindCoordinatorRequest_v1(coordinator_key="id", coordinator_type=kind)
        assert requests.find_coordinator("id", kind) == theirs.encode()
    answer = coordination.FindCoordinatorResponse_v1(
        throttle_time_ms=0, error_code=0, error_message=None, coordinator_id=1, host="one", port=9092
    )
    assert requests.read_coordinator(Reader(answer.encode())) == (0, "", ("one", 9092))


def test_partitions_offsets_and_the_end_are_aiokafkas() -> None:
    """Versions 0 to 2 of them have one form."""
    named = {"transactional_id": "id", "producer_id": WHO.producer_id, "producer_epoch": WHO.epoch}
    partitions = transaction.AddPartitionsToTxnRequest_v0(**named, topics=[("a", [0, 1]), ("b", [2])])
    assert requests.add_partitions("id", WHO, PLACES) == partitions.encode()
    offsets = transaction.AddOffsetsToTxnRequest_v0(**named, group_id="g")
    assert requests.add_offsets("id", WHO, "g") == offsets.encode()
    for commit in (True, False):
        ended = transaction.EndTxnRequest_v0(**named, transaction_result=commit)
        assert requests.end_transaction("id", WHO, commit=commit) == ended.encode()
    answer = transaction.AddPartitionsToTxnResponse_v0(
        throttle_time_ms=0, errors=[("a", [(0, 0), (1, 51)]), ("b", [(2, 29)])]
    )
    found = requests.read_partition_errors(Reader(answer.encode()))
    assert found == {("a", 0): 0, ("a", 1): 51, ("b", 2): 29}
    assert requests.read_error(Reader(b"\0\0\0\0\0\x5a")) == 90


def test_a_producer_id_is_asked_for_in_the_compact_form() -> None:
    assert requests.init_producer_id("id", 60_000, Identity()).hex(" ") == (
        "03 69 64 00 00 ea 60 ff ff ff ff ff ff ff ff ff ff 00"
    )
    assert requests.init_producer_id("id", 1_000, Identity(258, 3)).hex(" ") == (
        "03 69 64 00 00 03 e8 00 00 00 00 00 00 01 02 00 03 00"
    )
    answer = bytes.fromhex("00000000 0000 0000000000000102 0003 00")
    assert requests.read_identity(Reader(answer)) == (0, Identity(258, 3))


@pytest.mark.parametrize(("instance", "told"), [(None, "00"), ("i", "02 69")])
def test_offsets_are_committed_in_the_compact_form(instance: str | None, told: str) -> None:
    body = requests.commit_offsets(
        "id", Identity(258, 3), Member("g", 5, "m", instance), {("a", 1): (7, "t\0"), ("a", 2): (8, "")}
    )
    assert body == bytes.fromhex(
        "03 6964  02 67  0000000000000102 0003  00000005  02 6d " + told + " 02 02 61 03"
        " 00000001 0000000000000007 ffffffff 03 7400 00"
        " 00000002 0000000000000008 ffffffff 01 00"
        " 00 00"
    )
    answer = bytes.fromhex("00000000 02 02 61 03 00000001 0000 00 00000002 0016 00 00 00")
    assert requests.read_offset_errors(Reader(answer)) == {("a", 1): 0, ("a", 2): 22}


VERSIONS = "0000 03 0000 0003 000b 00 0016 0000 0005 00 00000000 "


@pytest.mark.parametrize(
    ("tagged", "features", "speaks"),
    [
        ("00", {}, FIRST),
        # Supported, and not finalized: who is not finalized may not be spoken to so.
        ("01 00 0a 02 04 747276 0001 0002 00", {}, FIRST),
        ("01 02 1a 02 14 7472616e73616374696f6e2e76657273696f6e 0001 0001 00", {FEATURE: 1}, FIRST),
        ("01 02 1a 02 14 7472616e73616374696f6e2e76657273696f6e 0002 0002 00", {FEATURE: 2}, SECOND),
        ("02 01 08 0000000000000007 02 01 01", {}, FIRST),
    ],
)
def test_versions_are_a_range_for_each_key_and_features_what_is_finalized(
    tagged: str, features: dict[str, int], speaks: Dialect
) -> None:
    offered = requests.read_api_versions(Reader(bytes.fromhex(VERSIONS + tagged)))
    assert offered == requests.Offered({0: (3, 11), 22: (0, 5)}, features)
    assert spoken(offered.features) is speaks


def test_of_a_broker_that_does_not_know_the_question_nothing_is_known() -> None:
    old = bytes.fromhex("0023 00000001 0012 0000 0002")
    assert requests.read_api_versions(Reader(old)) == requests.Offered({}, {})


def test_the_second_dialect_in_bytes() -> None:
    who = Identity(258, 3)
    assert SECOND.end_transaction("id", who, commit=True) == bytes.fromhex(
        "03 6964 0000000000000102 0003 01 00"
    )
    assert SECOND.read_end(Reader(bytes.fromhex("00000000 0000 0000000000000102 0004 00"))) == (
        0,
        Identity(258, 4),
    )
    assert SECOND.read_end(Reader(bytes.fromhex("00000000 0033 ffffffffffffffff ffff 00"))) == (51, None)
    assert SECOND.produce("id", 3_000, {("a", 1): b"xy", ("a", 2): b""}) == bytes.fromhex(
        "03 6964 ffff 00000bb8 02 02 61 03 00000001 03 7879 00 00000002 01 00 00 00"
    )
    # One partition is in; of the other a record was refused, with a text, and a leader is named (tag 0).
    answer = bytes.fromhex(
        "02 02 61 03"
        " 00000001 0000 0000000000000007 ffffffffffffffff 0000000000000000 01 00 00"
        " 00000002 0057 ffffffffffffffff ffffffffffffffff ffffffffffffffff 02 00000000 03 6e6f 00 03 6e6f"
        " 01 00 09 0000000100000002 00"
        " 00 00000000 00"
    )
    assert SECOND.read_produced(Reader(answer)) == {("a", 1): (0, 7), ("a", 2): (87, -1)}


def test_a_batch_compressed_here_is_what_others_read() -> None:
    batch, records = Batch(384 * 1024), [(b"k%d" % n, b"a text like many others " * 3) for n in range(50)]
    for key, value in records:
        batch.add(key, value, [("h", b"1")], 1_700_000_000_000)
    batch.number(WHO, 17)
    assert batch.data is not None
    read = DefaultRecordBatch(bytes(batch.data))
    assert read.validate_crc()
    assert (read.compression_type, read.is_transactional, read.producer_id) == (LZ4, True, WHO.producer_id)
    assert [(record.key, record.value) for record in read] == records
    assert len(batch.data) < 1_000
    tiny = Batch(1_000)
    tiny.add(b"", bytes(range(256)), [], 1_700_000_000_000)
    tiny.number(WHO, 0)
    assert tiny.data is not None
    plain = DefaultRecordBatch(bytes(tiny.data))
    assert plain.validate_crc()
    assert plain.compression_type == 0, "what does not shrink stays as it is"


NOT_TRIED, DENIED = KafkaError.OPERATION_NOT_ATTEMPTED, KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("codes", "decides"),
    [
        ([], 0),
        ([0, 0], 0),
        ([NOT_TRIED, DENIED], DENIED),
        ([DENIED, NOT_TRIED], DENIED),
        ([NOT_TRIED, KafkaError.UNKNOWN_TOPIC_OR_PART], KafkaError.UNKNOWN_TOPIC_OR_PART),
        ([0, NOT_TRIED], NOT_TRIED),
        ([KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.ILLEGAL_GENERATION], KafkaError.ILLEGAL_GENERATION),
    ],
)
def test_a_refusal_among_the_codes_of_an_answer_decides(codes: list[int], decides: int) -> None:
    """A broker does not attempt the other partitions where one is refused: asked again for ever otherwise."""
    assert errors.worst(codes) == decides
