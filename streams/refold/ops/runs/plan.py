"""What one run of ``refold verify runs`` does: sizes, deaths, and the faults that can be planted."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from refold.errors import UsageError

Sabotage: TypeAlias = Literal[
    "lookup-not-authoritative", "unstable-key", "effect-outside-step", "take-refused"
]
SABOTAGES: Final[tuple[str, ...]] = get_args(Sabotage)

Blow: TypeAlias = Literal["kill", "freeze", "worker"]

#: Of eight deaths in a row: a worker's, a process frozen until others have its runs, six kills.
BLOWS: Final[tuple[Blow, ...]] = ("kill", "kill", "worker", "kill", "kill", "freeze", "kill", "kill")

#: The versions of the agent before and after the rolling deploy; the second accepts runs of the first.
VERSIONS: Final = ("1", "2")

#: Two runs share a session: it holds at most four open ones.
RUNS_PER_SESSION: Final = 2


@dataclass(frozen=True, slots=True)
class RunsPlan:
    """``lease_s``: of a run; ``every_s``: between two deaths; ``concurrency``: runs at once in a process."""

    seed: int = 1
    runs: int = 200
    agents: int = 3
    workers: int = 2
    partitions: int = 8
    every_s: float = 2.0
    lease_s: float = 3.0
    concurrency: int = 8
    session_timeout_ms: int = 3_000
    deploy: bool = True
    sabotage: str | None = None

    def __post_init__(self) -> None:
        if self.sabotage is not None and self.sabotage not in SABOTAGES:
            raise UsageError(f"sabotage {self.sabotage!r}: choose one of {', '.join(SABOTAGES)}")

    def with_session_timeout(self, session_timeout_ms: int) -> RunsPlan:
        return replace(self, session_timeout_ms=session_timeout_ms)

    def blow(self, number: int) -> Blow:
        """What the death with this number is."""
        return BLOWS[number % len(BLOWS)]

    def session_of(self, number: int) -> str:
        return f"s{self.seed}-{number // RUNS_PER_SESSION}"

    def run_id(self, number: int) -> str:
        return f"r{self.seed}-{number}"

    @property
    def run_ids(self) -> list[str]:
        return [self.run_id(number) for number in range(self.runs)]


def fails_at_first(seed: int, run: str) -> bool:
    """Every tenth run's first step raises once: a retry by the rules, beside the deaths."""
    return random.Random(f"{seed}/{run}/fails").random() < 0.1


def pause_s(seed: int, run: str, step: str) -> float:
    """How long a step takes: 0.15 to 0.6 s, so that a run of four lasts through a death every few runs."""
    return random.Random(f"{seed}/{run}/{step}").uniform(0.15, 0.6)
