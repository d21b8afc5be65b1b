"""Old and new versions of one subject: what is read, compared with fastavro's resolution."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode
from refold.wire.readers import Unresolvable, compile_reader, unknown_symbols
from refold.wire.writers import compile_writer
from wire.support import SchemaDir, installed, sample


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": f"t.{name}", "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, default: str | None = None) -> dict[str, Any]:
    return {
        "type": "enum",
        "name": "t.E",
        "symbols": list(symbols),
        **({"default": default} if default else {}),
    }


INNER_V1 = record(field("a", "string"), field("gone", ["null", "long"], default=None), name="Inner")
INNER_V2 = record(
    field("b", "string", aliases=["a"]),
    field("more", {"type": "array", "items": "int"}, default=[7]),
    name="Inner",
)
V1 = record(
    field("id", "string"),
    field("n", "int"),
    field("skip_text", "string"),
    field("skip_inner", {"type": "array", "items": INNER_V1}),
    field("inner", "t.Inner"),
    field("list", {"type": "array", "items": "t.Inner"}),
    field("map", {"type": "map", "values": ["null", "string"]}),
    field("ratio", "float"),
    field("flag", "boolean"),
    field("kind", enum("a", "b", "c", default="a")),
    field("hash", {"type": "fixed", "name": "t.H", "size": 2}),
)
V2 = record(
    field("hash", {"type": "fixed", "name": "t.H", "size": 2}),
    field("ident", "string", aliases=["id"]),
    field("n", "long"),
    field("inner", INNER_V2),
    field("list", {"type": "array", "items": "t.Inner"}),
    field("map", {"type": "map", "values": ["null", "string"]}),
    field("ratio", "double"),
    field("flag", ["null", "boolean"], default=None),
    field("kind", enum("b", "a", "d", default="d")),
    field("tags", {"type": "map", "values": "long"}, default={"x": 1}),
    field("blank", INNER_V2 | {"name": "t.Blank"}, default={"b": "none", "more": [1, 2]}),
    field("note", "string", default="é"),
)
INNER = st.fixed_dictionaries({"a": st.text(max_size=5), "gone": st.none() | st.integers(-9, 9)})
RECORDS = st.fixed_dictionaries(
    {
        "id": st.text(max_size=5),
        "n": st.integers(-(2**31), 2**31 - 1),
        "skip_text": st.text(max_size=5),
        "skip_inner": st.lists(INNER, max_size=2),
        "inner": INNER,
        "list": st.lists(INNER, max_size=3),
        "map": st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=3),
        "ratio": st.floats(width=32, allow_nan=False),
        "flag": st.booleans(),
        "kind": st.sampled_from(["a", "b", "c"]),
        "hash": st.binary(min_size=2, max_size=2),
    }
)
READ_V1_AS_V2 = compile_reader(V1, V2)
WRITE_V1 = compile_writer(V1)
FAST_V1, FAST_V2 = fastavro.parse_schema(V1), fastavro.parse_schema(V2)


@settings(max_examples=200, deadline=None)
@given(value=RECORDS)
def test_reading_an_old_record_as_the_newest_agrees_with_fastavro(value: dict[str, Any]) -> None:
    """Aliases, promotions, dropped and added fields, nested and skipped ones: as Avro has it."""
    pieces: list[bytes] = []
    WRITE_V1(pieces.append, value)
    body = b"".join(pieces)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, FAST_V1, value)
    assert body == out.getvalue()
    read, end = READ_V1_AS_V2(body, 0)
    assert end == len(body)
    assert read == fastavro.schemaless_reader(io.BytesIO(body), FAST_V1, FAST_V2)


TAKEN_A, TAKEN_B = field("a", "string", default="no a"), field("b", "string", default="no b")
B_WAS_A = {**TAKEN_B, "aliases": ["a"]}


@pytest.mark.parametrize(
    ("writer", "reader", "expected"),
    [
        pytest.param([B_WAS_A, TAKEN_A], [B_WAS_A, TAKEN_A], {"b": "B", "a": "A"}, id="the same schema"),
        pytest.param([TAKEN_A], [B_WAS_A, TAKEN_A], {"b": "no b", "a": "A"}, id="the alias is a field"),
        pytest.param([TAKEN_B, TAKEN_A], [B_WAS_A], {"b": "B"}, id="name and alias, in this order"),
        pytest.param([TAKEN_A, TAKEN_B], [B_WAS_A], {"b": "B"}, id="alias and name, in this order"),
        pytest.param([TAKEN_A], [B_WAS_A], {"b": "A"}, id="renamed"),
        pytest.param(
            [TAKEN_A, TAKEN_B],
            [field("c", "string", aliases=["b", "a"])],
            {"c": "B"},
            id="two aliases: the first one given",
        ),
    ],
)
def test_a_name_goes_before_an_alias(
    writer: list[dict[str, Any]], reader: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    """Else a record read with its own schema had one field's value in the other, and lost one."""
    pieces: list[bytes] = []
    value = {f["name"]: f["name"].upper() for f in writer}
    compile_writer(record(*writer))(pieces.append, value)
    assert compile_reader(record(*writer), record(*reader))(b"".join(pieces), 0)[0] == expected


def test_d26_an_unknown_enum_symbol_is_the_declared_default_and_counted() -> None:
    """D26: a newer writer's PAUSED must not lose the record, and somebody must see that it happened."""
    read = compile_reader(
        record(field("s", enum("A", "PAUSED"))), record(field("s", enum("A", "UNKNOWN", default="UNKNOWN")))
    )
    before = unknown_symbols["t.E", "PAUSED"]
    assert read(b"\x02", 0)[0] == {"s": "UNKNOWN"}
    assert read(b"\x00", 0)[0] == {"s": "A"}
    assert unknown_symbols["t.E", "PAUSED"] == before + 1


def test_an_unknown_enum_symbol_without_default_is_refused() -> None:
    read = compile_reader(record(field("s", enum("A", "B"))), record(field("s", enum("A"), default="A")))
    with pytest.raises(ValueError, match="symbol B"):
        read(b"\x02", 0)


def test_resolved_defaults_are_fresh() -> None:
    read = compile_reader(record(), record(field("l", {"type": "array", "items": "int"}, default=[1])))
    first = read(b"", 0)[0]
    first["l"].append(2)
    assert read(b"", 0)[0] == {"l": [1]}


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        pytest.param(field("a", "string"), field("b", "string"), id="missing without default"),
        pytest.param(field("a", "long"), field("a", "int"), id="narrower number"),
        pytest.param(field("a", "string"), field("a", "long"), id="other type"),
        pytest.param(
            field("a", ["null", "string", "long"]), field("a", ["null", "string", "long"]), id="union"
        ),
        pytest.param(field("a", ["string", "null"]), field("a", ["null", "string"]), id="union order"),
        pytest.param(
            field("a", {"type": "fixed", "name": "t.H", "size": 2}),
            field("a", {"type": "fixed", "name": "t.H", "size": 3}),
            id="fixed size",
        ),
        pytest.param(
            field("a", {"type": "fixed", "name": "t.H", "size": "0; raise SystemExit"}),
            field("a", {"type": "fixed", "name": "t.H", "size": 3}),
            id="size that is code",
        ),
    ],
)
def test_schemas_that_do_not_fit_are_refused_when_compiled(
    writer: dict[str, Any], reader: dict[str, Any]
) -> None:
    with pytest.raises(Unresolvable):
        compile_reader(record(writer), record(reader))


def test_names_of_a_foreign_schema_are_never_run_as_code() -> None:
    """A registry is not trusted with code: hostile names end up inside string literals."""
    evil = "'] = 1; raise SystemExit('pwned') #\n raise SystemExit"
    writer = record(
        field(evil, "int"),
        field("kind", {"type": "enum", "name": evil + "E", "symbols": [evil, "a"]}),
        field("a", ["null", "int"]),
    )
    read = compile_reader(
        writer | {"name": evil}, record(field("a", ["null", "int"]), field("kind", enum("a", default="a")))
    )
    assert read(b"\x02\x02\x02\x04", 0)[0] == {"a": 2, "kind": "a"}
    with pytest.raises(ValueError, match="no such branch"):
        read(b"\x02\x02\x06\x04", 0)


def test_null_cannot_be_read_where_it_is_not_allowed() -> None:
    read = compile_reader(record(field("a", ["null", "int"])), record(field("a", "int")))
    assert read(b"\x02\x04", 0)[0] == {"a": 2}
    with pytest.raises(ValueError, match="is null"):
        read(b"\x00", 0)


def test_d26_an_old_snapshot_misses_a_field_and_loads_with_its_default(tmp_path: Any) -> None:
    """D26: the session loads; the new field has its declared default, everything else is as written."""
    directory = SchemaDir(tmp_path)
    schema = directory.read("session_snapshot/v3.avsc")
    schema["fields"].insert(2, {"name": "agent", "type": "string", "default": "main", "doc": "Agent."})
    directory.write("session_snapshot/v4.avsc", schema)
    directory.add_version("refold.SessionSnapshot", 4, "session_snapshot/v4.avsc")
    known = directory.lock()
    value = sample(known.get("refold.SessionSnapshot", 3).schema)
    old = encode("refold.SessionSnapshot", value)
    with installed(known):
        decoded = decode(old)
        assert decoded.version == 3
        assert decoded.record == {**value, "agent": "main"}
        assert list(decoded.record) != []
        new = encode("refold.SessionSnapshot", decoded.record)
        assert decode(new) == ("refold.SessionSnapshot", 4, decoded.record)
    with pytest.raises(InvalidRecord) as caught:
        decode(new)
    assert caught.value.code == "unknown_schema"
