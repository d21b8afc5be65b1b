"""Who is next in line for a partition: rendezvous hashing, the same on every worker and in every client.

Each (partition, instance) has a score of its own, and the order is by score: whoever leaves, the order of the
others stays, and each is as often first as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

#: 64 bits: two of a thousand instances have the same score for a partition once in 10^13 partitions.
SCORE_BYTES: Final = 8


def score(partition: int, instance: str) -> int:
    """0 … 2^64 - 1. A wire contract: workers of two versions must agree on it."""
    data = f"{partition}/{instance}".encode()
    return int.from_bytes(blake2b(data, digest_size=SCORE_BYTES).digest(), "big")


def ranking(partition: int, instances: Iterable[str]) -> list[str]:
    """The instances, highest score first; by name where scores are equal. Repeats count once."""
    return sorted(dict.fromkeys(instances), key=lambda name: (-score(partition, name), name))
