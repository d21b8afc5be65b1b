"""Rounds in process: a life that dies at a named point, then one that restores and is compared.

Each life is a forked child; the parent never opens a DB or starts a thread, so the child is as a fresh
process would be. The disk is what the dead left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from refold.engine.points import COMMIT, RESTORE, WARMING
from refold.engine.store import Memory, stored_frontier
from refold.topology.names import TopicNames
from simulation.broker import Broker
from simulation.generations import GenerationWorkload
from simulation.kernel import Kernel
from simulation.oracle import fold_inbox, inbox_records
from simulation.seeds import child
from simulation.worker import PREFIX
from simulation.workload import Workload
from simulation.world import REACHABLE

from . import saving
from .world import MOMENT, PARTITIONS, Armed, PlugWorld, Told, tell

#: After so many rounds everything begins anew: a long history only makes each comparison slower.
ROUNDS_PER_WORLD: Final = 20

#: A life takes well under a second.
LIFE_SECONDS_MAX: Final = 120

#: How often the disk is lost as well.
LOST: Final = 0.12

#: Every second one restores hot first, all its lives: the journal's order over sessions is another then.
HOT_WORLDS: Final = 2

PLACES: Final = tuple(
    (name, when) for name in REACHABLE for when in (("before", "after") if name == "in_commit" else ("",))
)


DECK: Final = (*PLACES, (MOMENT, ""))
NAMES: Final = tuple(f"{name} {when}".strip() for name, when in DECK)


@dataclass(slots=True)
class Tally:
    rounds: int = 0
    #: Place -> deaths there.
    deaths: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    #: Deaths with folded, uncommitted events in the open commit.
    in_flight: int = 0
    #: Rounds in which the place was not reached; the life ended by SIGKILL all the same, when it was quiet.
    not_reached: int = 0
    #: Partitions that came up on a DB with a frontier, and without.
    warm: int = 0
    cold: int = 0
    commits: int = 0
    failures: list[str] = field(default_factory=list)


def draw(chance: random.Random, number: int) -> Armed:
    """Every place in turn, then any moment; which time it is reached is drawn."""
    name, when = DECK[number % len(DECK)]
    if name == MOMENT:
        return Armed(name, when, chance.randrange(20, 500))
    times = 5 if name in COMMIT else PARTITIONS if name in RESTORE else 1
    return Armed(name, when, 1 + chance.randrange(times))


def run(
    rounds: int, *, seed: int, directory: Path, sabotage: str | None, told: Callable[[str], None]
) -> Tally:
    """Until the first difference. ``directory`` is left as it is then."""
    tally = Tally()
    here = directory
    _warm_up(seed)
    for number in range(rounds):
        if number % ROUNDS_PER_WORLD == 0:
            shutil.rmtree(here, ignore_errors=True)
            here = directory / f"world-{number // ROUNDS_PER_WORLD}"
            here.mkdir(parents=True)
        chance = child(seed, f"round-{number}")
        armed = draw(chance, number)
        hot = number // ROUNDS_PER_WORLD % HOT_WORLDS == 1
        lost = armed.name.startswith("run_") or armed.name in WARMING or chance.random() < LOST
        if lost:
            shutil.rmtree(here / "data", ignore_errors=True)
        place = f"{armed.name} {armed.when}".strip()
        died = _life(here, f"{seed}/{number}/dies", armed, sabotage, hot, tally)
        warm = 0
        for partition in range(PARTITIONS):
            warm += _is_warm(here / "data" / PREFIX / f"p{partition:05d}")
        tally.warm += warm
        tally.cold += PARTITIONS - warm
        _life(here, f"{seed}/{number}/returns", None, sabotage, hot, tally)
        tally.rounds += 1
        if died.reached:
            tally.deaths[place] += 1
        else:
            tally.not_reached += 1
        tally.in_flight += died.in_flight > 0
        told(
            f"round {number + 1:>4} {place:<22} {'died' if died.reached else 'not reached':<11} in flight"
            f" {died.in_flight:>2} warm {warm}{' disk lost' if lost else ''}"
        )
        if tally.failures:
            tally.failures = [
                f"round {number + 1}, {place} no. {armed.nth}: {line}" for line in tally.failures
            ]
            return tally
    return tally


def _warm_up(seed: int) -> None:
    """Schemas are read and compiled once, here, and not in every child."""
    broker = Broker(
        Kernel(child(seed, "warm-up")), ("sim.inbox", "sim.batches"), 1, "g", child(seed, "group")
    )
    workload, topics = Workload(child(seed, "inbox"), 1, 2), TopicNames(PREFIX)
    generations = GenerationWorkload(child(seed, "generations"), broker, topics)
    for _ in range(300):
        record = workload.next()
        broker.append(topics.inbox, 0, record.key, record.value, record.headers)
        generations.step()
    fold_inbox(inbox_records(broker, topics.inbox), 1)


def _is_warm(path: Path) -> bool:
    # In a child, because RocksDB starts threads, and a process with threads must not fork.
    def look() -> None:
        os._exit(0 if path.exists() and stored_frontier(path, Memory()) is not None else 1)

    return _forked(look) == 0


def _life(here: Path, name: str, armed: Armed | None, sabotage: str | None, hot: bool, tally: Tally) -> Told:
    cluster, said = here / "cluster", here / "said.json"
    said.unlink(missing_ok=True)

    def end(world: PlugWorld) -> None:
        saving.save(world, cluster)
        tell(world.told, said)

    def live() -> None:
        signal.alarm(LIFE_SECONDS_MAX)
        world = PlugWorld(
            child(0, name).randrange(1 << 30),
            here / "data",
            armed=armed,
            sabotage=sabotage,
            hot_first=hot,
            end=end,
        )
        if cluster.exists():
            saving.load(world, cluster)
        world.life()

    status = _forked(live, here / "trouble.txt")
    if status != -signal.SIGKILL or not said.exists():
        trouble = here / "trouble.txt"
        text = trouble.read_text() if trouble.exists() else ""
        tally.failures.append(f"a life ended with {status} instead of SIGKILL: {text}")
        return Told()
    row: dict[str, Any] = json.loads(said.read_text())
    told = Told(**row)
    tally.failures += told.failures
    tally.compared += Counter(told.compared)
    tally.commits += told.commits
    return told


def _forked(body: Callable[[], object], trouble: Path | None = None) -> int:
    """Exit status of a child that runs ``body``; minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            if trouble is not None:
                trouble.write_text(traceback.format_exc())
        finally:
            os._exit(70)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
