"""``@refold.reducer``: what is refused when a module is imported, what a reducer gets, what a reader sees."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pytest
from pydantic import BaseModel

import refold
from core.build import Inbox, message, result
from refold.client.recovery import recover
from refold.client.reduced import plain_part, shaped_part
from refold.client.snapshots import SnapshotView
from refold.client.writes import SessionWrites
from refold.core import Envelope
from refold.core import reducers as pure
from refold.core.reducers import Unfit
from refold.errors import ConfigError, InvalidRecord, UsageError
from refold.reducers import Event, declared, install, load, words
from refold.reducers.event import parse_schemas, viewer
from refold.wire.events import event_payload
from refold.wire.owner import public_json
from refold.wire.snapshot import decode_snapshot, encode_snapshot


class Orders(BaseModel):
    open: dict[str, int] = {}
    shipped: int = 0


class Needs(BaseModel):
    n: int


@dataclass
class Data:
    names: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Other tests' reducers are put aside, ours are forgotten."""
    known: Any = declared()
    before = dict(known)
    known.clear()
    yield
    known.clear()
    known.update(before)
    pure.install(None)


def same(state: Any, event: Event) -> Any:
    return state


async def waiting(state: Any, event: Event) -> Any:
    return state


def going(state: Any, event: Event) -> Any:
    yield state


#: A record in which each link takes one byte: a payload of a megabyte would be a million links deep.
CHAIN: dict[str, Any] = {
    "type": "record",
    "name": "Link",
    "fields": [{"name": "next", "type": ["null", "Link"]}],
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "a name is 1 to 128"),
    "a name with a space": ({"name": "a b"}, "a name is 1 to 128"),
    "a long name": ({"name": "n" * 129}, "a name is 1 to 128"),
    "no types": ({"types": []}, "at least one"),
    "one text for types": ({"types": "Placed"}, "not one text"),
    "the worker's note": ({"types": ["Placed", "ReducerQuarantined"]}, "ReducerQuarantined is the worker's"),
    "another note": ({"types": ["SessionEventParked"]}, "no reducer gets it"),
    "version 0": ({"version": 0}, "from 1 on"),
    "version true": ({"version": True}, "from 1 on"),
    "version as text": ({"version": "2"}, "from 1 on"),
    "an upcast from itself": ({"version": 2, "upcast": {2: same}}, "upcast maps versions below 2"),
    "an upcast that is no function": ({"version": 2, "upcast": {1: {}}}, "upcast maps versions below 2"),
    "a schema that is none": ({"schema": object()}, "nothing pydantic can check"),
    "a set": ({"schema": set[str], "initial": []}, "another order in every process"),
    "no initial state": ({"schema": Needs}, "give initial="),
    "an initial state of another shape": (
        {"schema": Orders, "initial": {"open": 3}},
        "not one of its states",
    ),
    "an initial state that is no JSON": ({"initial": {1: 2}}, "not one of its states"),
    "a large initial state": ({"initial": {"x": "y" * 3_000}}, "above 2048"),
    "a schema that is no Avro": ({"types": {"Placed": {"type": "nothing"}}}, "no Avro schema"),
    "Avro that contains itself": ({"types": {"Placed": CHAIN}}, "Link contains itself"),
    "Avro that contains itself, by a list": (
        {
            "types": {
                "Placed": {
                    "type": "record",
                    "name": "Tree",
                    "namespace": "a",
                    "fields": [{"name": "kids", "type": {"type": "array", "items": "Tree"}}],
                }
            }
        },
        "a.Tree contains itself",
    ),
    "Avro lists of nothing": (
        {
            "types": {
                "Placed": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Empty",
                        "fields": [{"name": "none", "type": "null"}],
                    },
                }
            }
        },
        "take no bytes",
    ),
    "a coroutine": ({"function": waiting}, "a plain function"),
    "a generator": ({"function": going}, "a plain function"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_said_at_once(what: str) -> None:
    changes, text = REFUSED[what]
    given: dict[str, Any] = {"name": "orders", "types": ["Placed"], "function": same, **changes}
    name, function = given.pop("name"), given.pop("function")
    with pytest.raises(UsageError, match=text):
        refold.reducer(name, **given)(function)
    assert not declared()


def test_a_name_is_declared_once_and_a_module_may_be_loaded_again() -> None:
    refold.reducer("orders", types=["Placed"])(same)
    refold.reducer("orders", types=["Placed"], version=2, upcast={1: same})(same)
    assert declared()["orders"].pure.version == 2
    with pytest.raises(UsageError, match="declared twice"):
        refold.reducer("orders", types=["Placed"])(waiting.__class__)
    for number in range(15):
        refold.reducer(f"more{number}", types=["Placed"])(same)
    with pytest.raises(UsageError, match="one too many"):
        refold.reducer("one-more", types=["Placed"])(same)


def test_the_function_stays_what_it_is() -> None:
    assert refold.reducer("orders", types=["Placed"])(same) is same


# --- shapes ------------------------------------------------------------------------------------------------


def folded(function: Any, *payloads: Any, **options: Any) -> Inbox:
    refold.reducer("orders", types=["Placed"], **options)(function)
    install()
    inbox = Inbox()
    for payload in payloads:
        inbox.send(("Placed", {}), payload=json.dumps(payload).encode())
    return inbox


def state_of(inbox: Inbox) -> tuple[str, Any, str | None]:
    part = inbox.session.reduced["orders"]
    return part.status, json.loads(part.state), part.error


def test_a_model_a_dataclass_and_a_dict_are_given_and_taken() -> None:
    def model(state: Orders, event: Event) -> Orders:
        assert isinstance(state, Orders)
        state.open[event.payload["id"]] = 1
        return state

    assert state_of(folded(model, {"id": "a"}, {"id": "b"}, schema=Orders)) == (
        "ok",
        {"open": {"a": 1, "b": 1}, "shipped": 0},
        None,
    )
    declared().clear()  # type: ignore[attr-defined]

    def data(state: Data, event: Event) -> Data:
        return Data([*state.names, event.payload["id"]])

    assert state_of(folded(data, {"id": "a"}, {"id": "b"}, schema=Data))[1] == {"names": ["a", "b"]}
    declared().clear()  # type: ignore[attr-defined]

    def plain(state: dict[str, int], event: Event) -> dict[str, int]:
        return {"n": state.get("n", 0) + 1}

    assert state_of(folded(plain, {}, {}, schema=dict[str, int]))[1] == {"n": 2}


def test_a_result_of_another_shape_is_found_also_where_the_model_was_changed_in_place() -> None:
    def spoils(state: Orders, event: Event) -> Orders:
        state.shipped = "many"  # type: ignore[assignment]
        return state

    status, state, error = state_of(folded(spoils, {}, schema=Orders))
    assert (status, state) == ("quarantined", {"open": {}, "shipped": 0})
    assert str(error).startswith("schema: ")
    declared().clear()  # type: ignore[attr-defined]
    assert state_of(folded(lambda _s, _e: {"open": 3}, {}, schema=Orders))[2] == "schema: ValidationError"
    declared().clear()  # type: ignore[attr-defined]
    assert state_of(folded(lambda _s, _e: None, {}, schema=Orders))[2] == "no_state"


class Tagged(BaseModel):
    tags: list[str] = []
    notes: Any = None


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (dict[str, list[str]], {"tags": {"a", "b"}}),
        (dict[str, Any], {"tags": [{"deep": frozenset({"a", "b"})}]}),
        (Tagged, {"tags": {"a", "b"}}),
        (Tagged, Tagged(notes={"a", "b"})),
        (list[Tagged], [Tagged(notes=[{"a", "b"}])]),
    ],
)
def test_a_set_is_no_state_with_a_schema_either(schema: Any, made: Any) -> None:
    """X1: pydantic makes a list of it, in an order that is another one in every process."""
    assert state_of(folded(lambda _s, _e: made, {}, schema=schema))[2] == "schema: TypeError"


# --- events ------------------------------------------------------------------------------------------------


def event_of(kind: str, payload: bytes, schemas: Any = None, version: int = 1) -> Event:
    env = Envelope("e1", "t", "s", kind, type_version=version, event_time_ms=7, payload=payload)
    return viewer({} if schemas is None else {kind: parse_schemas(kind, schemas)})(env, 3, 9)


def test_json_payloads_are_read_strictly_and_each_time_anew() -> None:
    event = event_of("Placed", b'{"id": "a", "n": [1]}')
    event.payload["n"].append(2)
    assert event.payload == {"id": "a", "n": [1]}
    assert (event.seq, event.time_ms, event.event_time_ms, event.raw[:1]) == (3, 9, 7, b"{")
    for bad in (b"[1]", b"{", b'{"a":NaN}', b'{"a":%s}' % (b"1" * 5_000), b'{"\xff"'):
        with pytest.raises(InvalidRecord) as caught:
            _ = event_of("Placed", bad).payload
        assert caught.value.code == ("bad_text" if b"\xff" in bad else "bad_json")


def test_refolds_own_events_are_plain_values() -> None:
    kind, record = message("u1", "user", [result("c1", "done")])
    payload = event_of(kind, event_payload(kind, record)).payload
    assert payload["message_id"] == "u1"
    (part,) = payload["content"]
    assert (part["type"], part["call_id"], part["content"][0]["text"]) == ("tool_result", "c1", "done")
    json.dumps(payload)
    fact = event_of("FactSet", event_payload("FactSet", {"name": "n", "value": "1"})).payload
    assert (fact["name"], fact["value"]) == ("n", "1")
    with pytest.raises(InvalidRecord):
        _ = event_of("FactSet", b"\x00nothing").payload


def test_avro_payloads_are_read_by_the_schema_of_their_version() -> None:
    one = {"type": "record", "name": "Placed", "fields": [{"name": "id", "type": "string"}]}
    two = {"type": "record", "name": "Placed", "fields": [{"name": "raw", "type": "bytes"}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(one), {"id": "a"})
    framed = b"\x00\x00\x00\x00\x07" + out.getvalue()
    assert event_of("Placed", framed, one).payload == {"id": "a"}
    assert event_of("Placed", framed, json.dumps(one)).payload == {"id": "a"}
    assert event_of("Placed", framed, {1: one, 2: two}, 2).payload == {"raw": {"base64": "YQ=="}}
    for bad, version in ((framed + b"x", 1), (framed[:-1], 1), (framed, 3), (b"{}", 1)):
        with pytest.raises(InvalidRecord):
            _ = event_of("Placed", bad, {1: one}, version).payload


def test_avro_types_that_are_named_twice_are_not_recursive() -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "id", "type": "string"}]}
    order = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "none", "type": "null"},
            {"name": "first", "type": item},
            {"name": "others", "type": {"type": "array", "items": "Item"}},
            {"name": "by_name", "type": {"type": "map", "values": ["null", "Item"]}},
        ],
    }
    value = {"none": None, "first": {"id": "a"}, "others": [{"id": "b"}], "by_name": {"c": None}}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(order), value)
    assert event_of("Placed", b"\x00\x00\x00\x00\x07" + out.getvalue(), order).payload == value


def test_two_reducers_that_name_other_schemas_for_a_type_are_refused() -> None:
    schemas = [
        {"type": "record", "name": "Placed", "fields": [{"name": name, "type": "string"}]} for name in "ab"
    ]
    for number, schema in enumerate(schemas):
        refold.reducer(f"r{number}", types={"Placed": schema, "Other": None})(same)
    with pytest.raises(ConfigError, match="another schema for Placed"):
        install()


# --- loading -----------------------------------------------------------------------------------------------


def test_modules_of_the_working_directory_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "declared_here.py").write_text(
        "import refold\n\n@refold.reducer('here', types=['Placed'])\ndef here(s, e):\n    return s\n"
    )
    (tmp_path / "declares_badly.py").write_text("import refold\nrefold.reducer('', types=['Placed'])\n")
    (tmp_path / "declares_nothing.py").write_text("")
    before = list(sys.path)
    with pytest.raises(ConfigError, match=r"declares_nothing: no @refold\.reducer is declared there"):
        load(["declares_nothing"])
    with pytest.raises(ConfigError, match="module declares_badly: reducer ''"):
        load(["declares_badly"])
    with pytest.raises(ConfigError, match="cannot be imported"):
        load(["declared_nowhere"])
    registry = load(["declared_here"])
    assert registry is not None
    assert registry.versions == {"here": 1}
    assert load(["declared_here"]) is registry
    assert pure.active is registry
    assert sys.path == before
    for name in ("declared_here", "declares_badly", "declares_nothing"):
        sys.modules.pop(name, None)


def test_without_modules_nothing_is_folded() -> None:
    assert load([]) is None
    assert pure.active is None
    assert words(None) == ()
    assert words(" a, b.c ,,") == ("a", "b.c")


# --- reading -----------------------------------------------------------------------------------------------


def test_a_reader_sees_the_reducers_shape_upcast_and_json_where_it_has_no_reducer() -> None:
    inbox = folded(lambda s, e: {"a": s.get("a", 0) + e.payload["n"]}, {"n": 2}, {"n": 2**70})
    framed = encode_snapshot(inbox.session)
    (row,) = decode_snapshot(framed)["reduced"]
    assert shaped_part(row).value == {"a": 2**70 + 2}
    assert SnapshotView.of(framed).reduced["orders"] == plain_part(row)
    declared().clear()  # type: ignore[attr-defined]
    assert shaped_part(row) == plain_part(row)
    refold.reducer(
        "orders", types=["Placed"], version=2, schema=Orders, upcast={1: lambda s: {"shipped": s["a"]}}
    )(same)
    part = shaped_part(row)
    assert (part.version, part.value) == (2, Orders(shipped=2**70 + 2))
    with pytest.raises(UsageError, match="this process declares version 2"):
        shaped_part({**row, "version": 3})
    assert plain_part({**row, "status": "quarantined", "error": "late", "state": b"null"}).value is None
    assert shaped_part({**row, "status": "quarantined", "error": "late", "state": b"null"}).quarantined


def test_the_http_ports_json_has_states_as_json() -> None:
    """Goal: also where a number is beyond what most JSON writers take."""
    inbox = folded(lambda _s, e: {"n": e.payload["n"], "é": 1.5}, {"n": 2**70})
    body = public_json(decode_snapshot(encode_snapshot(inbox.session)))
    assert b'"state":{"n":1180591620717411303424,"\xc3\xa9":1.5}' in body
    assert orjson.loads(body)["reduced"][0]["name"] == "orders"


def test_recovery_folds_parts_where_it_can_and_names_those_it_cannot() -> None:
    from refold.client.events import SessionEvent
    from refold.wire.journal import decode_journal

    inbox = folded(lambda s, e: {"n": s.get("n", 0) + 1}, {}, {})
    view = SnapshotView.of(encode_snapshot(inbox.session))
    for _ in range(2):
        inbox.send(("Placed", {}), payload=b"{}")
    entries = [decode_journal(value) for value in inbox.journal[2:]]
    events = [SessionEvent(e.seq, e.time_ms, 0, 0, e.partition, e.offset, e.env) for e in entries]
    recovered = recover("acme", "s1", view, events)
    assert recovered.snapshot.raw == encode_snapshot(inbox.session)
    assert recovered.parts_behind == []
    declared().clear()  # type: ignore[attr-defined]
    pure.install(None)
    behind = recover("acme", "s1", view, events)
    assert behind.parts_behind == ["orders"]
    assert behind.snapshot.reduced["orders"].value == {"n": 2}
    assert recover("acme", "s1", view, []).parts_behind == ()


def test_unfit_names_a_class_and_never_a_text() -> None:
    assert Unfit("raised", ValueError("secret")).error == "raised: ValueError"


async def test_json_events_are_canonical_and_refolds_own_types_are_refused() -> None:
    sent: list[tuple[str, Any, dict[str, Any]]] = []

    class Kept:
        async def publish(self, kind: str, payload: Any, **options: Any) -> Any:
            sent.append((kind, payload, options))

    writes = SessionWrites()
    writes._publisher = Kept()  # type: ignore[assignment]
    await writes.publish_json("Placed", {"b": 1, "a": "é"}, event_id="e1")
    assert sent == [("Placed", '{"a":"é","b":1}'.encode(), {"event_id": "e1"})]
    for kind, payload, text in (
        ("FactSet", {}, "a type of refold's"),
        ("TimerArmed", {}, "a type of refold's"),
        ("Placed", {"x": float("nan")}, "no JSON object: not_json: ValueError"),
        ("Placed", {1: 2}, "no JSON object: not_json: TypeError"),
    ):
        with pytest.raises(UsageError, match=text):
            await writes.publish_json(kind, payload)
    assert len(sent) == 1
