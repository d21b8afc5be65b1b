"""What a run of ``refold verify usage`` does, from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from refold.ops.fleet import Death, DeathKind
from refold.ops.verify.plan import Card

#: The gaps of a commit in which usage could be counted twice or not at all, a zombie whose transaction is
#: aborted when it wakes, a take-over, a graceful stop. In this order, then shuffled.
CARDS: Final[tuple[Card, ...]] = (
    (DeathKind.KILL, "after_produce", False),
    (DeathKind.KILL, "after_write_batch", False),
    (DeathKind.ZOMBIE, "after_send_offsets", False),
    (DeathKind.KILL, "after_commit", False),
    (DeathKind.KILL, "in_commit", True),
    (DeathKind.KILL, None, False),
    (DeathKind.TERM, None, False),
    (DeathKind.KILL, "after_begin", False),
)

#: Deaths under a sabotage: workers that come back to their own disk (a take-over heals the disk's fault).
SABOTAGE_CARDS: Final[tuple[Card, ...]] = (
    (DeathKind.KILL, "after_send_offsets", False),
    (DeathKind.KILL, "after_produce", False),
)

#: Sabotages the command offers.
SABOTAGES: Final = ("skip-dedup", "disk-before-commit", "offsets-before-produce")

MODELS: Final = ("small", "large")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePlan:
    """``events``: UsageRecorded events, each sent once or more. Deaths are spread over them."""

    seed: int = 1
    events: int = 1_000_000
    kills: int = 8
    workers: int = 2
    sessions: int = 120
    subjects: int = 12
    partitions: int = 8
    session_timeout_ms: int = 3_000
    sabotage: str | None = None

    def random(self, purpose: str) -> random.Random:
        """A source of its own per purpose."""
        return random.Random(f"{self.seed}/usage/{purpose}")

    def deaths(self) -> list[tuple[float, Death]]:
        """(share of the events that are ruled on by then, death without a worker), in order."""
        chance = self.random("deaths")
        dealt: list[Card] = list(CARDS if self.sabotage is None else SABOTAGE_CARDS)
        schedule = []
        for number in range(self.kills):
            if not dealt:
                dealt = list(CARDS if self.sabotage is None else SABOTAGE_CARDS)
                chance.shuffle(dealt)
            kind, point, takeover = dealt.pop(0)
            share = (number + chance.uniform(0.3, 0.7)) / self.kills
            schedule.append((share, Death(worker="", kind=kind, point=point, takeover=takeover)))
        return schedule
