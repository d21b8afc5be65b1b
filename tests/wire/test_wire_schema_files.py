from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from refold.core.types import IMPLEMENTED_TYPES, RESERVED_TYPES
from refold.errors import ConfigError, InvalidRecord, NotFound
from refold.wire.avrotypes import named_types
from refold.wire.compat import check_subjects
from refold.wire.parts import KINDS
from refold.wire.schemafiles import full_name, load_schema_files, schema_root
from refold.wire.schemalock import ID_BASE, ID_MAX, append_pins, find_drift, read_lock
from refold.wire.schemas import registry
from refold.wire.splices import check_splices
from wire.support import SUBJECTS, SchemaDir

FILES = load_schema_files(schema_root())


def test_files_and_lock_agree_and_all_versions_are_compatible() -> None:
    assert find_drift(FILES, read_lock(FILES.root)) == []
    assert check_subjects(FILES) == []
    assert check_splices(FILES) == []


def test_every_event_type_of_the_core_has_a_subject_and_every_later_one_is_reserved() -> None:
    events = {s.removeprefix("refold.event.") for s in SUBJECTS if s.startswith("refold.event.")}
    assert events == IMPLEMENTED_TYPES
    assert {s.removeprefix("refold.event.") for s in FILES.reserved} == RESERVED_TYPES


def test_every_part_kind_has_a_subject_and_opaque_fields() -> None:
    assert set(KINDS.values()) == {s for s in SUBJECTS if s.startswith("refold.part.")}
    for subject in KINDS.values():
        fields = {f["name"]: f for f in registry().get(subject).schema["fields"]}
        assert fields["extra"]["type"] == ["null", "bytes"], subject


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_schema_is_self_contained_documented_and_named_like_its_subject(subject: str) -> None:
    """What a plain registry serves must parse alone; what a person reads must explain every field."""
    entry = registry().get(subject)
    fastavro.parse_schema(json.loads(entry.text))
    assert full_name(entry.schema, "") == subject
    for name, schema in named_types(entry.schema).items():
        assert schema.get("doc"), name
        for field in schema.get("fields", ()):
            assert field.get("doc"), f"{name}.{field['name']}"
        if schema["type"] == "enum":
            assert schema["default"] in schema["symbols"], name


def test_d27_no_logical_types_and_no_unions_but_nullable(tmp_path: Any) -> None:
    """D27: instants are plain longs, so no time zone can shift them; a wrong branch cannot be chosen."""
    for file in FILES.versions:
        assert "logicalType" not in json.dumps(file.schema), file.path
    directory = SchemaDir(tmp_path)
    schema = directory.read("event/fact_set/v1.avsc")
    schema["fields"][1]["type"] = ["null", "string", "long"]
    directory.write("event/fact_set/v1.avsc", schema)
    with pytest.raises(ConfigError, match="unions other than"):
        load_schema_files(directory.root)


def test_ids_are_in_our_range_and_guids_are_unique() -> None:
    pins = read_lock(FILES.root)
    assert all(ID_BASE < pin.id <= ID_MAX for pin in pins)
    assert len({pin.guid for pin in pins}) == len(pins)


def test_lock_appends_and_keeps_what_is_pinned(tmp_path: Any) -> None:
    directory = SchemaDir(tmp_path)
    before = read_lock(directory.root)
    schema = directory.read("event/fact_set/v1.avsc")
    schema["fields"].append({"name": "scope", "type": ["null", "string"], "default": None, "doc": "Scope."})
    directory.write("event/fact_set/v2.avsc", schema)
    directory.add_version("refold.event.FactSet", 2, "event/fact_set/v2.avsc")
    known = directory.lock()
    assert read_lock(directory.root)[: len(before)] == before
    assert known.get("refold.event.FactSet").version == 2
    assert known.get("refold.event.FactSet").id == before[-1].id + 1
    assert [e.version for e in known.versions("refold.event.FactSet")] == [1, 2]


@pytest.mark.parametrize("change", ["default", "field", "nested"])
def test_lock_refuses_a_changed_pinned_version(tmp_path: Any, change: str) -> None:
    """Also a default, which Avro's own canonical form leaves out, and a shared type somewhere inside."""
    directory = SchemaDir(tmp_path)
    path = "shared/usage/v1.avsc" if change == "nested" else "event/tool_call_intended/v1.avsc"
    schema = directory.read(path)
    if change == "default":
        field = next(f for f in schema["fields"] if f["name"] == "effect")
        field["default"] = "read"
    else:
        schema["fields"].append({"name": "more", "type": "int", "default": 0, "doc": "More."})
    directory.write(path, schema)
    files = load_schema_files(directory.root)
    drift = find_drift(files, read_lock(directory.root))
    assert drift
    assert {d.kind for d in drift} == {"changed"}
    with pytest.raises(ConfigError, match="add a new version instead"):
        append_pins(files, read_lock(directory.root))


def test_docs_may_change_under_a_pin(tmp_path: Any) -> None:
    directory = SchemaDir(tmp_path)
    schema = directory.read("event/fact_set/v1.avsc")
    schema["doc"] = schema["fields"][0]["doc"] = "Said better."
    directory.write("event/fact_set/v1.avsc", schema)
    assert find_drift(load_schema_files(directory.root), read_lock(directory.root)) == []


def test_a_drifted_file_is_not_used(tmp_path: Any) -> None:
    """A worker must not read old records with another schema than they were written with."""
    directory = SchemaDir(tmp_path)
    schema = directory.read("event/fact_set/v1.avsc")
    schema["fields"].reverse()
    directory.write("event/fact_set/v1.avsc", schema)
    from refold.wire.schemas import load_registry

    entry = load_registry(directory.root).get("refold.event.FactSet")
    with pytest.raises(ConfigError, match="registry check"):
        _ = entry.read
    with pytest.raises(ConfigError, match="registry check"):
        _ = entry.write


def test_a_spliced_schema_must_follow_what_it_splices(tmp_path: Any) -> None:
    """A new envelope version without a new journal record would make the join unreadable."""
    directory = SchemaDir(tmp_path)
    for path, subject in (
        ("envelope", "refold.Envelope"),
        ("event/message_appended", "refold.event.MessageAppended"),
    ):
        schema = directory.read(f"{path}/v1.avsc")
        schema["fields"].append(
            {"name": "region", "type": ["null", "string"], "default": None, "doc": "Region."}
        )
        directory.write(f"{path}/v2.avsc", schema)
        directory.add_version(subject, 2, f"{path}/v2.avsc")
    found = check_splices(load_schema_files(directory.root))
    assert {(d.kind, d.subject) for d in found} == {
        ("splice", "refold.JournalRecord"),
        ("splice", "refold.SessionSnapshot"),
    }


def test_unknown_names_are_answered_with_the_way_out() -> None:
    with pytest.raises(NotFound, match="reserved"):
        registry().get("refold.event.RunReady")
    with pytest.raises(NotFound, match="registry list"):
        registry().get("refold.event.Nonsense")
    with pytest.raises(NotFound, match="no version 9"):
        registry().get("refold.Envelope", 9)
    with pytest.raises(InvalidRecord) as caught:
        registry().resolve(5)
    assert caught.value.code == "unknown_schema"


def test_bytes_have_no_default_but_null() -> None:
    """fastavro yields the default of a bytes field as str, so plain readers would see two types."""
    for entry in registry().entries:
        for name, schema in named_types(entry.schema).items():
            for field in schema.get("fields", ()):
                assert field["type"] != "bytes" or "default" not in field, f"{name}.{field['name']}"
