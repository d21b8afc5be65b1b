"""One text per schema *meaning*: what the lock pins and what tells whether two schemas are the same.

Avro's parsing canonical form drops defaults and aliases, but refold reads old records with them: a changed
default would change what old bytes mean without changing that form. So ours keeps both and drops only what
no reader sees (``doc``). Full names everywhere, keys sorted, no white space.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from refold.wire.schemafiles import PRIMITIVES, Schema, full_name

#: Name space of the schemas' GUIDs (framing with magic 1). Part of the wire contract; never change it.
GUID_NAMESPACE: Final = uuid.UUID("5d3a1f0e-6d0b-5f3c-9a53-72656f6c6400")


def canonical_form(schema: Schema) -> str:
    """The canonical text of a self-contained schema."""
    return json.dumps(_normal(schema, ""), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256_of(schema: Schema) -> str:
    """Lower-case hex SHA-256 of the canonical form."""
    return hashlib.sha256(canonical_form(schema).encode()).hexdigest()


def guid_of(subject: str, version: int, schema: Schema) -> uuid.UUID:
    """The GUID of one version of a subject: the same on every machine."""
    return uuid.uuid5(GUID_NAMESPACE, f"{subject}\n{version}\n{canonical_form(schema)}")


def _normal(node: Any, namespace: str) -> Any:
    if isinstance(node, str):
        return node if node in PRIMITIVES or "." in node or not namespace else f"{namespace}.{node}"
    if isinstance(node, list):
        return [_normal(branch, namespace) for branch in node]
    kind = node["type"]
    if kind == "array":
        return {"type": "array", "items": _normal(node["items"], namespace)}
    if kind == "map":
        return {"type": "map", "values": _normal(node["values"], namespace)}
    if kind not in ("record", "enum", "fixed"):
        # {"type": "string"} means the same as "string"; a logical type does not.
        logical = {k: node[k] for k in ("logicalType", "precision", "scale") if k in node}
        return {"type": _normal(kind, namespace), **logical} if logical else _normal(kind, namespace)
    name = full_name(node, namespace)
    space = name.rpartition(".")[0]
    normal: dict[str, Any] = {"type": kind, "name": name}
    if kind == "record":
        normal["fields"] = [_field(field, space) for field in node["fields"]]
    for key in ("symbols", "size", "default"):
        if key in node:
            normal[key] = node[key]
    if node.get("aliases"):
        normal["aliases"] = sorted(a if "." in a or not space else f"{space}.{a}" for a in node["aliases"])
    return normal


def _field(field: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    normal: dict[str, Any] = {"name": field["name"], "type": _normal(field["type"], namespace)}
    if "default" in field:
        normal["default"] = field["default"]
    if field.get("aliases"):
        normal["aliases"] = sorted(field["aliases"])
    return normal
