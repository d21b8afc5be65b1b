"""Which schemas may be joined as bytes: a subject nested in another one must be in its newest version there.

The journal record is four numbers and the envelope's own bytes; the snapshot holds the messages' own bytes.
With another schema inside than the bytes were written with, the join would be garbage.
"""

from __future__ import annotations

from typing import Any

from refold.wire.avrotypes import named_types
from refold.wire.canonical import canonical_form
from refold.wire.schemafiles import PRIMITIVES, Schema, SchemaFiles, full_name
from refold.wire.schemalock import Drift


def check_splices(files: SchemaFiles) -> list[Drift]:
    """Every newest subject version that nests another subject in a version other than its newest."""
    newest = {file.subject: file for file in files.versions}
    drift: list[Drift] = []
    for outer in newest.values():
        for name, schema in _nested(outer.schema).items():
            inner = newest.get(name)
            if inner is None or name == outer.subject:
                continue
            if canonical_form(schema) != canonical_form(_closed(inner.schema)):
                text = (
                    f"{outer.subject} version {outer.version} nests another version of {name} than its "
                    f"newest, {inner.version}: add a version with `uses: {{{name}: {inner.version}}}`"
                )
                drift.append(Drift("splice", outer.subject, outer.version, text))
    return drift


def _nested(schema: Schema) -> dict[str, Schema]:
    """The named types inside a schema, each self-contained."""
    types = named_types(schema)
    return {name: _closed(found, types) for name, found in types.items()}


def _closed(schema: Schema, types: dict[str, Schema] | None = None) -> Schema:
    """A named type with every name it uses defined at its first use, whatever was defined outside it."""
    known = types if types is not None else named_types(schema)
    seen: set[str] = set()

    def close(node: Any, space: str) -> Any:
        if isinstance(node, list):
            return [close(branch, space) for branch in node]
        if isinstance(node, str):
            if node in PRIMITIVES:
                return node
            name = node if "." in node or not space else f"{space}.{node}"
            return name if name in seen else close(known[name], name.rpartition(".")[0])
        kind = node["type"]
        if kind == "array":
            return {**node, "items": close(node["items"], space)}
        if kind == "map":
            return {**node, "values": close(node["values"], space)}
        if kind not in ("record", "enum", "fixed"):
            return close(kind, space)
        name = full_name(node, space)
        if name in seen:
            return name
        seen.add(name)
        named = {**node, "name": name}
        named.pop("namespace", None)
        if kind == "record":
            named["fields"] = [
                {**f, "type": close(f["type"], name.rpartition(".")[0])} for f in node["fields"]
            ]
        return named

    closed: Schema = close(schema, "")
    return closed
