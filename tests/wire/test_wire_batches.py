"""The records of the batches, generations and review topics: bytes and values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.progress import Ack, Batch, Delta, Item, Marker, Progress, TokenUsage
from refold.core.reviews import ReviewItem
from refold.errors import InvalidRecord, UsageError
from refold.wire.batches import (
    BatchWriter,
    decode_item,
    decode_progress,
    encode_item,
    encode_progress,
    generation_key,
    split_generation_key,
)
from refold.wire.codec import decode, encode
from refold.wire.reviews import decode_review, encode_review, review_key
from wire.support import INTS, LONGS, TEXTS

USAGES = st.builds(TokenUsage, LONGS, LONGS, LONGS, LONGS)
DELTAS = st.builds(Delta, TEXTS, INTS, st.binary(max_size=9), st.none() | TEXTS, st.none() | TEXTS)
BATCHES = st.builds(
    Batch,
    TEXTS,
    INTS,
    LONGS,
    st.lists(DELTAS, max_size=3).map(tuple),
    st.none() | TEXTS,
    st.none() | USAGES,
    TEXTS,
    st.none() | TEXTS,
    LONGS,
    st.none() | st.binary(max_size=9),
)
ACKS = st.builds(Ack, TEXTS, INTS, TEXTS, LONGS)
MARKERS = st.builds(
    Marker,
    TEXTS,
    TEXTS,
    INTS,
    TEXTS,
    TEXTS,
    LONGS,
    TEXTS,
    LONGS,
    LONGS,
    st.none() | TEXTS,
    TEXTS,
    LONGS,
    st.none() | TEXTS,
)


def fields(item: object) -> dict[str, object]:
    return {name: getattr(item, name) for name in type(item).__slots__}  # type: ignore[attr-defined]


@given(BATCHES | ACKS | MARKERS)
def test_every_item_survives_its_bytes(item: Item) -> None:
    again = decode_item(encode_item(item))
    assert type(again) is type(item)
    assert fields(again) == fields(item)
    assert encode_item(again) == encode_item(item)


PLAIN_DELTAS = st.builds(
    Delta,
    st.sampled_from(["text", "reasoning", "refusal", "tool_call", "other"]),
    INTS,
    st.binary(max_size=300),
    st.none(),
    st.none(),
)
PLAIN = st.builds(
    Batch, TEXTS, INTS, LONGS, st.lists(PLAIN_DELTAS, min_size=1, max_size=3).map(tuple), sent_ms=LONGS
)


@given(PLAIN | BATCHES)
def test_a_batch_written_by_hand_is_the_compiled_writers_byte_for_byte(batch: Batch) -> None:
    """Goal: the recorder's short way is no second format; it knows how the newest schema ends."""
    writer = BatchWriter(batch.generation, batch.attempt)
    assert writer._head
    written = writer.encode(
        batch.seq,
        batch.deltas,
        batch.finish,
        batch.usage,
        batch.usage_mode,
        batch.provider_response_id,
        batch.sent_ms,
        batch.extra,
    )
    assert written == encode_item(batch)


@pytest.mark.parametrize("part", [2**31, -(2**31) - 1, True])
def test_a_part_that_is_no_int_is_refused_by_the_writer_too(part: int) -> None:
    """Written by hand it was a record that nobody can read: the tokens would be rejected, not the call."""
    with pytest.raises(UsageError, match=r"refold\.Delta\.part"):
        BatchWriter("g", 1).encode(1, (Delta("text", part, b"x"),), None, None, "total", None, 0, None)


def test_d14_half_a_character_survives() -> None:
    """D14: the pieces are bytes, so a cut inside a character is no error and is not replaced."""
    half = "가".encode()[:2]
    again = decode_item(encode_item(Batch("g", 1, 1, (Delta("text", 0, half),))))
    assert isinstance(again, Batch)
    assert again.deltas[0].data == half


def test_what_is_no_record_of_the_topic_is_refused_with_its_code() -> None:
    good = encode_item(Ack("g", 1, "c", 2))
    for value, code in (
        (None, "empty_value"),
        (b"", "empty_value"),
        (b"\x00\x00", "bad_frame"),
        (b"{}{}{}", "bad_magic"),
        (b"\x00\x00\x00\x00\x07abc", "unknown_schema"),
        (good[:-1], "undecodable"),
        (good + b"\x00", "undecodable"),
        (good.replace(b"c", b"\xff"), "bad_text"),
        (encode("refold.event.FactRemoved", {"name": "n"}), "unknown_subject"),
        (encode_progress("g", Progress()), "unknown_subject"),
    ):
        with pytest.raises(InvalidRecord) as caught:
            decode_item(value)
        assert caught.value.code == code


@given(st.binary(max_size=40))
def test_whatever_bytes_come_nothing_but_a_refusal(tail: bytes) -> None:
    for frame in {encode_item(i)[:5] for i in (Batch("g", 1, 1), Ack("g", 1, "c", 1), Marker("g", "end", 1))}:
        try:
            item = decode_item(frame + tail)
        except InvalidRecord:
            continue
        assert encode_item(item)[:5] == frame


def test_a_wrong_value_names_its_field() -> None:
    with pytest.raises(UsageError, match=r"GenerationBatch\.seq"):
        encode_item(Batch("g", 1, 2**63))
    with pytest.raises(UsageError, match=r"Delta\.data"):
        encode_item(Batch("g", 1, 1, (Delta("text", 0, "text"),)))  # type: ignore[arg-type]


def test_progress_survives_its_bytes_with_every_field_set() -> None:
    progress = Progress()
    for number, name in enumerate(sorted(Progress.__slots__)):
        value: object = number + 1
        if isinstance(getattr(progress, name), str | None):
            value = f"{name} é"
        setattr(progress, name, value)
    progress.usage, progress.usage_before = TokenUsage(1, 2, 3, 4), TokenUsage(5, 6, 7, 8)
    progress.chain, progress.ended, progress.stopping = b"c" * 16, "stopped", True
    progress.acks = {"c": (2, 100), "a": (0, 101)}
    value = encode_progress("g", progress)
    assert decode_progress(value) == progress
    record = decode(value).record
    assert (record["generation"], record["usage"]["reasoning"]) == ("g", 4)
    assert [ack["client"] for ack in record["acks"]] == ["c", "a"]
    assert decode_progress(encode_progress("g", Progress())) == Progress()


def test_a_progress_that_cannot_be_is_refused() -> None:
    record = decode(encode_progress("g", Progress())).record
    with pytest.raises(InvalidRecord, match="no such end"):
        decode_progress(encode("refold.GenerationRecord", {**record, "ended": "perhaps"}))
    with pytest.raises(InvalidRecord):
        decode_progress(encode_item(Ack("g", 1, "c", 1)))


def test_keys_of_generations_split_also_where_the_session_has_a_separator() -> None:
    for session in (b"acme/s1", b"acme/s#1", "acme/\u00e9#".encode()):
        key = generation_key(session, "g-1 é")
        assert split_generation_key(key) == (session, "g-1 é")
    for bad in (b"acme/s1", b"#g", b"acme/s1#", b"acme/s1#\xff"):
        with pytest.raises(InvalidRecord) as caught:
            split_generation_key(bad)
        assert caught.value.code == "bad_key"
    assert review_key(b"acme/s1", "run/step#1") == b"acme/s1#run/step#1"


def test_a_review_item_survives_its_bytes() -> None:
    item = ReviewItem("approval", "t", "s", "op", None, "tool", None, 0, None, "why", 5, 6, 7)
    assert decode_review(encode_review(item)) == item
    with pytest.raises(InvalidRecord, match="no such kind"):
        decode_review(encode("refold.ReviewItem", {**item._asdict(), "kind": "later"}))
