"""Rows of a copy against what its changelogs say of them: pure, over two sequences in the order of keys.

What the log says is the last record of a key before the copy's frontier. The copy is exactly at that frontier
(one commit is one atom), so the two are equal to the byte, with one exception: while the log is read,
compaction may take a record of which a newer one exists. That one lies behind the frontier, so a key that has
records there is only compared in so far as it agrees: it is *superseded*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

#: missing: no row, and no deletion follows the record. older, newer: a row of another seq; newer: the disk is
#: ahead of the log. other: other bytes under one seq. deleted: a row, although the last record deletes it.
#: unsaid: a row of which the log says nothing.
Kind = Literal["missing", "older", "newer", "other", "deleted", "unsaid"]

DIGEST_BYTES: Final = 16


class Said(NamedTuple):
    """The last record of a key. ``digest``: of the row that it makes, ``None`` for a deletion. ``seq`` is -1
    where rows have none."""

    offset: int
    seq: int
    digest: bytes | None


@dataclass(frozen=True, slots=True)
class Difference:
    """``offset``: of the record, -1 where there is none."""

    kind: Kind
    key: bytes
    offset: int


def digest(row: bytes) -> bytes:
    return hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest()


def differences(
    said: Iterator[tuple[bytes, Said]],
    rows: Iterator[tuple[bytes, bytes]],
    *,
    seq_of: Callable[[bytes], int] | None,
    superseded: Callable[[bytes], bool],
) -> Iterator[Difference]:
    """Both ascending by key, each key once. ``seq_of`` a row: ``None`` where rows have none."""
    record, row = next(said, None), next(rows, None)
    while record is not None or row is not None:
        if record is None or (row is not None and row[0] < record[0]):
            if row is not None and not superseded(row[0]):
                yield Difference("unsaid", row[0], -1)
            row = next(rows, None)
            continue
        key, what = record
        here = row is not None and row[0] == key
        kind = _kind(what, row[1] if here and row is not None else None, seq_of)
        if kind is not None and not superseded(key):
            yield Difference(kind, key, what.offset)
        record = next(said, None)
        if here:
            row = next(rows, None)


def _kind(said: Said, row: bytes | None, seq_of: Callable[[bytes], int] | None) -> Kind | None:
    if row is None:
        return None if said.digest is None else "missing"
    if said.digest is None:
        return "deleted"
    if digest(row) == said.digest:
        return None
    if seq_of is None:
        return "other"
    try:
        seq = seq_of(row)
    except Exception:
        # Too short to be a row at all.
        return "other"
    return "other" if seq == said.seq else "older" if seq < said.seq else "newer"
