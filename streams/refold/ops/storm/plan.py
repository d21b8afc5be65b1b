"""What a run on real workers will do: frozen data, decided by the options and the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from refold.errors import UsageError
from refold.ops.storm.arms import ARMS, CAPPED, POLITE, Arm

#: Rules that can be broken on purpose: the first in the workers, the second by the harness itself, which then
#: deletes a session's state while nobody runs.
SKIP_DEDUP: Final = "skip-dedup"
LOSE_STATE: Final = "lose-state"
SABOTAGES: Final = (SKIP_DEDUP, LOSE_STATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlan:
    """- ``events``: messages per session before the restart.
    - ``hot_share``: the part of the sessions that gets events during it, on ``hot_partitions`` of the
      partitions (0: all), spread evenly over the workers; ``new_share``: how many more, as a part of those,
      nobody has heard of before.
    - ``cap_bytes_per_s``: per worker; 0: so that reading everything takes ``capped_seconds``.
    - ``rate``: events per second during the restart, after a first one to each hot session.
    """

    seed: int = 1
    workers: int = 3
    sessions: int = 12_000
    partitions: int = 6
    events: int = 10
    hot_share: float = 0.1
    hot_partitions: int = 0
    new_share: float = 0.05
    rate: int = 40
    cap_bytes_per_s: int = 0
    capped_seconds: float = 30.0
    session_timeout_ms: int = 30_000
    sabotage: str | None = None
    arms: Sequence[Arm] = ARMS

    def random(self, purpose: str) -> random.Random:
        """A source of its own per purpose: adding a draw here cannot change what another part does."""
        return random.Random(f"{self.seed}/{purpose}")

    @property
    def hot_sessions(self) -> int:
        return max(1, round(self.sessions * self.hot_share))

    @property
    def new_sessions(self) -> int:
        return round(self.hot_sessions * self.new_share)


#: Everything once, in less than half a minute: for the tests. The arm without a limit shows its peak only
#: with more to read.
QUICK: Final = StormPlan(
    workers=2, sessions=200, partitions=4, events=3, hot_share=0.2, capped_seconds=1.0, arms=(CAPPED, POLITE)
)


def plan_for(*, quick: bool, sabotage: str | None, **given: Any) -> StormPlan:
    """``given``: what the options say, ``None`` where they say nothing. Raises UsageError."""
    if sabotage is not None and sabotage not in SABOTAGES:
        raise UsageError(f"unknown sabotage {sabotage!r}; there are: {', '.join(SABOTAGES)}")
    plan = replace(
        QUICK if quick or sabotage is not None else StormPlan(),
        sabotage=sabotage,
        **{name: value for name, value in given.items() if value is not None},
    )
    if sabotage is not None:
        # One restart is enough to show it, of one worker where nobody asks for more.
        plan = replace(plan, arms=(POLITE,), workers=given.get("workers") or 1)
    if plan.hot_partitions > plan.partitions:
        raise UsageError("--hot-partitions is at most the number of partitions")
    if plan.partitions < plan.workers:
        raise UsageError("fewer partitions than workers: some would have nothing to restore")
    return plan
