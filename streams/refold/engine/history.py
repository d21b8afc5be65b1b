"""The per-session history index: which journal offsets hold a session's events (architecture.md, section 7).

Events are numbered from 1. Block ``b`` lists the journal offsets of the events ``b*64+1 … b*64+64`` and is
written when it is full; the open block travels with the state record, in its ``refold-history`` header:
``zlong(first_seq) zlong(bound) zlong(n) zlong(offset₀) zlong(offset₁ - offset₀) …``. ``bound`` is a journal
offset not after any event newer than those listed.

Invariant: a committed state record lists *all* events of its open block. That is why the commit waits for the
journal's acknowledgement before it produces state records: offsets are known, never guessed (``commit.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from refold.errors import StorageError
from refold.wire.codec import decode, encode
from refold.wire.varint import read_zlong, zlong

#: Events per block: contract. 64 offsets are 65-200 bytes of header on every state record.
BLOCK_EVENTS: Final = 64

SUBJECT: Final = "refold.HistoryBlock"
HEADER: Final = "refold-history"


class Tail(NamedTuple):
    """The open block, kept encoded: events are only ever added, so a commit appends to ``deltas`` instead of
    encoding up to 63 offsets anew. Immutable, so an abort needs no undo. ``bound`` is one past the last
    listed offset.
    """

    first_seq: int
    bound: int
    listed: int
    deltas: bytes

    @property
    def blocks(self) -> int:
        """Full blocks before this one."""
        return (self.first_seq - 1) // BLOCK_EVENTS

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.listed - 1

    @property
    def offsets(self) -> list[int]:
        """``offsets[i]`` holds event ``first_seq + i``."""
        return _undelta(self.deltas, self.listed)[0]


def _undelta(deltas: bytes, count: int) -> tuple[list[int], int]:
    """(offsets, position after them)."""
    found: list[int] = []
    at = offset = 0
    for _ in range(count):
        delta, at = read_zlong(deltas, at)
        offset += delta
        found.append(offset)
    return found, at


EMPTY: Final = Tail(1, 0, 0, b"")


def extend(tail: Tail, offsets: Sequence[int]) -> tuple[Tail, list[tuple[int, bytes]]]:
    """The tail after events at ``offsets``, and the blocks this fills as (block number, framed value)."""
    if not offsets:
        return tail, _NONE
    first, count, deltas = tail.first_seq, tail.listed, tail.deltas
    last = tail.bound - 1 if count else 0
    full = _NONE
    for offset in offsets:
        deltas += zlong(offset - last)
        last = offset
        count += 1
        if count == BLOCK_EVENTS:
            listed = Tail(first, offset + 1, count, deltas).offsets
            full = [*full, ((first - 1) // BLOCK_EVENTS, encode_block(first, listed))]
            first, count, deltas, last = first + BLOCK_EVENTS, 0, b"", 0
    return Tail(first, offsets[-1] + 1, count, deltas), full


def filled(listed: int, events: int) -> int:
    """How many blocks :func:`extend` fills when ``events`` follow an open block of ``listed``."""
    return (listed + events) // BLOCK_EVENTS


#: Never changed.
_NONE: list[tuple[int, bytes]] = []


def block_key(key: bytes, block: int) -> bytes:
    return b"%s#%08X" % (key, block)


def encode_block(first_seq: int, offsets: Sequence[int]) -> bytes:
    return encode(SUBJECT, {"first_seq": first_seq, "offsets": list(offsets)})


def decode_block(value: bytes) -> Sequence[int]:
    offsets: Sequence[int] = decode(value, expect=SUBJECT).record["offsets"]
    return offsets


def encode_tail(tail: Tail) -> bytes:
    return zlong(tail.first_seq) + zlong(tail.bound) + zlong(tail.listed) + tail.deltas


def decode_tail(data: bytes) -> Tail:
    """Raises :class:`StorageError`: only a worker writes this header, so other bytes are damage."""
    if not data:
        return EMPTY
    try:
        first, at = read_zlong(data, 0)
        bound, at = read_zlong(data, at)
        count, at = read_zlong(data, at)
        tail = Tail(first, bound, count, data[at:])
        if not 0 <= count < BLOCK_EVENTS:
            raise ValueError("its count is none of an open block")
        offsets, end = _undelta(tail.deltas, count)
        if end != len(tail.deltas) or (count and offsets[-1] != bound - 1):
            raise ValueError("its bound is not one past its last offset")
    except (ValueError, IndexError):
        raise StorageError(
            "a state record has a damaged refold-history header; rebuild the session with"
            " `refold session fold`"
        ) from None
    return tail
