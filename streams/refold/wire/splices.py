"""Which schemas may be joined as bytes, and the check that they fit.

The journal record is four numbers and the envelope's own bytes; a message in the snapshot is its place and
the payload's own bytes. With another schema inside than the bytes were written with, the join would be
garbage.
"""

from __future__ import annotations

from typing import Any, Final

from refold.wire.avrotypes import named_types
from refold.wire.canonical import canonical_form
from refold.wire.schemafiles import PRIMITIVES, Schema, SchemaFiles, full_name
from refold.wire.schemalock import Drift

#: Record → subject whose fields are its last ones, so that the subject's bytes are its end.
TAILS: Final = {"refold.SnapshotMessage": "refold.event.MessageAppended"}


def check_splices(files: SchemaFiles) -> list[Drift]:
    """Every newest subject version that holds another subject, nested or as a tail, other than its newest."""
    newest = {file.subject: file for file in files.versions}
    drift: list[Drift] = []
    for outer in newest.values():
        types = named_types(outer.schema)
        for name, found in types.items():
            subject = TAILS.get(name, name)
            own = newest.get(subject)
            if own is None or subject == outer.subject:
                continue
            # Cut before closing: a type defined before the tail must be defined in it again.
            cut = {**found, "fields": found["fields"][-len(own.schema["fields"]) :]}
            have = {**_closed(cut, types), "name": subject}
            if canonical_form(have) != canonical_form(_closed(own.schema, named_types(own.schema))):
                text = (
                    f"{name} in {outer.subject} version {outer.version} does not hold {subject} as its "
                    f"newest version, {own.version}, writes it: add a version that does "
                    f"(`uses: {{{subject}: {own.version}}}`)"
                )
                drift.append(Drift("splice", outer.subject, outer.version, text))
    return drift


def _closed(schema: Schema, known: dict[str, Schema]) -> Schema:
    """A named type with every name it uses defined at its first use, whatever was defined outside it."""
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
