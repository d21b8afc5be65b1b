"""``schemas.lock.json``: which id and GUID a subject version has, for ever, and what it meant when pinned.

Ids start at ``ID_BASE`` ("RF" in the first two bytes), far above what a registry hands out by counting, so
that a record written with a foreign registry's id is never taken for one of ours, nor the other way round.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from refold.errors import ConfigError
from refold.wire.canonical import guid_of, sha256_of
from refold.wire.schemafiles import LOCK_FILE, SchemaFiles

#: 0x5246 is "RF"; the low 16 bits count. 65 535 versions of all subjects together.
ID_BASE: Final = 0x5246_0000
ID_MAX: Final = ID_BASE + 0xFFFF

LOCK_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Pin:
    subject: str
    version: int
    id: int
    guid: uuid.UUID
    sha256: str


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference between the files and the lock. ``kind``: changed, missing_file or not_locked."""

    kind: str
    subject: str
    version: int
    text: str


def read_lock(root: Path) -> tuple[Pin, ...]:
    """The pins in the order of their ids; empty when there is no lock yet. Raises ConfigError."""
    path = root / LOCK_FILE
    if not path.exists():
        return ()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != LOCK_FORMAT:
            raise ConfigError(
                f"{path} has format {document['format']}, this refold reads {LOCK_FORMAT}: upgrade refold"
            )
        pins = tuple(
            Pin(e["subject"], e["version"], e["id"], uuid.UUID(e["guid"]), e["sha256"])
            for e in document["schemas"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error!r}): take it from version control again") from None
    if len({p.id for p in pins}) != len(pins) or len({(p.subject, p.version) for p in pins}) != len(pins):
        raise ConfigError(f"{path} pins an id or a subject version twice: take it from version control again")
    return tuple(sorted(pins, key=lambda p: p.id))


def find_drift(files: SchemaFiles, pins: Iterable[Pin]) -> list[Drift]:
    """Every difference between files and lock, in the order of the lock, then of the files."""
    by_key = {(f.subject, f.version): f for f in files.versions}
    drift: list[Drift] = []
    pinned: set[tuple[str, int]] = set()
    for pin in pins:
        key = (pin.subject, pin.version)
        pinned.add(key)
        file = by_key.get(key)
        if file is None:
            text = f"{pin.subject} version {pin.version} (id {pin.id}) has an id but no file: restore it"
            drift.append(Drift("missing_file", *key, text))
        elif sha256_of(file.schema) != pin.sha256:
            text = (
                f"{pin.subject} version {pin.version} ({file.path}, or a type it names) differs from what "
                f"id {pin.id} was pinned to: records with the old meaning exist, so undo the change and add "
                "a new version instead"
            )
            drift.append(Drift("changed", *key, text))
    for key, file in by_key.items():
        if key not in pinned:
            text = f"{file.subject} version {file.version} has no id yet: run `refold registry lock`"
            drift.append(Drift("not_locked", *key, text))
    return drift


def append_pins(files: SchemaFiles, pins: tuple[Pin, ...]) -> tuple[Pin, ...]:
    """The pins and every new subject version. Raises ConfigError when a pinned one changed or is gone."""
    for drift in find_drift(files, pins):
        if drift.kind != "not_locked":
            raise ConfigError(drift.text)
    known = {(p.subject, p.version) for p in pins}
    next_id = max((p.id for p in pins), default=ID_BASE) + 1
    added: list[Pin] = []
    for file in files.versions:
        if (file.subject, file.version) in known:
            continue
        if next_id > ID_MAX:
            raise ConfigError(f"no schema id left above {ID_MAX:#x}")
        guid = guid_of(file.subject, file.version, file.schema)
        added.append(Pin(file.subject, file.version, next_id, guid, sha256_of(file.schema)))
        next_id += 1
    return pins + tuple(added)


def write_lock(root: Path, pins: Iterable[Pin]) -> None:
    """Writes the lock, one pin a line so that a merge conflict shows which one."""
    rows = [
        json.dumps(
            {"id": p.id, "subject": p.subject, "version": p.version, "guid": str(p.guid), "sha256": p.sha256},
            separators=(", ", ": "),
        )
        for p in pins
    ]
    body = ",\n".join(f"    {row}" for row in rows)
    text = f'{{\n  "format": {LOCK_FORMAT},\n  "schemas": [\n{body}\n  ]\n}}\n'
    (root / LOCK_FILE).write_text(text, encoding="utf-8")
