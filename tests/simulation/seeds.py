"""One seed, one child PRNG per consumer.

A change of the workload must not move the schedule of a recorded seed, so every consumer draws from a
generator of its own, seeded from the parent seed and its *name*. Names are append-only: never renamed, never
reused.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import sha256


def child(seed: int, name: str) -> random.Random:
    """The generator of ``name`` under ``seed``; the same in every process (no use of ``hash()``)."""
    return random.Random(int.from_bytes(sha256(f"{seed}/{name}".encode()).digest()[:8], "big"))


@dataclass(frozen=True, slots=True)
class Seeds:
    """``workload``: what is sent; ``schedule``: who runs next and how long things take; ``faults``: when a
    fault of the plan strikes; ``swarm``: which plan; ``disk``: what of the unflushed writes survives a
    crash."""

    workload: random.Random
    schedule: random.Random
    faults: random.Random
    swarm: random.Random
    disk: random.Random

    @classmethod
    def derive(cls, seed: int) -> Seeds:
        return cls(*(child(seed, name) for name in ("workload", "schedule", "faults", "swarm", "disk")))
