"""Rounds with real processes: one ``refold worker run`` on a real Kafka, killed with SIGKILL at a random
microsecond around a commit or the publishing of a checkpoint, and started again on the disk it left, or
on an empty one beside the checkpoints.

The worker is held at a named point (of the commit, or of a checkpoint) with events folded and
uncommitted, then let go, and killed a random time later: on either side of what it does next. In some
rounds no point is armed and the kill comes at a random time after the records. After each: everything is
ruled on again, then journal, state, history, rejected, generation records and markers are compared with
an oracle of their own (tests/engine/check.py) and what the worker serves with the state topic; after the
last one also every row of its disk.
"""

from __future__ import annotations

import gc
import json
import random
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.check import differences, fold_batches
from engine.cluster import Cluster, by_key
from engine.traffic import Traffic
from engine.workers import Worker, wait_ruled
from refold.broker import EmbeddedBroker
from refold.core.evolve import evolve
from refold.core.session import initial
from refold.core.slots import split_key
from refold.engine.points import CHECKPOINT, COMMIT
from refold.engine.store import Memory, Store
from refold.wire.batches import encode_progress
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot
from simulation.seeds import child

from . import rows

#: From letting go (a held thread looks every 5 ms) to the kill: a commit takes 5 ms, a checkpoint some more.
AFTER_POINT_US_MAX: Final = 12_000
#: From the first of a round's records to the kill, where nothing is armed.
AFTER_SEND_US_MAX: Final = 60_000

#: Per round.
EVENTS: Final = 60
#: The disk goes with the process: what comes back comes from a checkpoint and the tail.
LOST: Final = 0.2

#: The least there is, so that publishing is nearly always near.
CHECKPOINT_INTERVAL_MS: Final = "1000"

#: A worker's start on a busy machine.
WAIT_S: Final = 120.0

#: A death cannot be held inside the call of commit_transaction: it is met from the point before it.
PLACES: Final = (
    *(name for name in COMMIT if name != "in_commit"),
    *(name for name in CHECKPOINT if name != "checkpoint_manifests_pruned"),
    "any",
)


@dataclass(slots=True)
class Tally:
    rounds: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    #: Deaths with folded, uncommitted events when it was let go.
    in_flight: int = 0
    lost_disks: int = 0
    from_checkpoint: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    #: µs from letting go to the kill.
    delays_us: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run(
    rounds: int, *, seed: int, directory: Path, sabotage: str | None, told: Callable[[str], None]
) -> Tally:
    """Until the first difference. Starts a Kafka of its own and ends it."""
    with EmbeddedBroker(directory / "kafka") as broker:
        try:
            return _run(Cluster(broker.bootstrap, "plug"), rounds, seed, directory, sabotage, told)
        finally:
            # Clients end when they are collected, and until then complain of a broker that is gone.
            gc.collect()


def _run(
    cluster: Cluster,
    rounds: int,
    seed: int,
    directory: Path,
    sabotage: str | None,
    told: Callable[[str], None],
) -> Tally:
    cluster.create()
    tally, traffic = Tally(), Traffic(cluster, seed)
    settings = {
        "REFOLD_WORKER__CHECKPOINT_URL": f"file://{directory / 'remote'}",
        "REFOLD_WORKER__CHECKPOINT_INTERVAL_MS": CHECKPOINT_INTERVAL_MS,
    }
    if sabotage is not None:
        settings["REFOLD_WORKER__SABOTAGE"] = sabotage
    worker = Worker(cluster, directory, "a", **settings)
    with worker:
        try:
            worker.wait_live(cluster.partitions, WAIT_S)
            for number in range(rounds):
                chance = child(seed, f"process-{number}")
                _round(worker, cluster, traffic, chance, PLACES[number % len(PLACES)], tally, told)
                if tally.failures:
                    return tally
            if worker.stop() != 0:
                tally.failures.append(f"the last life did not stop gracefully:\n{worker.tail()}")
            tally.failures += _disk_differences(cluster, worker, tally)
        except AssertionError as late:
            # Under a sabotage the worker may refuse what it finds; without one that is a failure as well.
            tally.failures.append(str(late))
    return tally


def _round(
    worker: Worker,
    cluster: Cluster,
    traffic: Traffic,
    chance: random.Random,
    place: str,
    tally: Tally,
    told: Callable[[str], None],
) -> None:
    armed = place != "any"
    if armed:
        worker.arm(place, "hold")
    # No deadlines: what is served is compared while the workers live.
    traffic.send(EVENTS)
    held = 0
    if armed:
        if not _reached(worker, traffic):
            tally.failures.append(f"{place} was not reached:\n{worker.tail()}")
            return
        held = worker.events_at_point()
        worker.release.touch()
    delay_us = chance.randrange(AFTER_POINT_US_MAX if armed else AFTER_SEND_US_MAX)
    _wait_us(delay_us)
    worker.signal(signal.SIGKILL)
    status = worker.wait_end()
    if status != -signal.SIGKILL:
        tally.failures.append(f"{place}: the worker ended by itself ({status}):\n{worker.tail()}")
        return
    lost = chance.random() < LOST
    if lost:
        shutil.rmtree(worker.data_dir, ignore_errors=True)
    worker.release.unlink(missing_ok=True)
    worker.start()
    worker.wait_live(cluster.partitions, WAIT_S)
    wait_ruled(cluster, WAIT_S)
    found = differences(cluster, traffic.sent)
    found += _served_differences(cluster, worker, tally)
    tally.rounds += 1
    tally.deaths[place] += 1
    tally.in_flight += held > 0
    tally.lost_disks += lost
    fetched = worker.log().count('"checkpoint_fetched"')
    tally.from_checkpoint += fetched
    tally.delays_us.append(delay_us)
    tally.compared["events accepted"] = len(traffic.sent.accepted)
    tally.compared["rejected"] = len(traffic.sent.rejected)
    tally.failures += [f"round {tally.rounds}, {place} + {delay_us} µs: {line}" for line in found]
    told(
        f"round {tally.rounds:>3} {place:<27} + {delay_us:>6} µs, held {held:>3} events"
        f"{', disk lost' if lost else ''}{f', {fetched} partitions from checkpoints' if fetched else ''}"
        f"{', DIFFERENT' if found else ''}"
    )


def _reached(worker: Worker, traffic: Traffic) -> bool:
    """A checkpoint is published when there is something new in it: records come until the point is met."""
    end = time.monotonic() + WAIT_S
    while not worker.hit.exists():
        if time.monotonic() > end or not worker.alive:
            return False
        traffic.send(2, odd=False)
        _wait_us(20_000)
    return True


def _wait_us(microseconds: int) -> None:
    """Exact to some µs, which no sleep is."""
    end = time.perf_counter_ns() + microseconds * 1_000
    while time.perf_counter_ns() < end:
        pass


def _served_differences(cluster: Cluster, worker: Worker, tally: Tally) -> list[str]:
    """Of what the worker serves, from memory or disk, against the state topic."""
    url = next(json.loads(line)["url"] for line in worker.log().splitlines() if '"worker_started"' in line)
    found: list[str] = []
    for key, messages in by_key(cluster.read(cluster.topics.state)):
        stored = messages[-1].value()
        tenant, _, session = key.decode().partition("/")
        request = urllib.request.Request(
            f"{url}/v1/sessions/{tenant}/{session}", headers={"Accept": "application/avro"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            body = None if error.code == 404 else b""
        if body != stored:
            found.append(f"{key!r}: what is served is not what the state topic holds")
        tally.compared["sessions served"] += 1
    return found


def _disk_differences(cluster: Cluster, worker: Worker, tally: Tally) -> list[str]:
    """Every row of the stopped worker's DBs against the folds of journal and batches."""
    found: list[str] = []
    states: dict[int, dict[bytes, bytes]] = {number: {} for number in range(cluster.partitions)}
    places: dict[bytes, list[int]] = {}
    for key, messages in by_key(cluster.read(cluster.topics.journal)):
        session = initial(*split_key(key))
        for message in messages:
            entry = decode_journal(message.value())
            event = decode_event(entry.env)
            evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, event)
            places.setdefault(key, []).append(message.offset())
            if session.seq == 0:
                places[key] = []
        if session.seq:
            states[messages[0].partition()][key] = encode_snapshot(session)
    generations: dict[int, dict[bytes, bytes]] = {number: {} for number in range(cluster.partitions)}
    homes = {key: number for number, part in states.items() for key in part}
    for full, progress in fold_batches(cluster).progress.items():
        key, _, name = full.rpartition(b"#")
        generations[homes[key]][full] = encode_progress(name.decode(), progress)
    for number in range(cluster.partitions):
        store = Store(worker.data_dir / cluster.prefix / f"p{number:05d}", Memory())
        try:
            held = rows.every_row(store)
        finally:
            store.close()
        tally.compared["rows on disk"] += len(held)
        found += [
            f"disk, partition {number}: {line}"
            for line in rows.differences(
                held, states=states[number], places=places, generations=generations[number]
            )
        ]
    return found
