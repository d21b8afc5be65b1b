"""The door: what is refused, what is replaced, and what equality means (D25)."""

from __future__ import annotations

import pytest
from hypothesis import given

from refold.errors import InvalidRecord
from refold.formats.jsonio import (
    dumps,
    first_difference,
    loads,
    loads_replacing,
    parse_object,
    replace_lone_surrogates,
    same,
)

from .support import json_values


@given(json_values)
def test_what_is_written_reads_back_the_same(value: object) -> None:
    """Any JSON value survives, its types included."""
    assert same(loads(dumps(value)), value)
    assert first_difference(loads(dumps(value)), value) is None


def test_nul_and_pairs_are_ordinary_text() -> None:
    """D25: NUL and a surrogate pair round-trip unchanged."""
    assert loads(r'"a\u0000b"') == "a\0b"
    assert loads(r'"\ud83d\ude00"') == "\U0001f600"
    assert dumps("a\0b") == rb'"a\u0000b"'


@pytest.mark.parametrize(
    "text", [r'"\ud83d"', r'["\ude00\ud83d"]', r'{"\udfff": 1}', r'{"a": [{"b": "x\uD83Dy"}]}']
)
def test_a_lone_surrogate_is_refused_and_named(text: str) -> None:
    """D25: the code and the place are in the error, the content is not."""
    with pytest.raises(InvalidRecord, match=r"file\.jsonl line 3") as caught:
        loads(text, where="file.jsonl line 3")
    assert caught.value.code == "lone_surrogate"
    assert "--replace-surrogates" in caught.value.reason


def test_surrogates_are_replaced_only_when_asked_and_counted() -> None:
    """D25: U+FFFD for each half, in keys too; nothing else changes."""
    value, count = loads_replacing(r'{"\ud83d": "a\udc00b\ud83d", "pair": "\ud83d\ude00"}')
    assert value == {"\ufffd": "a\ufffdb\ufffd", "pair": "\U0001f600"}
    assert count == 3


def test_keys_that_would_become_one_are_refused() -> None:
    """Replacing must not lose a value."""
    with pytest.raises(InvalidRecord, match="two keys"):
        replace_lone_surrogates(dict.fromkeys(["\ud83d", "\ud83e"], 1))


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[1e999]", '{"a": 1, "a": 2}', "{", "", '"\t"'])
def test_what_could_not_come_back_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        loads(text, where="x")
    assert caught.value.code == "bad_json"


def test_bytes_must_be_utf8() -> None:
    with pytest.raises(InvalidRecord) as caught:
        loads(b'"\xff"')
    assert caught.value.code == "bad_utf8"


def test_deep_nesting_is_refused_not_crashed_on() -> None:
    with pytest.raises(InvalidRecord, match="deep"):
        loads("[" * 200_000 + "]" * 200_000)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (0.0, -0.0),
        (None, 0),
        ({"a": None}, {}),
        ([], {}),
        ("1", 1),
        ([1], [1, 1]),
    ],
)
def test_values_that_look_alike_differ(left: object, right: object) -> None:
    """Equality is exact: the export must not turn 1 into 1.0 or null into nothing."""
    assert not same(left, right)
    assert not same([left], [right])
    assert first_difference({"k": [left]}, {"k": [right]}) is not None


def test_key_order_does_not_matter() -> None:
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})


@pytest.mark.parametrize("raw", ['{"command": "ls -', "[]", "null", '"x"', r'{"a": "\ud83d"}', '{"a": NaN}'])
def test_only_objects_every_codec_can_carry_count_as_arguments(raw: str) -> None:
    assert parse_object(raw) is None
