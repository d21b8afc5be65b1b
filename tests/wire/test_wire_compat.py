"""The compatibility check: each rule has a change that breaks it, each safe change passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from refold.wire.compat import RULES, check_subjects, incompatibilities
from refold.wire.schemafiles import load_schema_files
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


BREAKING: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "other type": ("type_changed", lambda s: fields(s)["id"].update(type="bytes")),
    "wider number": ("type_changed", lambda s: fields(s)["count"].update(type="long")),
    "fixed size": ("type_changed", lambda s: fields(s)["hash"]["type"].update(size=3)),
    "type renamed": ("type_renamed", lambda s: fields(s)["hash"]["type"].update(name="t.H2")),
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
    "type renamed with alias": lambda s: fields(s)["hash"]["type"].update(name="t.H2", aliases=["t.H"]),
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
