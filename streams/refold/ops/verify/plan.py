"""What a run will do, from its seed: frozen data, so that a failure can be repeated as far as timing
allows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from refold.ops.fleet import Death, DeathKind

#: One deck of deaths: every commit point, random moments, graceful stops, zombies. A seed shuffles it;
#: several decks are dealt when time allows. Zombies take a session timeout each, so they are few.
DECK: Final[tuple[tuple[DeathKind, str | None, bool], ...]] = (
    (DeathKind.KILL, "after_begin", False),
    (DeathKind.KILL, "after_produce", False),
    (DeathKind.KILL, "after_produce", True),
    (DeathKind.KILL, "after_send_offsets", False),
    (DeathKind.KILL, "in_commit", False),
    (DeathKind.KILL, "after_commit", False),
    (DeathKind.KILL, "after_write_batch", False),
    (DeathKind.KILL, None, False),
    (DeathKind.KILL, None, False),
    (DeathKind.TERM, None, False),
    (DeathKind.ZOMBIE, "after_send_offsets", False),
)

#: At the beginning of every schedule, whatever the seed: a minute must show each counter at work.
OPENING: Final = (
    (DeathKind.KILL, "after_produce", False),
    (DeathKind.KILL, "after_send_offsets", False),
    (DeathKind.ZOMBIE, "after_produce", False),
)

#: Deaths are at most this far from their evenly spaced time, as a fraction of the spacing.
JITTER: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """``rate``: events per second. ``session_timeout_ms``: short, so that take-overs fit into a minute."""

    seed: int
    seconds: float
    workers: int = 2
    sessions: int = 120
    rate: int = 300
    kills_per_minute: int = 20
    partitions: int = 8
    session_timeout_ms: int = 3_000
    sabotage: str | None = None

    def random(self, purpose: str) -> random.Random:
        """A source of its own per purpose: adding a draw here cannot change what another part does."""
        return random.Random(f"{self.seed}/{purpose}")

    def deaths(self) -> list[tuple[float, Death]]:
        """(seconds after the start, death without a worker) in order. The worker is chosen when it is
        time.
        """
        chance = self.random("deaths")
        spacing = 60.0 / self.kills_per_minute
        dealt = self._usable(OPENING)
        schedule = []
        at = spacing
        while at < self.seconds:
            if not dealt:
                dealt = self._usable(DECK)
                chance.shuffle(dealt)
            kind, point, takeover = dealt.pop(0)
            when = at + spacing * chance.uniform(-JITTER, JITTER)
            schedule.append((when, Death(worker="", kind=kind, point=point, takeover=takeover)))
            at += spacing
        return schedule

    def _usable(
        self, deck: tuple[tuple[DeathKind, str | None, bool], ...]
    ) -> list[tuple[DeathKind, str | None, bool]]:
        """Under a sabotage only deaths whose worker comes back to its own disk: take-overs heal the
        disk's fault.
        """
        if self.sabotage is None:
            return list(deck)
        return [card for card in deck if card[0] is not DeathKind.ZOMBIE and not card[2]]
