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
    """The open block: ``offsets[i]`` holds event ``first_seq + i``. Immutable, so an abort needs no undo."""

    first_seq: int
    bound: int
    offsets: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Full blocks before this one."""
        return (self.first_seq - 1) // BLOCK_EVENTS

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.offsets) - 1


EMPTY: Final = Tail(1, 0, ())


def extend(tail: Tail, offsets: Sequence[int]) -> tuple[Tail, list[tuple[int, bytes]]]:
    """The tail after events at ``offsets``, and the blocks this fills as (block number, framed value)."""
    if not offsets:
        return tail, []
    first, known = tail.first_seq, [*tail.offsets, *offsets]
    full: list[tuple[int, bytes]] = []
    while len(known) >= BLOCK_EVENTS:
        full.append(((first - 1) // BLOCK_EVENTS, encode_block(first, known[:BLOCK_EVENTS])))
        del known[:BLOCK_EVENTS]
        first += BLOCK_EVENTS
    return Tail(first, offsets[-1] + 1, tuple(known)), full


def block_key(key: bytes, block: int) -> bytes:
    return b"%s#%08X" % (key, block)


def encode_block(first_seq: int, offsets: Sequence[int]) -> bytes:
    return encode(SUBJECT, {"first_seq": first_seq, "offsets": list(offsets)})


def decode_block(value: bytes) -> Sequence[int]:
    offsets: Sequence[int] = decode(value, expect=SUBJECT).record["offsets"]
    return offsets


def encode_tail(tail: Tail) -> bytes:
    parts = [zlong(tail.first_seq), zlong(tail.bound), zlong(len(tail.offsets))]
    previous = 0
    for offset in tail.offsets:
        parts.append(zlong(offset - previous))
        previous = offset
    return b"".join(parts)


def decode_tail(data: bytes) -> Tail:
    """Raises :class:`StorageError`: only a worker writes this header, so other bytes are damage."""
    if not data:
        return EMPTY
    try:
        first, at = read_zlong(data, 0)
        bound, at = read_zlong(data, at)
        count, at = read_zlong(data, at)
        offsets: list[int] = []
        offset = 0
        for _ in range(count):
            delta, at = read_zlong(data, at)
            offset += delta
            offsets.append(offset)
    except (ValueError, IndexError):
        raise StorageError(
            "a state record has a damaged refold-history header; rebuild the session with `refold session"
            " fold`"
        ) from None
    return Tail(first, bound, tuple(offsets))
