"""What counts as JSON, the same for every reader and on every stack depth."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.jsontext import is_valid_json

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='[]{}",:\\ud83deE0123.+-truefalsn\n ', max_size=30) | st.text(max_size=10))
def test_what_passes_is_read_by_other_parsers(text: str) -> None:
    if is_valid_json(text):
        orjson.loads(text.encode())


@settings(max_examples=200, deadline=None)
@given(values)
def test_what_other_writers_write_passes(value: object) -> None:
    try:
        text = orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        return  # a lone surrogate: orjson refuses to write it
    assert is_valid_json(text)


@pytest.mark.parametrize("depth", [1, 50, 90])
def test_the_answer_does_not_depend_on_the_stack(depth: int) -> None:
    def deep(n: int) -> bool:
        return deep(n - 1) if n else is_valid_json("[" * 100 + "]" * 100) and not is_valid_json("[" * 100_000)

    assert deep(depth)
