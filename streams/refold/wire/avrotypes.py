"""Looking into Avro schemas: the named types inside one, and defaults as values."""

from __future__ import annotations

from typing import Any

from refold.wire.schemafiles import PRIMITIVES, Schema, full_name


def named_types(schema: Schema) -> dict[str, Schema]:
    """Every named type inside a self-contained schema, by full name."""
    found: dict[str, Schema] = {}

    def visit(node: Any, namespace: str) -> None:
        if isinstance(node, list):
            for branch in node:
                visit(branch, namespace)
        elif isinstance(node, dict):
            kind = node["type"]
            if kind in ("record", "enum", "fixed"):
                name = full_name(node, namespace)
                found[name] = node
                for field in node.get("fields", ()):
                    visit(field["type"], name.rpartition(".")[0])
            elif kind == "array":
                visit(node["items"], namespace)
            elif kind == "map":
                visit(node["values"], namespace)
            else:
                visit(kind, namespace)

    visit(schema, "")
    return found


def default_value(schema: Any, default: Any, types: dict[str, Schema]) -> Any:
    """A schema's JSON default as the value a reader yields (bytes from Latin-1, records filled up)."""
    if isinstance(schema, list):
        return (
            default_value(schema[0], default, types)
            if default is None
            else default_value(schema[1], default, types)
        )
    if isinstance(schema, str) and schema not in PRIMITIVES:
        schema = types[schema]
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, (dict, list)):
        return default_value(kind, default, types)
    if kind in ("bytes", "fixed"):
        return default.encode("latin-1")
    if kind == "array":
        return [default_value(schema["items"], item, types) for item in default]
    if kind == "map":
        return {key: default_value(schema["values"], item, types) for key, item in default.items()}
    if kind == "record":
        return {
            f["name"]: default_value(f["type"], default.get(f["name"], f.get("default")), types)
            for f in schema["fields"]
        }
    if kind in ("float", "double"):
        return float(default)
    return default
