"""Goal: in which order, in what pieces, with which deaths and aborts both sources are read changes nothing.

Method: one inbox partition set and one batches partition set, fed some hundred times, or a thousand times by
`make test-long`. Everything the producers write is there from the beginning, with the begins the producers
waited for among their batches; the workers write theirs again (a begin that is known is a repeat), so every
feeding has the same records to read. Rule G10 is what is under test: a GenerationFinished may be read long
before its batches.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from length import cases
from refold.core.progress import Ack, Batch, Marker
from refold.wire.batches import decode_progress, encode_progress

from .generations import NEVER, Generation, Writer
from .kernel import Kernel
from .parameters import Parameters
from .placements import PLACES, Placement, feed
from .seeds import child
from .workload import TENANT, Sent
from .world import World

FEEDINGS = cases(300, 1_000)
SHAPES = ((1, 1), (2, 2))

#: What becomes of the generations of each log. The logs are short, because a thousand feedings of those see
#: more orders than a hundred of long ones; ``continue`` is still open when its session is deleted.
LOGS = (("missing", "continue"), ("stop", "restart"), ("fail", "finish"))
SESSIONS = 2

#: Append time of all that is there from the beginning, and so session time: what a begin carries.
START_MS = Kernel(random.Random(0)).now_ms


def recorded(kinds: tuple[str, ...], partitions: int) -> tuple[list[Sent], list[Sent]]:
    """(inbox, batches): a generation of each of the kinds, in two sessions, with repeats, gaps and acks among
    their batches; at the end one of the sessions is deleted."""
    chance = child(12, "-".join(kinds))
    writer = Writer(chance, partitions)
    inbox: list[Sent] = []
    batches: list[Sent] = []

    def begin(one: Generation, mode: str = "restart") -> None:
        marker = Marker(
            one.generation,
            "begin",
            one.attempt,
            mode,
            "sim",
            60_000,
            message_id=f"m-{one.generation}",
            generator="sim",
            time_ms=START_MS,
        )
        batches.append(writer.put(one, marker))

    def produce(one: Generation, count: int) -> None:
        made = 0
        while made < count:
            noise = writer.noise(one)
            if noise is None:
                made += 1
                noise = writer.put(one, one.batch(f" {one.generation}/{one.seq} ö".encode()))
            batches.append(noise)

    for number, kind in enumerate(kinds):
        one = Generation(f"s{number % SESSIONS}", f"n{number}")
        inbox.append(writer.started(one))
        begin(one)
        batches.append(writer.put(one, Batch("nobody", 1, 1)))
        produce(one, 1 + chance.randrange(3))
        if kind in ("restart", "continue"):
            inbox.append(writer.attempted(one, kind))
            begin(one, kind)
            produce(one, 1)
        if kind == "missing":
            # These batches never come; the ruling must not depend on when it was asked.
            inbox.append(writer.finished(one, ahead=NEVER))
        if kind == "stop":
            inbox.append(writer.stopped(one))
        batches.append(writer.put(one, Ack(one.generation, one.attempt, "late", 99)))
        if kind == "fail":
            inbox.append(writer.failed(one))
        elif kind != "continue":
            inbox.append(writer.finished(one, stopped=kind == "stop"))
    inbox.append(writer.record(b"acme/s1", None))
    # Producers write independently: within a session both topics keep their order, nothing else is tied.
    return inbox, batches


def settled(records: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Records without the two fields that say where and when the worker's own last marker came to lie: that
    is another place in every feeding."""
    found = {}
    for key, value in records.items():
        progress = decode_progress(value)
        progress.last_offset = progress.last_ms = 0
        found[key] = encode_progress(key.rpartition(b"#")[2].decode(), progress)
    return found


def test_two_sources_in_many_interleavings_batchings_and_crash_placements() -> None:
    """Goal: equal journal, state, rejected and generation records; after every commit state = fold(journal)
    and generation records = fold(batches), which the simulator's checkers look at."""
    chance = random.Random(20_261_130)
    sources = {(shape, log): recorded(log, shape[1]) for shape in SHAPES for log in LOGS}
    ends: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {source: set() for source in sources}
    struck: Counter[tuple[str, str]] = Counter()
    compared: Counter[str] = Counter()
    interleavings: set[tuple[Any, ...]] = set()
    waited = 0
    for seed in range(FEEDINGS):
        shape, log = SHAPES[seed % 4 == 3], LOGS[seed % 3]
        actions = ("kill", "abort", "stop") if shape == (2, 2) else ("kill", "abort")
        placements = [
            Placement(chance.choice(PLACES), chance.randint(1, 4), chance.choice(actions))
            for _ in range(chance.randint(1, 2))
        ]
        inbox, batches = sources[shape, log]
        outcome = feed(inbox, placements, seed=seed, workers=shape[0], partitions=shape[1], batches=batches)
        assert not outcome.result.failures, (seed, placements, outcome.result.failures)
        ends[shape, log].add(
            (
                outcome.journal,
                tuple(sorted(outcome.states.items())),
                tuple(sorted(outcome.rejected)),
                tuple(sorted(settled(outcome.generations).items())),
            )
        )
        struck.update(placement.place for placement in outcome.struck)
        compared += outcome.result.compared
        interleavings.add((log, outcome.cuts))
        waited += outcome.result.happened["refold_batches_wait_seconds"]
    assert {source: len(found) for source, found in ends.items()} == dict.fromkeys(sources, 1)
    for (_, log), [(journal, states, rejected, generations)] in ends.items():
        assert all((journal, states, rejected, generations))
        missing = sum(code == b"batches_missing" for _, code in rejected)
        assert missing == log.count("missing"), "batches that never come: the same ruling in any order"
    assert set(struck) == set(PLACES)
    assert compared["state = fold(journal)"] >= 2 * FEEDINGS
    assert compared["generation = fold(batches)"] >= 4 * FEEDINGS
    assert min(struck.values()) >= cases(3, 10)
    assert len(interleavings) >= FEEDINGS // 2
    # The inbox was ahead of its batches often, or the rule was not tested.
    assert waited >= FEEDINGS // 3


def test_a_producers_open_transaction_costs_its_own_partition_time_and_no_other() -> None:
    """Goal: a GenerationFinished whose batches lie behind an open transaction waits while that is open, its
    partition is parked and read again; the other partition goes on, and the end is what the oracle says.

    Method: two generations on two partitions, the same of each; the transaction lasts three seconds."""
    world = World(Parameters(seed=5, ticks=4_000, workers=1, partitions=2, events=0), inbox=[])
    broker, topics, kernel = world.broker, world.topics, world.kernel
    writer = Writer(child(5, "held"), 2)
    names = [f"s{number}" for number in range(16)]
    found = {writer.slots.partition(f"{TENANT}/{name}".encode()): name for name in names}
    started_ms = 0

    def append(topic: str, record: Sent) -> None:
        broker.append(topic, record.partition, record.key, record.value, record.headers)

    def write() -> None:
        nonlocal started_ms
        started_ms = kernel.now_ms
        hung = broker.hang(topics.batches, 0, b"hung")
        kernel.after(3_000_000, lambda: broker.end_hung(topics.batches, 0, hung))
        for name in found.values():
            one = Generation(name, "n")
            append(topics.inbox, writer.started(one))
            begin = Marker("n", "begin", 1, message_id="m-n", generator="sim", time_ms=started_ms)
            append(topics.batches, writer.put(one, begin))
            for _ in range(3):
                append(topics.batches, writer.put(one, one.batch(b"token")))
            append(topics.inbox, writer.finished(one))

    kernel.after(1_000_000, write)
    result = world.run()
    assert result.failures == []
    assert started_ms
    assert (result.happened["inbox_parked"], result.happened["inbox_resumed"]) == (1, 1)
    ends = [max(entry.time_ms for entry in broker.log(topics.journal, p).committed()) for p in range(2)]
    assert ends[0] >= started_ms + 3_000
    assert ends[1] < started_ms + 1_000
