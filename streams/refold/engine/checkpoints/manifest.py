"""The manifest: which files a checkpoint has, and of which moment of which topics it is.

A checkpoint exists when its manifest does: files are uploaded first, the manifest last. Its name holds its
creation time and the digest of its own bytes, so that a damaged manifest is noticed and two never collide::

    <created_ms, 13 digits>-<first 32 hex digits of the SHA-256 of its bytes>

``keys`` is the key filter (:mod:`keyfilter`): a file of the store and not of the DB's directory. Manifests of
format 1 have none. ``frontier`` is read from the checkpoint itself, not from the DB that goes on meanwhile.
``schemas``: the newest versions its writer knew of what rows hold; a build that knows less must not open it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from refold.engine.rows import Frontier
from refold.errors import StorageError
from refold.wire.schemas import registry

#: Raised when the manifest's or the store's layout changes; a newer one is left alone by older builds.
FORMAT: Final = 2

#: 64 hex digits, a name and a length per file are about 130 bytes: 30 000 files, 2 TB of 64 MiB SSTs.
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024

#: Subjects of what a row holds (:mod:`refold.engine.rows`).
SUBJECTS: Final = ("refold.SessionSnapshot", "refold.HistoryBlock", "refold.GenerationRecord")

DIGEST_DIGITS: Final = 32

#: Name of the key filter in messages; no file of a DB is called so.
FILTER_NAME: Final = "keys.filter"

_ID: Final = re.compile(r"[0-9]{13}-[0-9a-f]{32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


class NewerFormat(StorageError):
    """Written by a newer refold: neither used nor deleted here."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its name in the DB directory, its content's address, its length in bytes."""

    name: str
    sha256: str
    length: int


@dataclass(frozen=True, slots=True)
class Manifest:
    prefix: str
    partition: int
    created_ms: int
    writer: str
    frontier: Frontier
    schemas: Mapping[str, int]
    files: tuple[Entry, ...]
    keys: Entry | None = None

    @property
    def length(self) -> int:
        """Bytes of the DB."""
        return sum(entry.length for entry in self.files)

    @property
    def named(self) -> tuple[Entry, ...]:
        """Everything in the store that belongs to it."""
        return self.files if self.keys is None else (*self.files, self.keys)

    def encode(self) -> tuple[str, bytes]:
        """Its id and its bytes."""
        row = {"format": FORMAT, **asdict(self)}
        data = orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
        return f"{self.created_ms:013d}-{hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]}", data


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def created_ms(checkpoint: str) -> int:
    return int(checkpoint[:13])


def decode(checkpoint: str, data: bytes) -> Manifest:
    """The manifest stored under an id. Raises :class:`StorageError` for anything that cannot be trusted, and
    :class:`NewerFormat` for what is not for this build."""
    if hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS] != checkpoint[-DIGEST_DIGITS:]:
        raise StorageError(f"the manifest {checkpoint} was damaged: its bytes are not those of its name")
    try:
        row: Any = orjson.loads(data)
        number = int(row.pop("format"))
        if number > FORMAT:
            raise NewerFormat(
                f"the manifest {checkpoint} has format {number} and this build knows {FORMAT}: it was written"
                " by a newer refold"
            )
        files = tuple(Entry(**entry) for entry in row.pop("files"))
        frontier = Frontier(**row.pop("frontier"))
        keys = None if row.get("keys") is None else Entry(**row["keys"])
        manifest = Manifest(**{**row, "files": files, "frontier": frontier, "keys": keys})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StorageError(f"the manifest {checkpoint} is not readable") from None
    names = [entry.name for entry in files]
    if (
        len(set(names)) != len(names)
        or "CURRENT" not in names
        or not all(_FILE.fullmatch(entry.name) for entry in files)
        or not all(_SHA256.fullmatch(entry.sha256) and entry.length >= 0 for entry in manifest.named)
    ):
        raise StorageError(f"the manifest {checkpoint} does not name the files of a DB")
    return manifest


def known_schemas() -> dict[str, int]:
    """The newest versions this build knows of what a row holds."""
    return {subject: registry().get(subject).version for subject in SUBJECTS}


def unknown_schema(manifest: Manifest, known: Mapping[str, int]) -> bool:
    """Whether rows may be in a schema that this build cannot read."""
    return any(version > known.get(subject, 0) for subject, version in manifest.schemas.items())
