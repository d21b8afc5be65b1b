"""Is a new version of a subject safe? Offline, for every pair of versions, both ways (FULL_TRANSITIVE).

Stricter than Avro's resolution rules, because Avro lets pass what loses data silently: a renamed field
without an alias reads as its default, a changed default changes what old bytes mean, a removed enum symbol
reads as another one. Each finding says who breaks and what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from refold.wire.avrotypes import named_types
from refold.wire.schemafiles import PRIMITIVES, Schema, SchemaFiles, full_name

#: Rule → who breaks and what to do. The names are part of `refold registry check --json`.
RULES: Final[dict[str, str]] = {
    "type_changed": (
        "the type changed from {old} to {new}: readers of one version cannot read the other. Keep "
        "the field and add a new one with a default."
    ),
    "type_renamed": (
        "the type {old} is now {new}: readers that check names (Java) refuse it, and an alias helps only "
        "those of the newer version. Keep the name."
    ),
    "union": (
        "a union other than [null, X] can be written as the wrong branch and lose fields. Add a "
        "new subject and carry it as framed bytes."
    ),
    "union_grew": (
        "the field may now be null: readers of the old version cannot read such a record. Keep "
        "the type and add a new nullable field."
    ),
    "union_shrank": "the field may no longer be null: old records with null cannot be read. Keep the union.",
    "added_without_default": (
        "the field is new and has no default: records of the old version cannot be read. Give it a default."
    ),
    "removed_without_default": (
        "the field is gone and had no default: readers of the old version cannot read new records. Keep it."
    ),
    "renamed": (
        "{old} is gone and {new} of the same type is new: if it was renamed, its value would "
        "silently read as the default. Add {old} to the aliases of {new}, or remove and add in "
        "two versions."
    ),
    "renamed_without_default": (
        "{old} is renamed to {new} and has no default: readers of the old version miss it. Keep the name."
    ),
    "alias_taken": (
        "{new} has the alias {old}, which is another field too: readers take either for it, or fail. "
        "Give the newer field a name that no version has had."
    ),
    "default_changed": (
        "the default changed: records without the value would read differently by version. Keep "
        "it, or add a new field."
    ),
    "enum_without_default": (
        "the {old} version of the enum has no default: a symbol added later cannot be read. "
        "Declare one on the enum itself (a default on the field does not help)."
    ),
    "symbol_removed": "symbol {old} is gone: old records with it would read as another. Keep it.",
}

Issue = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One incompatibility. ``path``: record and field; ``rule``: a key of RULES."""

    subject: str
    old_version: int
    new_version: int
    path: str
    rule: str
    text: str


def check_subjects(files: SchemaFiles) -> list[Finding]:
    """Every finding over every subject: each version against each older one."""
    by_subject: dict[str, list[tuple[int, Schema]]] = {}
    for file in files.versions:
        by_subject.setdefault(file.subject, []).append((file.version, file.schema))
    findings: list[Finding] = []
    for subject, versions in by_subject.items():
        for position, (new_version, new) in enumerate(versions):
            for old_position, (old_version, old) in enumerate(versions[:position]):
                adjacent = old_position == position - 1
                findings += (
                    Finding(subject, old_version, new_version, path, rule, text)
                    for path, rule, text in incompatibilities(old, new, adjacent=adjacent)
                )
    return findings


def incompatibilities(old: Schema, new: Schema, *, adjacent: bool = True) -> Iterator[Issue]:
    """(path, rule, text) of everything that keeps one of the two from reading the other's records.

    ``adjacent``: the versions follow each other, so a removed and an added field may be one renamed field.
    """
    return _Comparison(old, new, adjacent).run()


def _issue(path: str, rule: str, old: object = "", new: object = "") -> Issue:
    return path, rule, RULES[rule].format(old=old, new=new)


class _Comparison:
    def __init__(self, old: Schema, new: Schema, adjacent: bool) -> None:
        self._old, self._new = old, new
        self._old_types, self._new_types = named_types(old), named_types(new)
        self._adjacent = adjacent
        self._done: set[tuple[str, str]] = set()

    def run(self) -> Iterator[Issue]:
        yield from self._types(self._old, self._new, "", "", full_name(self._new, ""))

    def _types(self, old: Any, new: Any, old_space: str, new_space: str, path: str) -> Iterator[Issue]:
        if isinstance(old, list) or isinstance(new, list):
            yield from self._unions(old, new, old_space, new_space, path)
            return
        old, old_name = _resolve(old, self._old_types, old_space)
        new, new_name = _resolve(new, self._new_types, new_space)
        old_kind = old if isinstance(old, str) else old["type"]
        new_kind = new if isinstance(new, str) else new["type"]
        if old_kind != new_kind:
            yield _issue(path, "type_changed", old_kind, new_kind)
            return
        if old_name != new_name and (
            old_name not in _aliases(new, new_name) or new_name not in _aliases(old, old_name)
        ):
            yield _issue(path, "type_renamed", old_name, new_name)
        if old_name:
            if (old_name, new_name) in self._done:
                return
            self._done.add((old_name, new_name))
        if old_kind == "record":
            yield from self._fields(old, new, old_name, new_name)
        elif old_kind == "enum":
            yield from _enums(old, new, new_name)
        elif old_kind == "fixed" and old["size"] != new["size"]:
            yield _issue(path, "type_changed", f"{old['size']} bytes", f"{new['size']} bytes")
        elif old_kind == "array":
            yield from self._types(old["items"], new["items"], old_space, new_space, path + "[]")
        elif old_kind == "map":
            yield from self._types(old["values"], new["values"], old_space, new_space, path + "{}")

    def _unions(self, old: Any, new: Any, old_space: str, new_space: str, path: str) -> Iterator[Issue]:
        was = old if isinstance(old, list) else [old]
        now = new if isinstance(new, list) else [new]
        if any(len(u) != 1 and (len(u) != 2 or u[0] != "null") for u in (was, now)):
            yield _issue(path, "union")
            return
        if len(was) != len(now):
            yield _issue(path, "union_grew" if len(was) < len(now) else "union_shrank")
        yield from self._types(was[-1], now[-1], old_space, new_space, path)

    def _fields(self, old: Schema, new: Schema, old_name: str, new_name: str) -> Iterator[Issue]:
        old_fields = {field["name"]: field for field in old["fields"]}
        old_space, new_space = old_name.rpartition(".")[0], new_name.rpartition(".")[0]
        for taker, alias in _ambiguous(old, new):
            yield _issue(f"{new_name}.{taker}", "alias_taken", alias, taker)
        matched: set[str] = set()
        added: list[dict[str, Any]] = []
        for field in new["fields"]:
            path = f"{new_name}.{field['name']}"
            name = next((n for n in (field["name"], *field.get("aliases", ())) if n in old_fields), None)
            if name is None:
                added.append(field)
                if "default" not in field:
                    yield _issue(path, "added_without_default")
                continue
            matched.add(name)
            was = old_fields[name]
            if name != field["name"] and field["name"] not in was.get("aliases", ()) and "default" not in was:
                yield _issue(path, "renamed_without_default", name, field["name"])
            yield from self._types(was["type"], field["type"], old_space, new_space, path)
            if ("default" in was, was.get("default")) != ("default" in field, field.get("default")):
                yield _issue(path, "default_changed")
        for name, field in old_fields.items():
            if name in matched:
                continue
            path = f"{new_name}.{name}"
            if "default" not in field:
                yield _issue(path, "removed_without_default")
            same = _spelling(field["type"], old_space)
            twin = next((a["name"] for a in added if _spelling(a["type"], new_space) == same), None)
            if self._adjacent and twin is not None:
                yield _issue(path, "renamed", name, twin)


def _ambiguous(old: Schema, new: Schema) -> list[tuple[str, str]]:
    """(field, alias) where readers of one version find two fields of a writer for one, or one for two."""
    found: dict[tuple[str, str], None] = {}
    for reader, writer in ((new, old), (old, new), (new, new)):
        written = {field["name"] for field in writer["fields"]}
        taken: set[str] = set()
        for field in reader["fields"]:
            own = field["name"]
            names = [n for n in dict.fromkeys((own, *field.get("aliases", ()))) if n in written]
            doubtful = {*names[1:], *taken.intersection(names)}
            taken.update(names)
            found.update(dict.fromkeys((own, name) for name in sorted(doubtful)))
    return list(found)


def _spelling(node: Any, space: str) -> Any:
    """A field's type in one spelling: named types by their names."""
    if isinstance(node, list):
        return [_spelling(branch, space) for branch in node]
    if isinstance(node, str):
        return node if node in PRIMITIVES or "." in node or not space else f"{space}.{node}"
    if node["type"] in ("record", "enum", "fixed"):
        return full_name(node, space)
    if node["type"] in ("array", "map"):
        return [node["type"], _spelling(node["items" if node["type"] == "array" else "values"], space)]
    return _spelling(node["type"], space)


def _enums(old: Schema, new: Schema, name: str) -> Iterator[Issue]:
    for schema, which in ((old, "old"), (new, "new")):
        if "default" not in schema:
            yield _issue(name, "enum_without_default", which)
    for symbol in old["symbols"]:
        if symbol not in new["symbols"]:
            yield _issue(name, "symbol_removed", symbol)
    if old.get("default") != new.get("default"):
        yield _issue(name, "default_changed")


def _aliases(schema: Any, name: str) -> list[str]:
    if not isinstance(schema, dict):
        return []
    space = name.rpartition(".")[0]
    return [a if "." in a or not space else f"{space}.{a}" for a in schema.get("aliases", ())]


def _resolve(node: Any, types: dict[str, Schema], space: str) -> tuple[Any, str]:
    if isinstance(node, str):
        if node in PRIMITIVES:
            return node, ""
        name = node if "." in node or not space else f"{space}.{node}"
        return types[name], name
    if node["type"] in ("record", "enum", "fixed"):
        return node, full_name(node, space)
    if node["type"] in ("array", "map"):
        return node, ""
    return _resolve(node["type"], types, space)
