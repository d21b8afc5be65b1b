"""What a run will do, from its seed: frozen data, so that a failure can be repeated as far as timing
allows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from refold.ops.fleet import Death, DeathKind

#: Kind, named point (``None``: a random moment), and whether others must take over first.
Card = tuple[DeathKind, str | None, bool]

#: One deck of deaths: every commit point, random moments, graceful stops, zombies. A seed shuffles it;
#: several decks are dealt when time allows. Zombies take a session timeout each, so they are few.
DECK: Final[tuple[Card, ...]] = (
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
OPENING: Final[tuple[Card, ...]] = (
    (DeathKind.KILL, "after_produce", False),
    (DeathKind.KILL, "after_send_offsets", False),
    (DeathKind.ZOMBIE, "after_produce", False),
)

#: Under a sabotage: the gaps in which a broken order shows, and only deaths whose worker comes back to its
#: own disk (a take-over heals the disk's fault). Twice each in the 14 s that a test gives it.
SABOTAGE_DECK: Final[tuple[Card, ...]] = (
    (DeathKind.KILL, "after_send_offsets", False),
    (DeathKind.KILL, "after_produce", False),
)


class NodeEnd(StrEnum):
    """How a broker goes down before it comes back."""

    STOP = "stop"  # in order: its leaderships move first
    KILL = "kill"  # SIGKILL, and away until others lead its partitions
    BOUNCE = "bounce"  # SIGKILL and back at once: it leads again before anybody missed it


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
    broker_restarts: bool = False
    #: Module of reducers that the workers fold, and the one they are started with from half time on.
    reducers: str | None = None
    reducers_then: str | None = None

    def random(self, purpose: str) -> random.Random:
        """A source of its own per purpose: adding a draw here cannot change what another part does."""
        return random.Random(f"{self.seed}/{purpose}")

    def deaths(self) -> list[tuple[float, Death]]:
        """(seconds after the start, death without a worker) in order. The worker is chosen when it is
        time.
        """
        chance = self.random("deaths")
        spacing = 60.0 / self.kills_per_minute
        opening, deck = (OPENING, DECK) if self.sabotage is None else (SABOTAGE_DECK, SABOTAGE_DECK)
        dealt = list(opening)
        schedule = []
        at = spacing
        while at < self.seconds:
            if not dealt:
                dealt = list(deck)
                chance.shuffle(dealt)
            kind, point, takeover = dealt.pop(0)
            when = at + spacing * chance.uniform(-JITTER, JITTER)
            schedule.append((when, Death(worker="", kind=kind, point=point, takeover=takeover)))
            at += spacing
        return schedule

    def node_ends(self) -> Iterator[tuple[int, NodeEnd]]:
        """Endless: a draw that decides which node (modulo their number), and how it goes down. Each three
        restarts hold each kind once.
        """
        chance = self.random("nodes")
        while True:
            kinds = list(NodeEnd)
            chance.shuffle(kinds)
            for kind in kinds:
                yield chance.randrange(2**16), kind
