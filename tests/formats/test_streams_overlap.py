"""Going on with a broken-off text: the definitions in ``overlap`` against the shortest code for them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.errors import InvalidRecord
from refold.formats.streams import skip_prefix, trim_overlap
from refold.formats.streams.overlap import OVERLAP_BYTES_MAX, OVERLAP_BYTES_MIN

#: Few letters, so that overlaps are many; one of two bytes, so that cuts fall inside characters.
words = st.text("abé ", max_size=24).map(str.encode)
cuts = st.lists(st.integers(1, 6), max_size=12)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    made = []
    for size in sizes:
        made.append(data[:size])
        data = data[size:]
    return [*made, data]


def defined(prefix: bytes, continuation: bytes, least: int) -> bytes:
    """The docstring's sentence, by trying every n."""
    fits = [
        n
        for n in range(least, min(len(prefix), len(continuation)) + 1)
        if prefix.endswith(continuation[:n]) and (n == 1 or len(set(continuation[:n])) > 1)
    ]
    return continuation[max(fits, default=0) :]


@settings(max_examples=400)
@given(words, words, words, cuts, st.integers(1, 9))
def test_the_longest_overlap_is_dropped(a: bytes, b: bytes, c: bytes, sizes: list[int], least: int) -> None:
    """prefix = a + b, continuation = b + c, in any cuts: exactly as defined, and nothing twice or missing."""
    prefix, continuation = a + b, b + c
    trimmer = trim_overlap(prefix, least=least)
    out = b"".join(trimmer.feed(piece) for piece in pieces(continuation, sizes)) + trimmer.finish()
    assert out == defined(prefix, continuation, least)
    assert continuation.endswith(out)
    assert trimmer.dropped == len(continuation) - len(out)


@settings(max_examples=200)
@given(words, words, cuts)
def test_nothing_is_held_longer_than_it_is_open(prefix: bytes, continuation: bytes, sizes: list[int]) -> None:
    """Held back is only what occurs in the prefix before its end, so never more than the prefix has."""
    trimmer = trim_overlap(prefix)
    came = out = b""
    for piece in pieces(continuation, sizes):
        came += piece
        out += trimmer.feed(piece)
        if not trimmer.decided:
            assert out == b""
            assert came in prefix[:-1]
            assert len(came) <= len(prefix)


@pytest.mark.parametrize(
    ("prefix", "continuation", "expected"),
    [
        ("The quick brown fox", "brown fox jumps", " jumps"),
        ("The quick brown", "The quick brown fox", " fox"),  # Everything again.
        ("The tre", "es are tall", "es are tall"),  # One letter agrees by chance: kept.
        ("Sie sind tot", "total egal", "total egal"),  # Below the least: kept, for better or worse.
        ("x = 1\n            ", "            y = 2", "            y = 2"),  # A run of one character: kept.
        ("x = 1\n            y", "\n            y = 2", " = 2"),
        ("", "anything", "anything"),
        ("anything", "", ""),
        ("한국어를 배웁니다", "배웁니다. 좋아요", ". 좋아요"),
    ],
)
def test_what_people_meet(prefix: str, continuation: str, expected: str) -> None:
    trimmer = trim_overlap(prefix.encode())
    out = b"".join(trimmer.feed(piece.encode()) for piece in continuation) + trimmer.finish()
    assert out.decode() == expected


def test_the_bound() -> None:
    """An overlap longer than the bound is not seen whole, and no more than the bound is held."""
    said = b"".join(b"%d " % number for number in range(2000))
    assert len(said) > OVERLAP_BYTES_MAX > OVERLAP_BYTES_MIN
    inside = said[-OVERLAP_BYTES_MAX:] + b"new"
    trimmer = trim_overlap(said)
    assert trimmer.feed(inside) == b"new"
    assert trimmer.dropped == OVERLAP_BYTES_MAX
    beyond = trim_overlap(said)
    assert beyond.feed(said + b"new") == said + b"new"


@given(words, words, cuts)
def test_a_repeated_prefix_is_skipped(prefix: bytes, rest: bytes, sizes: list[int]) -> None:
    skipper = skip_prefix(prefix)
    assert b"".join(skipper.feed(piece) for piece in pieces(prefix + rest, sizes)) == rest
    assert skipper.waiting == 0
    skipper.finish()


@given(words.filter(bool), cuts, st.data())
def test_another_answer_is_refused_at_its_byte(prefix: bytes, sizes: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(prefix) - 1))
    other = prefix[:at] + bytes([prefix[at] ^ 1]) + prefix[at + 1 :]
    skipper = skip_prefix(prefix)
    with pytest.raises(InvalidRecord, match=rf"at byte {at} ") as refused:
        for piece in pieces(other, sizes):
            assert skipper.feed(piece) == b""
    assert refused.value.code == "conflict"


def test_a_shorter_answer_is_refused_at_its_end() -> None:
    skipper = skip_prefix(b"abcdef")
    assert skipper.feed(b"abc") == b""
    with pytest.raises(InvalidRecord, match="after 3 of the 6 bytes"):
        skipper.finish()
