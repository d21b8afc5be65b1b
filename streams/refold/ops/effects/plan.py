"""What a run will do, from its seed: frozen data, so that a failure can be repeated as far as timing allows.

Every draw has a source of its own, keyed by what it decides (a session's tool, a request of a key), never by
how many draws were made before: the same seed means the same tools, failures and deaths however the processes
interleave.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from refold.ops.effects.boundaries import CALL, RECOVERY
from refold.ops.effects.sabotage import check

#: How a tool's outside system behaves. ``lookup``: knows keys, runs each at most once, answers by key.
#: ``idempotent``: runs each key at most once, cannot be asked. ``plain``: knows no keys; twice is twice.
Kind = Literal["lookup", "idempotent", "plain"]
KIND_SHARES: Final[tuple[tuple[Kind, float], ...]] = (("lookup", 0.55), ("idempotent", 0.2), ("plain", 0.25))

#: Share of requests the gateway turns away before it did anything, and says so.
REFUSE_SHARE: Final = 0.02
#: Share of requests that run and whose answer is lost with the connection.
DROP_SHARE: Final = 0.02
#: Share of lookups the gateway cannot answer just now, also where it usually can.
LOOKUP_UNKNOWN_SHARE: Final = 0.05
#: Answers take up to this long, evenly distributed.
LATENCY_MS_MAX: Final = 30

#: Deaths of agents: every boundary equally often; at the effect every kind of tool in turn, because the kind
#: decides which of the three outcomes follows. 8 boundaries x 6 = 48 kills.
KILLS_PER_BOUNDARY: Final = 6
#: And at each boundary of a recovery, which only others' deaths bring about. 4 boundaries x 2 = 8 kills.
KILLS_PER_RECOVERY: Final = 2
_EFFECT_KINDS: Final[tuple[Kind, ...]] = ("lookup", "plain", "lookup", "idempotent", "plain", "lookup")
#: Frozen in front of the effect past the lease, then woken: each takes lease + takeover + a grace, about 6 s.
FREEZES: Final[tuple[Kind, ...]] = ("lookup", "plain", "idempotent", "lookup")
#: Under a sabotage: only deaths after which the broken rule shows, and how often. Twice for a freeze, which
#: takes 6 s: one in twenty meets a key for which the gateway cannot say anything.
SABOTAGE_DEATHS: Final[Mapping[str, tuple[str, str, Kind, int]]] = {
    "rerun-unknown": ("after_effect", "kill", "plain", 3),
    "no-lease": ("after_effect", "kill", "plain", 3),
    "lookup-not-authoritative": ("before_effect", "stop", "lookup", 2),
    "result-before-effect": ("before_effect", "kill", "lookup", 3),
    "unstable-key": ("after_effect", "kill", "lookup", 3),
}
#: A broken rule shows with the first of them; more conversations would only be a longer wait for exit 1.
SABOTAGE_CONVERSATIONS_MAX: Final = 24
#: Deaths of workers, at the commit's own points.
WORKER_POINTS: Final = ("after_begin", "after_produce", "after_send_offsets", "in_commit", "after_commit")

#: Below this many conversations (about 450 calls) 52 deaths of agents would be most of what happens.
CONVERSATIONS_FULL: Final = 80
#: A short run: two rounds hit every boundary with two kinds of tools (looked up, plain).
ROUNDS_SHORT: Final = 2
FREEZES_SHORT: Final = 2
WORKER_KILLS_SHORT: Final = 1

#: A call's lease. Short, so that a run sees many takeovers; long against a call (100 ms, and 2 s of a stall
#: while a worker restarts do not matter: an expired lease is only taken when somebody else plays the
#: session).
LEASE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class AgentDeath:
    """One death to come. ``action``: kill, or stop (freeze, then wake). ``kind``: "" for any tool."""

    boundary: str
    action: str = "kill"
    kind: str = ""

    @property
    def spec(self) -> str:
        return f"{self.boundary}:{self.action}" + (f":{self.kind}" if self.kind else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectsPlan:
    """``seconds``: how long deaths may take; what is left is then played without. ``kills_per_boundary``
    and ``freezes`` scale a short run down."""

    seed: int
    conversations: int = 200
    seconds: float = 170.0
    agents: int = 4
    per_agent: int = 6
    workers: int = 2
    partitions: int = 8
    session_timeout_ms: int = 3_000
    lease_s: float = LEASE_S
    kills_per_boundary: int = KILLS_PER_BOUNDARY
    kills_per_recovery: int = KILLS_PER_RECOVERY
    freezes: int = len(FREEZES)
    worker_kills: int = len(WORKER_POINTS)
    agent: str | None = None
    sabotage: str | None = None
    #: Conversations are spread over this long instead of following the deaths; 0: as fast as they go.
    paced_s: float = 0.0
    #: From one death of an agent to the next, at least.
    spacing_s: float = 0.0

    def random(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}")

    @property
    def kills(self) -> int:
        return len(self.deaths()) + self.worker_kills

    def deaths(self) -> list[AgentDeath]:
        """The agents' deaths in order: every boundary once per round, rounds shuffled, freezes spread; deaths
        in a recovery in the second half, when there is always one going on.
        """
        if self.sabotage is not None:
            boundary, action, kind, times = SABOTAGE_DEATHS[self.sabotage]
            return [AgentDeath(boundary, action, kind)] * times
        chance = self.random("deaths")
        dealt: list[AgentDeath] = []
        for number in range(self.kills_per_boundary):
            kind = _EFFECT_KINDS[number % len(_EFFECT_KINDS)]
            at_once = [AgentDeath(name, kind=kind if name.endswith("_effect") else "") for name in CALL]
            chance.shuffle(at_once)
            dealt += at_once
        spacing = max(1, len(dealt) // (self.freezes + 1))
        for number in range(self.freezes):
            kind = FREEZES[number % len(FREEZES)]
            place = min(len(dealt), spacing * number + number + 2)
            dealt.insert(place, AgentDeath("before_effect", "stop", kind))
        for name in RECOVERY * self.kills_per_recovery:
            dealt.insert(chance.randint(len(dealt) // 2, len(dealt)), AgentDeath(name))
        return dealt

    def worker_deaths(self) -> Iterator[str]:
        """Commit points, as many as the plan has."""
        chance = self.random("workers")
        points: list[str] = []
        for _ in range(self.worker_kills):
            if not points:
                points = list(WORKER_POINTS)
                chance.shuffle(points)
            yield points.pop()


def plan_for(
    *,
    seed: int,
    conversations: int,
    seconds: float,
    agents: int,
    kills_per_boundary: int | None,
    agent: str | None,
    sabotage: str | None,
) -> EffectsPlan:
    """A plan from what a person asks for: a sabotage shows early, so its run is short; a run of few
    conversations has no room for every death.
    """
    check(sabotage)
    if sabotage is not None:
        conversations = min(conversations, SABOTAGE_CONVERSATIONS_MAX)
    full = conversations >= CONVERSATIONS_FULL
    rounds = kills_per_boundary or (KILLS_PER_BOUNDARY if full else ROUNDS_SHORT)
    return EffectsPlan(
        seed=seed,
        conversations=conversations,
        seconds=seconds,
        agents=agents,
        kills_per_boundary=rounds,
        kills_per_recovery=KILLS_PER_RECOVERY if rounds >= KILLS_PER_BOUNDARY else 0,
        freezes=len(FREEZES) if rounds >= KILLS_PER_BOUNDARY else FREEZES_SHORT,
        worker_kills=len(WORKER_POINTS) if rounds >= KILLS_PER_BOUNDARY else WORKER_KILLS_SHORT,
        agent=agent,
        sabotage=sabotage,
    )


def kind_of(seed: int, session: str, tool: str) -> Kind:
    """What kind of outside system a session's tool talks to."""
    draw = random.Random(f"{seed}/kind/{session}/{tool}").random()
    for kind, share in KIND_SHARES:
        if draw < share:
            return kind
        draw -= share
    return "plain"


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to one request of one key: turned away, answer lost, or slow."""

    refuse: bool
    drop: bool
    latency_s: float


def weather(seed: int, session: str, key: str, request: int) -> Weather:
    """``request``: how often the gateway has seen this key before."""
    chance = random.Random(f"{seed}/weather/{session}/{key}/{request}")
    draw = chance.random()
    return Weather(
        refuse=draw < REFUSE_SHARE,
        drop=REFUSE_SHARE <= draw < REFUSE_SHARE + DROP_SHARE,
        latency_s=chance.uniform(0, LATENCY_MS_MAX / 1000),
    )


def cannot_say(seed: int, session: str, key: str) -> bool:
    """Whether the gateway has no answer for lookups of this key."""
    return random.Random(f"{seed}/lookup/{session}/{key}").random() < LOOKUP_UNKNOWN_SHARE
