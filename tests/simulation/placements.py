"""One inbox, fed in many ways: batch boundaries from the schedule seed, deaths at chosen places of chosen
commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from refold.engine.points import COMMIT, RESTORE

from .parameters import Parameters, Result
from .seeds import child
from .transactions import Decision
from .worker import Worker
from .workload import Sent, Workload
from .world import Scenario, World

#: The places at which a commit can die; ``in_commit`` before and after the coordinator has decided.
COMMIT_PLACES: Final = tuple(
    (name, when) for name in COMMIT for when in (("before", "after") if name == "in_commit" else ("",))
)
PLACES: Final = COMMIT_PLACES + tuple((name, "") for name in RESTORE)


@dataclass(frozen=True, slots=True)
class Placement:
    """``action`` at the ``nth`` time that ``place`` is reached, counted over all workers."""

    place: tuple[str, str]
    nth: int
    action: str


@dataclass(slots=True)
class Script:
    """A scenario made of placements; ``struck`` says which of them came to pass."""

    placements: Sequence[Placement]
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    struck: list[Placement] = field(default_factory=list)

    def scenario(self) -> Scenario:
        def decide(worker: Worker, name: str, when: str) -> str | None:
            place = (name, when)
            nth = self.counts[place] = self.counts.get(place, 0) + 1
            for placement in self.placements:
                if placement.place == place and placement.nth == nth and placement not in self.struck:
                    self.struck.append(placement)
                    return placement.action
            return None

        return decide


@dataclass(frozen=True, slots=True)
class Outcome:
    result: Result
    #: Journal per partition and state per session, as they are at the end.
    journal: tuple[tuple[tuple[bytes, bytes], ...], ...]
    states: dict[bytes, bytes]
    rejected: tuple[tuple[bytes, bytes], ...]
    struck: tuple[Placement, ...]
    #: Journal entries per committed transaction, in order.
    batches: tuple[int, ...]
    #: Generation records as they are at the end.
    generations: dict[bytes, bytes]
    #: How far each source was after each committed transaction: the interleaving, as far as it shows.
    cuts: tuple[tuple[tuple[str, int], ...], ...]


def make_inbox(seed: int, events: int, *, partitions: int, sessions: int) -> list[Sent]:
    """Records on the partitions where they belong: when a forward arrives is a degree of freedom of the
    schedule."""
    workload = Workload(child(seed, "inbox"), partitions, sessions, misrouted=0.0)
    return [workload.next() for _ in range(events)]


def feed(
    inbox: Sequence[Sent],
    placements: Sequence[Placement],
    *,
    seed: int,
    workers: int,
    partitions: int,
    batches: Sequence[Sent] = (),
) -> Outcome:
    """Run ``inbox`` and ``batches`` through workers that die as told; returns when all is ruled, compared
    with the oracle."""
    script = Script(placements)
    parameters = Parameters(
        seed=seed,
        ticks=0,
        workers=workers,
        partitions=partitions,
        events=0,
        restart_us=(20_000, 200_000) if workers == 1 else (20_000, 2_500_000),
    )
    world = World(parameters, scenario=script.scenario(), inbox=inbox, batches=batches)
    sizes: list[int] = []
    cuts: list[tuple[tuple[str, int], ...]] = []
    checkers = world.broker.transactions.on_decided

    def count(decision: Decision) -> None:
        checkers(decision)
        sizes.append(sum(topic == world.topics.journal for topic, _, _ in decision.records))
        cuts.append(tuple(sorted((str(slot), sent) for slot, (sent, _) in decision.offsets.items())))

    world.broker.transactions.on_decided = count
    result = world.run()
    broker, topics = world.broker, world.topics
    journal = tuple(
        tuple((e.key or b"", e.value or b"") for e in broker.log(topics.journal, number).committed())
        for number in range(partitions)
    )
    states: dict[bytes, bytes] = {}
    rejected: list[tuple[bytes, bytes]] = []
    for number in range(partitions):
        for entry in broker.log(topics.state, number).committed():
            if entry.value is None:
                states.pop(entry.key or b"", None)
            else:
                states[entry.key or b""] = entry.value
        for entry in broker.log(topics.rejected, number).committed():
            headers = dict(entry.headers or ())
            rejected.append((headers["refold-origin"], headers["refold-code"]))
    records: dict[bytes, bytes] = {}
    for number in range(partitions):
        for entry in broker.log(topics.generations, number).committed():
            if entry.value is None:
                records.pop(entry.key or b"", None)
            else:
                records[entry.key or b""] = entry.value
    return Outcome(
        result, journal, states, tuple(rejected), tuple(script.struck), tuple(sizes), records, tuple(cuts)
    )
