"""Sets of keys that may hold some more than were put in, and how much memory all of a worker may take.

What such a set does not hold was not put in: that is all that is ever concluded from one. A key is one bit,
of its crc32: no hash of the interpreter's, so that a simulation does not depend on its process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final
from zlib import crc32

#: Per offset that keys may come from: of 1 000 000 keys 3 % of the others seem to be in.
BYTES_PER_OFFSET: Final = 4

#: Of one set: 5 000 000 keys, and 4 % of the others.
BYTES_MAX: Final = 16 * 1024 * 1024
BYTES_MIN: Final = 1024

#: Of all sets of a worker, of which a restore has two at most.
ALL_BYTES_MAX: Final = 64 * 1024 * 1024


class Keys:
    """One thread adds; others may look."""

    __slots__ = ("_bits", "_mask", "size")

    def __init__(self, size: int) -> None:
        """``size``: bytes, a power of two."""
        self.size = size
        self._bits = bytearray(size)
        self._mask = size * 8 - 1

    def add_all(self, keys: Iterable[bytes]) -> None:
        bits, mask = self._bits, self._mask
        for at in map(crc32, keys):
            at &= mask
            bits[at >> 3] |= 1 << (at & 7)

    def __contains__(self, key: bytes) -> bool:
        at = crc32(key) & self._mask
        return bool(self._bits[at >> 3] >> (at & 7) & 1)


class Allowance:
    """Of one worker. Thread-safe."""

    def __init__(self, size: int = ALL_BYTES_MAX) -> None:
        self._left = size
        self._lock = threading.Lock()

    def keys(self, offsets: int) -> Keys | None:
        """For the keys of so many offsets; ``None``: other restores have it all."""
        size = BYTES_MIN
        while size < min(offsets * BYTES_PER_OFFSET, BYTES_MAX):
            size *= 2
        with self._lock:
            if size > self._left:
                return None
            self._left -= size
        return Keys(size)

    def back(self, keys: Keys) -> None:
        with self._lock:
            self._left += keys.size
