"""Values for every schema: hypothesis strategies and fixed samples, both made from the schema itself."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from refold.wire import codec, envelope, journal, schemas
from refold.wire.avrotypes import named_types
from refold.wire.schemafiles import PRIMITIVES, full_name, load_schema_files, schema_root
from refold.wire.schemalock import append_pins, read_lock, write_lock
from refold.wire.schemas import SchemaEntry, SchemaRegistry, load_registry

SUBJECTS = tuple(schemas.registry().subjects)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 63, 64, -64, -65, 2**31, 2**62, 2**63 - 1])
TEXTS = st.text(max_size=20) | st.sampled_from(["", "a\0b", "\U0001f600", "x" * 70, "é" * 600])


def strategy(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any valid record of a self-contained schema (the repository's types; none is recursive)."""
    types = named_types(schema)

    def of(node: Any, space: str) -> st.SearchStrategy[Any]:
        if isinstance(node, list):
            return st.none() | of(node[1], space)
        if isinstance(node, str) and node in PRIMITIVES:
            return {
                "int": INTS,
                "long": LONGS,
                "string": TEXTS,
                "bytes": st.binary(max_size=30),
                "boolean": st.booleans(),
            }[node]
        if isinstance(node, str):
            name = node if "." in node else f"{space}.{node}"
            return of(types[name], name.rpartition(".")[0])
        if node["type"] == "array":
            return st.lists(of(node["items"], space), max_size=3)
        if node["type"] == "enum":
            return st.sampled_from(node["symbols"])
        if node["type"] == "record":
            inner = full_name(node, space).rpartition(".")[0]
            return st.fixed_dictionaries({f["name"]: of(f["type"], inner) for f in node["fields"]})
        raise AssertionError(f"no strategy for {node}")

    return of(schema, "")


def sample(schema: dict[str, Any]) -> dict[str, Any]:
    """One record with every optional field set, the same on every machine."""
    types = named_types(schema)
    count = 0

    def of(node: Any, space: str, name: str) -> Any:
        nonlocal count
        count += 1
        if isinstance(node, list):
            return of(node[1], space, name)
        if node == "string":
            return f"{name}-{count} é"
        if node == "bytes":
            return f'{{"{name}":{count}}}'.encode()
        if node == "boolean":
            return count % 2 == 0
        if node in ("int", "long"):
            return count * (1 if node == "int" else 1_000_000_007)
        if isinstance(node, str):
            full = node if "." in node else f"{space}.{node}"
            return of(types[full], full.rpartition(".")[0], name)
        if node["type"] == "array":
            return [of(node["items"], space, name), of(node["items"], space, name)]
        if node["type"] == "enum":
            return node["symbols"][1]
        inner = full_name(node, space).rpartition(".")[0]
        return {f["name"]: of(f["type"], inner, f["name"]) for f in node["fields"]}

    record: dict[str, Any] = of(schema, "", "")
    return record


def minimal(schema: dict[str, Any]) -> dict[str, Any]:
    """Only what has no default."""
    full = sample(schema)
    return {f["name"]: full[f["name"]] for f in schema["fields"] if "default" not in f}


class SchemaDir:
    """A copy of the repository's schemas that a test may change and lock anew."""

    def __init__(self, root: Path) -> None:
        self.root = root / "schemas"
        shutil.copytree(schema_root(), self.root, ignore=shutil.ignore_patterns("golden"))

    def read(self, path: str) -> dict[str, Any]:
        schema: dict[str, Any] = json.loads((self.root / path).read_text(encoding="utf-8"))
        return schema

    def write(self, path: str, schema: dict[str, Any]) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(json.dumps(schema), encoding="utf-8")

    def add_version(self, subject: str, version: int, path: str, uses: dict[str, int] | None = None) -> None:
        """Names a further file of a subject in subjects.yaml."""
        table = self.root / "subjects.yaml"
        text = table.read_text(encoding="utf-8")
        head, found, tail = text.partition(f"\n  {subject}:\n")
        assert found, subject
        block, versions, rest = tail.partition("    versions:\n")
        entry = f"      {version}: {{file: {path}, uses: {json.dumps(uses or {})}}}\n"
        first, _, after = rest.partition("\n")
        table.write_text(f"{head}{found}{block}{versions}{first}\n{entry}{after}", encoding="utf-8")

    def lock(self) -> SchemaRegistry:
        files = load_schema_files(self.root)
        write_lock(self.root, append_pins(files, read_lock(self.root)))
        return load_registry(self.root)


@contextlib.contextmanager
def installed(registry: SchemaRegistry) -> Iterator[SchemaRegistry]:
    """The codec works with another registry inside the block."""
    hot: list[Any] = [envelope.newest, envelope._hot, journal._hot]
    with pytest.MonkeyPatch.context() as patch:
        for module in (codec, envelope, journal):
            patch.setattr(module, "registry", lambda: registry)
        patch.setattr(codec, "_by_frame", {})
        patch.setattr(codec, "_newest", {})
        for cached in hot:
            cached.cache_clear()
        try:
            yield registry
        finally:
            for cached in hot:
                cached.cache_clear()


def newest(subject: str) -> SchemaEntry:
    return schemas.registry().get(subject)
