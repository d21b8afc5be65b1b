"""The file registry: schema id or GUID ↔ schema, and compiled readers into the newest version.

Needs no service: the schemas travel with the package and their ids are pinned. A record written with an
older version of a subject is read *as the newest one* (missing fields get their declared defaults), so the
rest of refold knows one shape per subject.

Ids the lock does not know may belong to a real registry; :mod:`refold.wire.confluent` plugs one in through
:attr:`SchemaRegistry.foreign`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

from refold.errors import ConfigError, InvalidRecord, NotFound
from refold.wire.canonical import sha256_of
from refold.wire.framing import frame
from refold.wire.readers import Reader, compile_reader
from refold.wire.schemafiles import (
    LOCK_FILE,
    Schema,
    SchemaFiles,
    SubjectInfo,
    load_schema_files,
    schema_root,
)
from refold.wire.schemalock import Pin, read_lock
from refold.wire.writers import Writer, compile_writer

ForeignResolver = Callable[[int | uuid.UUID], "SchemaEntry | None"]


class SchemaEntry:
    """One pinned version of one subject. ``schema`` is self-contained; ``frame`` precedes a record."""

    def __init__(self, pin: Pin, schema: Schema, newest: Schema | None = None) -> None:
        self.subject = pin.subject
        self.version = pin.version
        self.id = pin.id
        self.guid = pin.guid
        self.sha256 = pin.sha256
        self.schema = schema
        self.frame = frame(pin.id)
        self._newest = newest if newest is not None else schema
        #: True when this is the schema records are written with, so that its bytes need no re-encoding.
        self.is_newest = self._newest is schema

    @cached_property
    def text(self) -> str:
        """The schema as JSON text, docs included: what a registry serves."""
        return json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))

    @cached_property
    def read(self) -> Reader:
        """Reads a record of this version as the newest one. First access: ConfigError on drift."""
        self._check()
        return compile_reader(self.schema, self._newest)

    @cached_property
    def write(self) -> Writer:
        """Writes a record of this version. First access: ConfigError on drift."""
        self._check()
        return compile_writer(self.schema)

    def _check(self) -> None:
        if sha256_of(self.schema) != self.sha256:
            raise ConfigError(
                f"the schema file of {self.subject} version {self.version} is not the one id {self.id} was "
                "pinned to: run `refold registry check`"
            )


class SchemaRegistry:
    """Every subject version of a schema directory. Immutable but for :attr:`foreign`."""

    def __init__(self, files: SchemaFiles, pins: tuple[Pin, ...]) -> None:
        schemas = {(f.subject, f.version): f.schema for f in files.versions}
        newest: dict[str, tuple[int, Schema]] = {}
        for pin in pins:
            schema = schemas.get((pin.subject, pin.version))
            if schema is None:
                raise ConfigError(
                    f"{files.root / LOCK_FILE} pins {pin.subject} version {pin.version} but its file is "
                    "gone: restore it"
                )
            if pin.version > newest.get(pin.subject, (0, schema))[0]:
                newest[pin.subject] = (pin.version, schema)
        self.root = files.root
        self.compatibility = files.compatibility
        self.subjects: Mapping[str, SubjectInfo] = {s: i for s, i in files.subjects.items() if s in newest}
        self.reserved = files.reserved
        self.entries: tuple[SchemaEntry, ...] = tuple(
            SchemaEntry(p, schemas[p.subject, p.version], newest[p.subject][1]) for p in pins
        )
        #: Asked for ids and GUIDs that are not pinned; may block; UnavailableError when it cannot tell.
        self.foreign: ForeignResolver | None = None
        self._by_id = {e.id: e for e in self.entries}
        self._by_guid = {e.guid: e for e in self.entries}
        self._versions: dict[str, dict[int, SchemaEntry]] = {}
        for entry in self.entries:
            self._versions.setdefault(entry.subject, {})[entry.version] = entry

    def resolve(self, ref: int | uuid.UUID) -> SchemaEntry:
        """The schema a frame names. Raises InvalidRecord("unknown_schema")."""
        entry = self._by_id.get(ref) if isinstance(ref, int) else self._by_guid.get(ref)
        if entry is None and self.foreign is not None:
            entry = self.foreign(ref)
        if entry is None:
            kind = "id" if isinstance(ref, int) else "GUID"
            raise InvalidRecord(
                "unknown_schema",
                f"schema {kind} {ref} is neither pinned here nor known to a registry: the writer may be "
                "newer than this reader (upgrade it), or use a registry that registry_url does not name",
            )
        return entry

    def get(self, subject: str, version: int | None = None) -> SchemaEntry:
        """One version of a subject, the newest when ``version`` is None. Raises NotFound."""
        versions = self._versions.get(subject)
        if versions is None:
            hint = (
                "its name is reserved, it has no schema yet"
                if subject in self.reserved
                else "see `refold registry list`"
            )
            raise NotFound(f"no subject {subject}: {hint}")
        wanted = max(versions) if version is None else version
        if wanted not in versions:
            raise NotFound(
                f"subject {subject} has no version {wanted}, only {', '.join(map(str, sorted(versions)))}"
            )
        return versions[wanted]

    def versions(self, subject: str) -> tuple[SchemaEntry, ...]:
        """All versions of a subject, oldest first; empty when there is no such subject."""
        return tuple(e for _, e in sorted(self._versions.get(subject, {}).items()))

    def has(self, subject: str) -> bool:
        return subject in self._versions

    def is_pinned(self, entry: SchemaEntry) -> bool:
        """True for an entry of the lock, False for one that a foreign registry brought."""
        return self._by_id.get(entry.id) is entry


def load_registry(root: Path) -> SchemaRegistry:
    """The registry over a schema directory. Raises ConfigError."""
    return SchemaRegistry(load_schema_files(root), read_lock(root))


@lru_cache(maxsize=1)
def registry() -> SchemaRegistry:
    """The registry of the installed schemas; loaded once per process."""
    return load_registry(schema_root())
