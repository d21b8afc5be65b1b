"""Rules H4 and H5: records that wait because their session is not known yet, and what is not handled twice.

Pure; one per partition that is restored hot first, or that was left with records handled beyond the committed
offset; the event loop owns it.

Invariants: a session with a parked record has all its later ones parked too, in order; parked records are
bounded in number (the commit metadata's size) and in bytes; what a predecessor handled beyond the committed
offset is skipped exactly once it is read again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from refold.engine.chunks import Record
from refold.engine.warming.beyond import PARKED_MAX, Beyond

#: Bytes of parked records of one partition, one record more at most: 64 partitions hold 64 MiB.
PARKED_BYTES_MAX: Final = 1024 * 1024

#: A record's objects around its bytes.
RECORD_BYTES: Final = 500


class Parking:
    __slots__ = ("_by_key", "_offsets", "_skip", "again", "behind", "bytes", "looking", "most", "task")

    def __init__(self, skip: Beyond | None = None, *, most: int | None = None) -> None:
        #: From the commit metadata that the partition was taken over with, or rewound to.
        self._skip = skip
        self._by_key: dict[bytes, deque[Record]] = {}
        #: Ascending: records are parked in the order of the partition.
        self._offsets: dict[int, None] = {}
        self.most = PARKED_MAX if most is None else min(most, PARKED_MAX)
        self.bytes = 0
        #: Sessions whose oldest parked record waits for batches (rule G10).
        self.behind: set[bytes] = set()
        #: Folds what has become known, and whether it is to look once more; another one waits for batches.
        self.task: asyncio.Task[None] | None = None
        self.again = False
        self.looking = False

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    @property
    def full(self) -> bool:
        return len(self._offsets) >= self.most or self.bytes >= PARKED_BYTES_MAX

    @property
    def roomy(self) -> bool:
        """Worth going on for: going on costs a fetch."""
        return len(self._offsets) * 4 <= self.most * 3 and self.bytes * 4 <= PARKED_BYTES_MAX * 3

    def skips(self, offset: int) -> bool:
        """Handled by whoever committed what this partition was read again from."""
        skip = self._skip
        return skip is not None and skip.handled(offset)

    def ended(self, position: int) -> bool:
        """Nothing is parked, and nothing from ``position`` on is to be skipped."""
        return not self._offsets and (self._skip is None or position >= self._skip.position)

    def add(self, key: bytes, record: Record) -> None:
        self._by_key.setdefault(key, deque()).append(record)
        self._offsets[record.offset] = None
        self.bytes += _size(record)

    def sessions(self) -> list[bytes]:
        """The sessions with parked records, the one with the oldest first."""
        return sorted(self._by_key, key=lambda key: self._by_key[key][0].offset)

    def oldest(self, key: bytes) -> Record | None:
        waiting = self._by_key.get(key)
        return waiting[0] if waiting else None

    def handled(self, key: bytes) -> None:
        """The oldest parked record of the session was."""
        waiting = self._by_key[key]
        record = waiting.popleft()
        if not waiting:
            del self._by_key[key]
        del self._offsets[record.offset]
        self.bytes -= _size(record)
        self.behind.discard(key)

    def beyond(self, position: int) -> Beyond | None:
        """What is to be committed when the partition was folded up to ``position``; ``None``: just that."""
        skip, parked = self._skip, tuple(self._offsets)
        if skip is not None and position < skip.position:
            # What is left of the predecessor's: not read again yet.
            return Beyond(skip.position, parked + skip.waiting(position))
        return Beyond(position, parked) if parked else None


def _size(record: Record) -> int:
    return RECORD_BYTES + len(record.value or b"") + len(record.key or b"")
