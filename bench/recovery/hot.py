"""Parts c and d: one partition with many sessions.

c. *Hot session*: the disk is lost, and the inbox holds one message for the session that spoke last
   (``recent``) and one for a session nobody has heard of (``new``). From the worker's assignment to each
   message's journal record being read as committed: with ``worker.hot_first`` and without, from the log
   alone, and with it where a checkpoint of all of them is kept: in a directory, and in a store that gives
   ``SLOW_BYTES_PER_S``.
d. *Intact disk*: the same partition, the worker stopped or killed and started again. From its assignment to
   the partition live.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench import events
from bench.harness import STEP_SECONDS_MAX, Stack, load, wait_until
from bench.recovery.slow import installed
from bench.recovery.tail import OFTEN, SELDOM, checkpointed
from bench.recovery.worker import Watched, has
from refold.core.slots import SlotMap
from refold.engine.checkpoints.remote import Remote

INSTANCE = "hot"
TENANT = "bench"
#: Events: a minute on two cores, where a step may take five.
FOLDED_AT_ONCE = 1_000_000
#: Names of the new sessions of the arm with a checkpoint: beyond those of the other arms.
CHECKPOINTED = 1_000
SLOWLY = 2_000
#: An object store at the other end of a thin line.
SLOW_BYTES_PER_S = 2_000_000


@dataclass
class Sessions:
    """What was said so far: each of ``s-0`` to ``s-<count - 1>`` one message, and then the probes."""

    slots: SlotMap
    count: int = 0
    said: int = 0
    chance: random.Random = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.chance = random.Random(11)
        self._counters: dict[str, int] = {}

    def message(self, session: str) -> tuple[int, bytes, bytes]:
        self.said += 1
        counter = self._counters[session] = self._counters.get(session, 0) + 1
        return events.message(self.slots, TENANT, session, self.said, counter, self.chance)

    def grow(self, to: int) -> Iterator[tuple[int, bytes, bytes]]:
        for number in range(self.count, to):
            yield self.message(f"s-{number}")
        self.count = to


class Journal:
    """The end of a partition's journal, followed: when a session's record is committed."""

    def __init__(self, stack: Stack) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": stack.bootstrap,
                "group.id": "bench-none",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        here = TopicPartition(f"{stack.prefix}.journal", 0)
        here.offset = self._consumer.get_watermark_offsets(here, timeout=10)[1]
        self._consumer.assign([here])

    def wait(self, keys: set[bytes], worker: Watched) -> dict[bytes, float]:
        """Key → when its first record was read, seconds since the epoch."""
        found: dict[bytes, float] = {}
        until = time.monotonic() + STEP_SECONDS_MAX
        while keys - found.keys():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.setdefault(message.key(), time.time())
            if time.monotonic() > until:
                raise TimeoutError(f"no journal record of {keys - found.keys()}")
            worker.alive()
        return found

    def close(self) -> None:
        self._consumer.close()


def fold(stack: Stack, sessions: Sessions, to: int) -> None:
    """In pieces, each of them well below what one step of a benchmark may take."""
    while sessions.count < to:
        piece = min(to, sessions.count + FOLDED_AT_ONCE)
        count = load(stack.bootstrap, f"{stack.prefix}.inbox", sessions.grow(piece))
        worker = Watched(stack, INSTANCE, f"folding {count}")
        worker.folded(stack)
        worker.stop()


def probe(
    stack: Stack, sessions: Sessions, number: int, *, hot_first: bool, **settings: str
) -> dict[str, float]:
    """A life of the worker without its disk; see part c."""
    recent, new = f"s-{sessions.count - 1}", f"new-{number}"
    journal = Journal(stack)
    load(stack.bootstrap, f"{stack.prefix}.inbox", (sessions.message(name) for name in (recent, new)))
    env = settings | ({"REFOLD_WORKER__HOT_FIRST": "true"} if hot_first else {})
    shutil.rmtree(stack.directory / stack.prefix / INSTANCE)
    worker = Watched(stack, INSTANCE, f"hot_first={hot_first}", **env)
    try:
        keys = {f"{TENANT}/{name}".encode() for name in (recent, new)}
        found = journal.wait(keys, worker)
        live = worker.wait_live([0])
        at = worker.assigned_at()
        return {
            "recent_seconds": round(found[f"{TENANT}/{recent}".encode()] - at, 3),
            "new_seconds": round(found[f"{TENANT}/{new}".encode()] - at, 3),
            "all_live_seconds": round(live.from_assignment_s, 3),
            "records": live.records,
        }
    finally:
        journal.close()
        worker.folded(stack)
        worker.stop()


def checkpoint(stack: Stack) -> dict[str, str]:
    """A life of the worker that leaves a checkpoint of all there is; the settings that find it.

    One store for all sizes: the probe's own checkpoint, made when it stops, is of fewer records than the next
    size has, which waits for one of its own.
    """
    url = f"file://{stack.directory / 'checkpoints-hot'}"
    remote = Remote(url, stack.prefix)
    settings = {"REFOLD_WORKER__CHECKPOINT_URL": url}
    worker = Watched(stack, INSTANCE, "checkpoint", **settings, **OFTEN)
    end = worker.folded(stack)
    wait_until(lambda: checkpointed(remote, 1) >= end, "the checkpoint")
    worker.stop()
    return settings | SELDOM


def again(stack: Stack, *, kill: bool) -> dict[str, float]:
    """A life with the disk as the one before left it; part d."""
    if kill:
        before = Watched(stack, INSTANCE, "before")
        before.wait_live([0])
        before.stop(kill=True)
    worker = Watched(stack, INSTANCE, "after")
    live = worker.wait_live([0])
    worker.stop()
    return {
        "from_assignment_seconds": round(live.from_assignment_s, 3),
        "from_start_seconds": round(live.from_start_s, 3),
        "records": live.records,
    }


def run(stack: Stack, sizes: list[int], *, kill: bool = True) -> dict[str, Any]:
    stack.create_topics()
    sessions = Sessions(SlotMap(1))
    arms = [False, True] if has("hot_first") else [False]
    rows = []
    for number, size in enumerate(sizes):
        fold(stack, sessions, size)
        row: dict[str, Any] = {"sessions": size}
        for hot_first in arms:
            row["on" if hot_first else "off"] = probe(
                stack, sessions, 2 * number + hot_first, hot_first=hot_first
            )
        if has("hot_first") and has("checkpoint_url"):
            row["checkpoint"] = probe(
                stack, sessions, CHECKPOINTED + number, hot_first=True, **checkpoint(stack)
            )
            slow = {
                **checkpoint(stack),
                **installed(stack.directory / "slow", SLOW_BYTES_PER_S),
                "REFOLD_WORKER__CHECKPOINT_URL": f"slow://{stack.directory / 'checkpoints-hot'}",
            }
            row["slow_checkpoint"] = probe(stack, sessions, SLOWLY + number, hot_first=True, **slow)
        if True not in arms:
            row["on"] = "hot_first not available"
        print(f"hot session: {row}", file=sys.stderr)
        rows.append(row)
    intact: dict[str, Any] = {"sessions": sizes[-1], "stopped": again(stack, kill=False)}
    if kill:
        intact["killed"] = again(stack, kill=True)
    return {"hot_session": rows, "intact_disk": intact}
