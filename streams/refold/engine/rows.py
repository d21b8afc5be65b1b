"""What a RocksDB row looks like. One column family, six kinds of keys, so that one WriteBatch is one atom.

=====================  ==================================================================================
key                    value
=====================  ==================================================================================
``s`` + record key     seq (8 bytes), length of the tail (4 bytes), the ``refold-history`` tail, the snapshot
``h`` + block key      the framed history block
``g`` + side key       a framed side row (:mod:`refold.engine.side`), under the key of its changelog
``k`` + record key     empty: the session's row, or that it has none, is newer than the hole (rule H3)
``x`` + block key      empty: the same of a history block
``m`` + ``frontier``   :class:`Frontier`: how far this DB is, written in every batch
``m`` + ``partition``  whose copy this is, ``<prefix>/<partition>``; written by a restore
``m`` + ``validated``  up to where the copy was compared with its changelogs (:mod:`refold.engine.validation`)
=====================  ==================================================================================
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import orjson

from refold.errors import StorageError
from refold.wire.varint import read_zlong

STATE: Final = b"s"
BLOCK: Final = b"h"
SIDE: Final = b"g"
NOTE: Final = b"m"
KNOWN: Final = b"k"
KNOWN_BLOCK: Final = b"x"
FRONTIER_KEY: Final = b"mfrontier"
PARTITION_KEY: Final = b"mpartition"
VALIDATED_KEY: Final = b"mvalidated"

#: Magic 0 and the 4-byte schema id: what the worker writes.
FRAME_BYTES: Final = 5

#: Raised when a row's layout changes: an older DB is set aside and rebuilt from the changelog.
FORMAT: Final = 2

#: What the frontier rows of format 1 did not have. They are still read, so that such a DB is set aside as of
#: another format and not as damaged.
_ABSENT: Final[dict[str, Any]] = {"generations_topic": "", "batches_next": -1, "generations_next": 0}

_NO_HOLE: Final = b',"hole":null'

_HEAD: Final = struct.Struct("<qI")


def pack(seq: int, tail: bytes, snapshot: bytes) -> bytes:
    return b"".join((_HEAD.pack(seq, len(tail)), tail, snapshot))


def seq_of(row: bytes) -> int:
    return int(_HEAD.unpack_from(row)[0])


def tail_of(row: bytes) -> bytes:
    _, length = _HEAD.unpack_from(row)
    return row[_HEAD.size : _HEAD.size + length]


def snapshot_of(row: bytes) -> bytes:
    _, length = _HEAD.unpack_from(row)
    return row[_HEAD.size + length :]


def snapshot_seq(snapshot: bytes) -> int:
    """The seq in a framed snapshot, without decoding it: tenant, session_id, seq come first (contract)."""
    at = FRAME_BYTES
    try:
        for _ in range(2):
            length, at = read_zlong(snapshot, at)
            at += length
        return read_zlong(snapshot, at)[0]
    except (ValueError, IndexError):
        raise StorageError(
            "a state record is not a snapshot: was something else written to the state topic?"
        ) from None


@dataclass(frozen=True, slots=True)
class Hole:
    """Rule H6: records of the state changelog in [low, high) that are not in this DB, while those before and
    after are. ``marked``: every session whose row is newer has a ``k`` row; otherwise the DB was empty at
    first, so only what has no row (a deletion) needs one."""

    low: int
    high: int
    marked: bool


@dataclass(frozen=True, slots=True)
class Frontier:
    """``inbox_next``, ``batches_next``: everything before it is folded in. The other ``*_next``: changelog
    read or written up to here.

    The topic ids tell a recreated topic of the same name from the one this DB was made of. ``applied_ms``:
    wall clock of the write (rule Z: too old a copy is rebuilt, because tombstones may be gone). ``hole``: in
    a DB that was being restored hot first; ``history_next`` is then how far that was read in the background,
    and ``applied_ms`` the age of what lies below the hole.
    """

    state_topic: str
    history_topic: str
    generations_topic: str
    inbox_next: int
    batches_next: int
    state_next: int
    history_next: int
    generations_next: int
    applied_ms: int
    format: int = FORMAT
    hole: Hole | None = None

    def encode(self) -> bytes:
        # orjson writes a dataclass as its fields, slots or not.
        written = orjson.dumps(self)
        # Without a hole the row is what it was before there were any: an older build reads it.
        return written if self.hole is not None else written.replace(_NO_HOLE, b"")

    @classmethod
    def decode(cls, data: bytes) -> Frontier:
        try:
            row: Any = orjson.loads(data)
            if row.get("hole") is not None:
                row["hole"] = Hole(**row["hole"])
            return cls(**{**_ABSENT, **row})
        except (ValueError, TypeError, AttributeError):
            raise StorageError("the frontier row is not readable") from None


@dataclass(frozen=True, slots=True)
class Validated:
    """The copy was what the changelogs said, up to ``state_next`` of the state topic."""

    state_topic: str
    state_next: int

    def encode(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes) -> Validated:
        """One that is not readable says nothing."""
        try:
            return cls(**orjson.loads(data))
        except (ValueError, TypeError):
            return cls("", -1)
