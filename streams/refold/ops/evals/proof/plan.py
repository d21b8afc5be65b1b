"""What a run of ``verify eval`` does, decided by its seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from refold.errors import UsageError
from refold.ops.evals.points import POINTS, SABOTAGES

#: A death by the clock of the runner's work, or at a point of a commit.
OUTSIDE: Final = "outside"

#: The point that only a sabotaged commit has.
BETWEEN: Final = "between"

#: Samples of which the first attempt fails: one in so many.
FAILING: Final = 9

#: A life must end before the batch does: it gets so many samples, at least.
LIFE_SAMPLES_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class Death:
    """``where``: OUTSIDE, or a point of a commit; ``count``: attempts begun until then, or commits."""

    where: str
    count: int


@dataclass(frozen=True, slots=True)
class ProofPlan:
    seed: int = 1
    samples: int = 1_000
    kills: int = 10
    concurrency: int = 8
    sink: str = "state"
    sabotage: str | None = None

    def check(self) -> None:
        """Raises UsageError."""
        if self.sabotage is not None and self.sabotage not in SABOTAGES:
            raise UsageError(f"{self.sabotage!r} is no rule to break; there are {', '.join(SABOTAGES)}.")
        if self.samples // (self.kills + 2) < LIFE_SAMPLES_MIN:
            least = LIFE_SAMPLES_MIN * (self.kills + 2)
            raise UsageError(f"{self.kills} kills need {least} samples: fewer would be done before the last.")

    @property
    def quota(self) -> int:
        """Samples a life may do: the lives that are killed, and the one that is fenced, leave some."""
        return self.samples // (self.kills + 2)

    @property
    def repeated_max(self) -> int:
        """Attempts that may be made twice: those in flight when a runner was killed, or fenced."""
        return self.concurrency * (self.kills + 1)

    def deaths(self) -> Sequence[Death]:
        """One in two by the number of attempts begun, the others at each point in turn."""
        chance = random.Random(f"{self.seed}/deaths")
        points = (BETWEEN,) if self.sabotage == "cursor-first" else POINTS
        # A commit has one result at least and as many as run at most; the claim is a commit too.
        commits = max(1, self.quota // self.concurrency - 1)
        found = []
        for number in range(self.kills):
            if number % 2 == 0:
                found.append(Death(OUTSIDE, chance.randint(self.quota // 2, self.quota)))
            else:
                found.append(Death(points[number // 2 % len(points)], 1 + chance.randint(1, commits)))
        return found


def sample_id(position: int) -> str:
    """Some with what keys and databases treat specially."""
    return f"s/{position:05d} #%é" if position % 10 == 3 else f"s-{position:05d}"


def expected(position: int, seed: int) -> dict[str, int]:
    """What the runner returns for a sample."""
    return {"square": position * position, "seed": seed}


def fails_first(position: int) -> bool:
    return position % FAILING == 0
