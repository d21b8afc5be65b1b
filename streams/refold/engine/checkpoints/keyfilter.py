"""Which sessions a checkpoint has, in 1.25 bytes each: a Bloom filter over its session keys.

It is a file of its own in the store, named by the manifest, so that a reader can tell that a session is *not*
in a copy without fetching the copy. Says "not" only where it is so; says "perhaps" for at most one in a
hundred of those that are not. Its bytes are a function of the set of keys and nothing else: the same keys
again are the same file, which is not sent twice.

Pure; :class:`Builder` is fed by whoever has the DB open.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from refold.errors import StorageError

#: With k probes and b bits per key a filter errs with (1 - e^(-k/b))^k: 10 and 7 make 0.82 %.
BITS_PER_KEY: Final = 10
PROBES: Final = 7

#: 50 MB, a second of download. A partition with more sessions gets no filter.
KEYS_MAX: Final = 40_000_000

#: Small filters err more often than the formula says, because probes of a key meet: not from 4 096 bits on.
BITS_MIN: Final = 4_096

#: Magic, version, probes, two unused bytes, keys, bits.
_HEAD: Final = struct.Struct("<4sBBHQQ")
_MAGIC: Final = b"RFKF"
_VERSION: Final = 1

FILTER_BYTES_MAX: Final = _HEAD.size + KEYS_MAX * BITS_PER_KEY // 8

_HALVES: Final = struct.Struct("<QQ")


def bits_for(keys: int) -> int:
    """Size in bits for so many keys; whole bytes."""
    return -(-max(keys * BITS_PER_KEY, BITS_MIN) // 8) * 8


def _probe(key: bytes, bits: int) -> tuple[int, int]:
    """First place and step: probe i is at ``first + i * step``, modulo the size."""
    # Not `hash()`: another process must find the same bits.
    first, step = _HALVES.unpack(hashlib.blake2b(key, digest_size=16).digest())
    return first % bits, step % bits or 1


class Builder:
    """``keys``: how many will be added, at most. Memory: 1.25 bytes per key, at least 512 bytes."""

    def __init__(self, keys: int) -> None:
        """Raises :class:`ValueError` above ``KEYS_MAX``."""
        if not 0 <= keys <= KEYS_MAX:
            raise ValueError(f"a filter holds up to {KEYS_MAX} keys")
        self._keys = keys
        self._bits = bits_for(keys)
        self._data = bytearray(self._bits // 8)

    def add(self, key: bytes) -> None:
        data, bits = self._data, self._bits
        at, step = _probe(key, bits)
        for _ in range(PROBES):
            data[at >> 3] |= 1 << (at & 7)
            at += step
            if at >= bits:
                at -= bits

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(_HEAD.pack(_MAGIC, _VERSION, PROBES, 0, self._keys, self._bits))
            file.write(self._data)

    def done(self, state_next: int) -> KeyFilter:
        return KeyFilter(state_next, self._keys, self._bits, PROBES, bytes(self._data))


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """``state_next``: the checkpoint holds what the state changelog says before this offset. ``keys``: how
    many sessions it has."""

    state_next: int
    keys: int
    bits: int
    probes: int
    data: bytes

    def holds(self, key: bytes) -> bool:
        """False: the copy has no session of this record key (``tenant/session``). True: it has, or (one in a
        hundred) it has not."""
        data, bits = self.data, self.bits
        at, step = _probe(key, bits)
        for _ in range(self.probes):
            if not data[at >> 3] >> (at & 7) & 1:
                return False
            at += step
            if at >= bits:
                at -= bits
        return True


def decode(data: bytes, state_next: int) -> KeyFilter:
    """``state_next``: the manifest's. Raises :class:`StorageError` for what is no filter of this version."""
    try:
        magic, version, probes, _, keys, bits = _HEAD.unpack_from(data)
    except struct.error:
        raise StorageError("the key filter is too short to be one") from None
    if magic != _MAGIC or version != _VERSION:
        raise StorageError(f"the key filter is not one of version {_VERSION}")
    if not (0 < probes <= 64 and bits > 0 and bits == (len(data) - _HEAD.size) * 8):
        raise StorageError("the key filter does not have the length it says")
    return KeyFilter(state_next, keys, bits, probes, bytes(data[_HEAD.size :]))
