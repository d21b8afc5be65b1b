"""The compatibility check: each rule has a change that breaks it, each safe change passes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from refold.wire.compat import RULES, check_subjects, incompatibilities
from refold.wire.schemafiles import load_schema_files
from refold.wire.writers import compile_writer
from wire.support import SUBJECTS, SchemaDir, newest

BASE: dict[str, Any] = {
    "type": "record",
    "name": "t.R",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "count", "type": "int", "default": 0},
        {
            "name": "kind",
            "type": {"type": "enum", "name": "t.E", "symbols": ["a", "unknown"], "default": "unknown"},
        },
        {
            "name": "list",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "t.Item", "fields": [{"name": "x", "type": "long"}]},
            },
        },
        {"name": "map", "type": {"type": "map", "values": "t.Item"}},
        {"name": "hash", "type": {"type": "fixed", "name": "t.H", "size": 2}},
    ],
}


def fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f["name"]: f for f in schema["fields"]}


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    schema = copy.deepcopy(BASE)
    change(schema)
    return schema


def rules(new: dict[str, Any], old: dict[str, Any] = BASE, *, adjacent: bool = True) -> set[str]:
    return {rule for _, rule, _ in incompatibilities(old, new, adjacent=adjacent)}


def rename(schema: dict[str, Any], aliases: list[str] | None = None) -> None:
    field = fields(schema)["note"]
    field["name"] = "remark"
    if aliases is not None:
        field["aliases"] = aliases


def drop(schema: dict[str, Any], name: str) -> None:
    schema["fields"] = [f for f in schema["fields"] if f["name"] != name]


def merge(schema: dict[str, Any]) -> None:
    """``note`` takes the name of ``count`` as well."""
    drop(schema, "count")
    fields(schema)["note"]["aliases"] = ["count"]


BREAKING: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "other type": ("type_changed", lambda s: fields(s)["id"].update(type="bytes")),
    "wider number": ("type_changed", lambda s: fields(s)["count"].update(type="long")),
    "fixed size": ("type_changed", lambda s: fields(s)["hash"]["type"].update(size=3)),
    "type renamed": ("type_renamed", lambda s: fields(s)["hash"]["type"].update(name="t.H2")),
    "type renamed with alias": (
        "type_renamed",
        lambda s: fields(s)["hash"]["type"].update(name="t.H2", aliases=["t.H"]),
    ),
    "union of three": ("union", lambda s: fields(s)["note"].update(type=["null", "string", "long"])),
    "union in another order": (
        "union",
        lambda s: fields(s)["note"].update(type=["string", "null"], default=""),
    ),
    "now nullable": ("union_grew", lambda s: fields(s)["id"].update(type=["null", "string"])),
    "no longer nullable": ("union_shrank", lambda s: fields(s)["note"].update(type="string", default="")),
    "added without default": (
        "added_without_default",
        lambda s: s["fields"].append({"name": "z", "type": "bytes"}),
    ),
    "nested added without default": (
        "added_without_default",
        lambda s: fields(s)["list"]["type"]["items"]["fields"].append({"name": "z", "type": "bytes"}),
    ),
    "removed without default": ("removed_without_default", lambda s: drop(s, "id")),
    "renamed without alias": ("renamed", rename),
    "renamed without alias, spelt otherwise": (
        "renamed",
        lambda s: fields(s)["note"].update(name="remark", type=["null", {"type": "string"}]),
    ),
    "an alias of a field that stays": (
        "alias_taken",
        lambda s: s["fields"].append({"name": "z", "type": "int", "default": 0, "aliases": ["count"]}),
    ),
    "a field and its former name": ("alias_taken", lambda s: merge(s)),
    "two that were one": (
        "alias_taken",
        lambda s: s["fields"].extend(
            {"name": name, "type": ["null", "string"], "default": None, "aliases": ["note"]} for name in "yz"
        ),
    ),
    "default changed": ("default_changed", lambda s: fields(s)["count"].update(default=1)),
    "default dropped": ("default_changed", lambda s: fields(s)["count"].pop("default")),
    "enum default dropped": ("enum_without_default", lambda s: fields(s)["kind"]["type"].pop("default")),
    "enum default changed": ("default_changed", lambda s: fields(s)["kind"]["type"].update(default="a")),
    "symbol removed": ("symbol_removed", lambda s: fields(s)["kind"]["type"].update(symbols=["unknown"])),
    "required renamed with alias": (
        "renamed_without_default",
        lambda s: fields(s)["id"].update(name="ident", aliases=["id"]),
    ),
    "map values": ("type_changed", lambda s: fields(s)["map"]["type"].update(values="string")),
}

SAFE: dict[str, Callable[[dict[str, Any]], None]] = {
    "added with default": lambda s: s["fields"].append({"name": "z", "type": "bytes", "default": ""}),
    "removed with default": lambda s: drop(s, "note"),
    "renamed with alias": lambda s: rename(s, ["note"]),
    "symbol added": lambda s: fields(s)["kind"]["type"].update(symbols=["a", "b", "unknown"]),
    "reordered": lambda s: s["fields"].reverse() or s["fields"].sort(key=lambda f: f["name"] == "map"),
    "docs": lambda s: s.update(doc="Said better."),
    "longer spelling": lambda s: fields(s)["id"].update(type={"type": "string"}),
}


@pytest.mark.parametrize("name", BREAKING)
def test_a_breaking_change_is_refused_with_its_rule_and_the_way_out(name: str) -> None:
    rule, change = BREAKING[name]
    found = list(incompatibilities(BASE, changed(change)))
    assert rule in {r for _, r, _ in found}
    for path, _, text in found:
        assert path.startswith("t.")
        assert len(text) > 40


def test_every_rule_has_a_breaking_example() -> None:
    assert {rule for rule, _ in BREAKING.values()} == RULES.keys()


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_change_passes(name: str) -> None:
    def change(schema: dict[str, Any]) -> None:
        SAFE[name](schema)

    new = changed(change)
    if name == "reordered":
        new["fields"] = sorted(copy.deepcopy(BASE)["fields"], key=lambda f: str(f["name"] != "list"))
    assert new != BASE
    assert rules(new) == set()


@pytest.mark.parametrize("name", SAFE)
def test_what_passes_is_read_both_ways_by_another_implementation(name: str) -> None:
    """Forward and backward: whoever has one version reads the records of the other."""
    new = changed(lambda schema: SAFE[name](schema) and None)
    for writer, reader in ((BASE, new), (new, BASE)):
        record = {"id": "i", "kind": "a", "list": [{"x": 1}], "map": {"k": {"x": 2}}, "hash": b"hh"}
        pieces: list[bytes] = []
        compile_writer(writer)(pieces.append, record)
        schemas = [fastavro.parse_schema(copy.deepcopy(schema)) for schema in (writer, reader)]
        read = fastavro.schemaless_reader(io.BytesIO(b"".join(pieces)), *schemas)
        assert {k: read[k] for k in record} == record


def test_a_name_that_older_readers_take_for_another_field_is_refused() -> None:
    """Their version renamed it away and has it as an alias still."""
    renamed = changed(lambda s: rename(s, ["note"]))
    again = copy.deepcopy(renamed)
    del fields(again)["remark"]["aliases"]
    again["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    assert rules(again, renamed) == {"alias_taken"}


def test_a_type_may_be_renamed_where_both_versions_say_so() -> None:
    """An alias in the new version helps its readers only; those of the old one need one too."""
    old = copy.deepcopy(BASE)
    fields(old)["hash"]["type"]["aliases"] = ["t.H2"]
    new = changed(lambda s: fields(s)["hash"]["type"].update(name="t.H2", aliases=["t.H"]))
    assert rules(new, old) == set()


def test_removing_and_adding_in_two_versions_is_no_rename() -> None:
    """Between versions that do not follow each other it cannot be told from a rename, and need not."""
    new = changed(rename)
    assert rules(new, adjacent=False) == set()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_schema_is_compatible_with_itself(subject: str) -> None:
    schema = newest(subject).schema
    assert list(incompatibilities(schema, copy.deepcopy(schema))) == []


def test_every_pair_of_versions_is_checked_not_only_neighbours(tmp_path: Any) -> None:
    """Transitive: version 3 may be fine for version 2 and still lose what version 1 wrote."""
    directory = SchemaDir(tmp_path)
    subject, path = "refold.event.FactRemoved", "event/fact_removed"
    for version, name, default in ((2, None, None), (3, "why", "none given")):
        schema = directory.read(f"{path}/v1.avsc")
        if name:
            schema["fields"].append({"name": name, "type": "string", "default": default, "doc": "Why."})
        directory.write(f"{path}/v{version}.avsc", schema)
        directory.add_version(subject, version, f"{path}/v{version}.avsc")
    first = directory.read(f"{path}/v1.avsc")
    first["fields"].append({"name": "why", "type": "string", "default": "", "doc": "Why."})
    directory.write(f"{path}/v1.avsc", first)
    # add_version puts the newest entry first in the file; the order in the file does not matter.
    found = check_subjects(load_schema_files(directory.root))
    assert {(f.subject, f.old_version, f.new_version, f.rule) for f in found} == {
        (subject, 1, 3, "default_changed")
    }
