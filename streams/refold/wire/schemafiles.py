"""The schema files: ``subjects.yaml`` and the ``.avsc`` files it names, as self-contained Avro schemas.

A shared type is defined in one file and named by its full name elsewhere. Plain registries (and plain
clients) know no such references, so every subject version is *inlined*: at the first use of a name its
definition stands in place, later uses keep the name. Unions other than ``[null, X]`` are refused here, once
and for all: with them a value can be written as the wrong branch and lose its fields.

Invariants: a subject is the full name of its record; a name means version 1 of its type unless the version
entry says otherwise (``uses``), so adding a version of a shared type changes no existing subject version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from refold.errors import ConfigError

Schema = dict[str, Any]

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

SUBJECTS_FILE: Final = "subjects.yaml"
LOCK_FILE: Final = "schemas.lock.json"


@dataclass(frozen=True, slots=True)
class SubjectFile:
    """One version of one subject: ``schema`` is self-contained."""

    subject: str
    version: int
    path: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class SubjectInfo:
    """What ``subjects.yaml`` says of a subject beside its files. ``topic`` is a name of ``topology/``."""

    subject: str
    description: str
    owner: str
    topic: str | None


@dataclass(frozen=True, slots=True)
class SchemaFiles:
    """Everything in one schema directory. ``versions`` is in the order of the file, then by version."""

    root: Path
    compatibility: str
    subjects: Mapping[str, SubjectInfo]
    versions: tuple[SubjectFile, ...]
    reserved: frozenset[str]


def schema_root() -> Path:
    """The directory of the schemas: the packaged copy, or the repository's in an editable install.

    Raises ConfigError when neither is there.
    """
    packaged = Path(str(resources.files("refold"))) / "_data" / "schemas"
    if (packaged / SUBJECTS_FILE).is_file():
        return packaged
    repository = Path(__file__).resolve().parents[3] / "schemas"
    if (repository / SUBJECTS_FILE).is_file():
        return repository
    raise ConfigError(
        f"no schemas: neither {packaged} nor {repository} holds {SUBJECTS_FILE}; "
        "the installation is incomplete, install refold again"
    )


def load_schema_files(root: Path) -> SchemaFiles:
    """Reads and inlines every subject version under ``root``. Raises ConfigError naming the file."""
    table = _mapping(_yaml(root / SUBJECTS_FILE), SUBJECTS_FILE)
    subjects = _mapping(table.get("subjects"), "subjects")
    shared = _mapping(table.get("shared", {}), "shared")
    definitions = {**_definitions(root, shared), **_definitions(root, subjects)}
    infos: dict[str, SubjectInfo] = {}
    versions: list[SubjectFile] = []
    for subject, entry in subjects.items():
        infos[subject] = SubjectInfo(subject, entry["description"], entry["owner"], entry.get("topic"))
        for version, path, uses in _versions(entry):
            if any(name not in definitions for name in uses):
                raise ConfigError(
                    f"{SUBJECTS_FILE}: {subject} version {version} uses a type that is not listed"
                )
            schema = _inline(definitions, subject, version, uses)
            versions.append(SubjectFile(subject, version, path, schema))
    reserved = frozenset(table.get("reserved", ()))
    if clash := reserved & infos.keys():
        raise ConfigError(f"{SUBJECTS_FILE}: {min(clash)} is both a subject and reserved")
    return SchemaFiles(root, table.get("compatibility", "FULL_TRANSITIVE"), infos, tuple(versions), reserved)


def _versions(entry: Mapping[str, Any]) -> Iterator[tuple[int, str, Mapping[str, int]]]:
    for version, value in sorted(entry["versions"].items()):
        if isinstance(value, str):
            yield version, value, {}
        else:
            yield version, value["file"], value.get("uses", {})


def _definitions(root: Path, table: Mapping[str, Any]) -> dict[str, dict[int, Schema]]:
    found: dict[str, dict[int, Schema]] = {}
    for name, entry in table.items():
        for version, path, _ in _versions(entry):
            schema = _avsc(root / path)
            if full_name(schema, "") != name:
                raise ConfigError(
                    f"{path}: the record is named {full_name(schema, '')}, subjects.yaml says {name}"
                )
            found.setdefault(name, {})[version] = schema
    return found


def _inline(
    definitions: Mapping[str, Mapping[int, Schema]], subject: str, version: int, uses: Mapping[str, int]
) -> Schema:
    seen: set[str] = set()

    def resolve(node: Any, namespace: str) -> Any:
        if isinstance(node, str):
            if node in PRIMITIVES:
                return node
            name = node if "." in node or not namespace else f"{namespace}.{node}"
            if name in seen:
                return name
            wanted = uses.get(name, 1)
            try:
                return resolve(definitions[name][wanted], "")
            except KeyError:
                raise ConfigError(
                    f"{subject} version {version} names {name} version {wanted}: no such file"
                ) from None
        if isinstance(node, list):
            if len(node) != 2 or node[0] != "null":
                raise ConfigError(
                    f"{subject} version {version}: unions other than [null, X] are not allowed: {node}"
                )
            return ["null", resolve(node[1], namespace)]
        kind = node["type"]
        if kind == "array":
            return {**node, "items": resolve(node["items"], namespace)}
        if kind == "map":
            return {**node, "values": resolve(node["values"], namespace)}
        if kind in ("record", "enum", "fixed"):
            name = full_name(node, namespace)
            seen.add(name)
            if kind != "record":
                return dict(node)
            inner = name.rpartition(".")[0]
            return {**node, "fields": [{**f, "type": resolve(f["type"], inner)} for f in node["fields"]]}
        return resolve(kind, namespace)

    schema: Schema = resolve(definitions[subject][version], "")
    return schema


def full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """The full name of a named type written inside ``namespace``."""
    name: str = schema["name"]
    space = schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _avsc(path: Path) -> Schema:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"schema file {path} cannot be read: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(f"schema file {path} must hold one record")
    return schema


def _yaml(path: Path) -> Any:
    import yaml

    # libyaml where PyYAML was built with it: 2 ms of every start instead of 24 (measured).
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - both are safe
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{SUBJECTS_FILE}: {what} must be a mapping")
    return value
