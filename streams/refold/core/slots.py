"""Which partition a session belongs to: key -> slot -> partition. Wire contract.

``slot = (murmur2(key) & 0x7fffffff) mod slots`` and ``partition = map[slot]``. The first map is
``slot mod partitions``; because the slot count is a multiple of the partition count this equals
``murmur2(key) mod partitions``, what Java's default partitioner computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from refold.errors import ConfigError, InvalidRecord

#: tenant/session in UTF-8. Two ids of 255 bytes and the slash are 511.
KEY_BYTES_MAX: Final = 512

#: 20 160 = 2^6 * 3^2 * 5 * 7: divided by 4, 6, 8, 12, 16, 24, 32, 48, 64, 96 …, so the partition counts
#: people use can grow into each other without changing a slot.
SLOTS: Final = 20_160

#: Where 20 160 does not divide, the smallest multiple not below this: at most 1/16384 of the keys per slot.
SLOTS_MIN: Final = 16_384

PARTITIONS_MAX: Final = 100_000

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of ``data`` as an unsigned 32-bit number (Java prints the same bits signed)."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    tail = length & 3
    if tail:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def slots_for(partitions: int) -> int:
    """The slot count of topics with ``partitions`` partitions. Raises ConfigError outside 1 … 100 000."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ConfigError(f"{partitions} partitions: refold needs between 1 and {PARTITIONS_MAX}")
    if SLOTS % partitions == 0:
        return SLOTS
    return -(-SLOTS_MIN // partitions) * partitions


class SlotMap:
    """The map from slot to partition at one epoch. Immutable."""

    __slots__ = ("_assignment", "epoch", "partitions", "slots")

    def __init__(self, partitions: int, *, epoch: int = 0, assignment: Sequence[int] | None = None) -> None:
        """Without ``assignment`` the first map. Raises ConfigError when it does not fit the partitions."""
        slots = slots_for(partitions) if assignment is None else len(assignment)
        if assignment is not None and (not slots or not all(0 <= p < partitions for p in assignment)):
            raise ConfigError(f"the slot map names partitions outside 0 … {partitions - 1}")
        self.partitions = partitions
        self.slots = slots
        self.epoch = epoch
        self._assignment = None if assignment is None else tuple(assignment)

    def slot(self, key: bytes) -> int:
        return (murmur2(key) & 0x7FFFFFFF) % self.slots

    def partition(self, key: bytes) -> int:
        slot = (murmur2(key) & 0x7FFFFFFF) % self.slots
        assignment = self._assignment
        return slot % self.partitions if assignment is None else assignment[slot]


def split_key(key: bytes | None) -> tuple[str, str]:
    """``(tenant, session)`` of a key. The session may hold slashes. Raises InvalidRecord ``bad_key``."""
    if not key:
        raise InvalidRecord("bad_key", "the record has no key; it must be tenant/session")
    if len(key) > KEY_BYTES_MAX:
        raise InvalidRecord("bad_key", f"the key has {len(key)} bytes, the limit is {KEY_BYTES_MAX}")
    try:
        text = key.decode()
    except UnicodeDecodeError:
        raise InvalidRecord("bad_key", "the key is not UTF-8") from None
    tenant, slash, session = text.partition("/")
    if not slash or not tenant or not session:
        raise InvalidRecord("bad_key", "the key is not tenant/session with both parts present")
    return tenant, session


def make_key(tenant: str, session: str) -> bytes:
    """The record key; the exact inverse of :func:`split_key`. Raises InvalidRecord ``bad_key``."""
    if not tenant or not session or "/" in tenant:
        raise InvalidRecord("bad_key", "tenant and session must not be empty and a tenant holds no slash")
    try:
        key = f"{tenant}/{session}".encode()
    except UnicodeEncodeError:
        raise InvalidRecord("bad_key", "tenant or session holds a lone surrogate") from None
    if len(key) > KEY_BYTES_MAX:
        raise InvalidRecord("bad_key", f"the key has {len(key)} bytes, the limit is {KEY_BYTES_MAX}")
    return key
