"""Part e: the disk is lost, a checkpoint is not. The same sessions, the same tail, ten times the history (and
no more state: the sessions' windows are full before the first checkpoint).

From the worker's assignment to all partitions live, with the checkpoint store and without.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from bench import events
from bench.harness import Stack, load, median, wait_until
from bench.recovery.worker import Live, Watched
from refold.engine.checkpoints.remote import Remote

INSTANCE = "tail"
#: Never by time while a tail is folded; at once where one is wanted.
SELDOM = {"REFOLD_WORKER__CHECKPOINT_INTERVAL_MS": "86400000"}
OFTEN = {"REFOLD_WORKER__CHECKPOINT_INTERVAL_MS": "1000"}


def checkpointed(remote: Remote, partitions: int) -> int:
    """Inbox records that the newest checkpoints hold together."""
    total = 0
    for partition in range(partitions):
        names = remote.checkpoints(partition)
        total += remote.manifest(partition, names[0]).frontier.inbox_next if names else 0
    return total


def restore(stack: Stack, env: dict[str, str]) -> Live:
    shutil.rmtree(stack.directory / stack.prefix / INSTANCE)
    worker = Watched(stack, INSTANCE, "restoring", **env)
    live = worker.wait_live(range(stack.partitions))
    worker.stop()
    return live


def run(stack: Stack, *, sessions: int, history: int, tail: int, rounds: int) -> dict[str, Any]:
    stack.create_topics()
    directory = Path(stack.directory) / "checkpoints"
    url = {"REFOLD_WORKER__CHECKPOINT_URL": f"file://{directory}"}
    remote = Remote(f"file://{directory}", stack.prefix)
    made = iter(events.messages(2 * tail + 10 * history, sessions, stack.partitions))

    def fold(count: int, env: dict[str, str], *, checkpoint: bool) -> None:
        load(stack.bootstrap, f"{stack.prefix}.inbox", (next(made) for _ in range(count)))
        worker = Watched(stack, INSTANCE, "folding", **env)
        end = worker.folded(stack)
        if checkpoint:
            wait_until(lambda: checkpointed(remote, stack.partitions) >= end, "the checkpoints")
        worker.stop()

    rows = []
    for grown in (history, 9 * history):
        fold(grown, {**url, **OFTEN}, checkpoint=True)
        fold(tail, {}, checkpoint=False)
        lives = []
        for number in range(rounds):
            # Of a copy: a worker that is stopped checkpoints first, and the next round would have no tail.
            copy = directory.with_name(f"checkpoints-{grown}-{number}")
            shutil.copytree(directory, copy)
            lives.append(restore(stack, {**SELDOM, "REFOLD_WORKER__CHECKPOINT_URL": f"file://{copy}"}))
        without = restore(stack, {})
        row = {
            "events": stack.inbox_end(),
            "tail_events": tail,
            "seconds": round(median([live.from_assignment_s for live in lives]), 3),
            "records": lives[-1].records,
            "without_seconds": round(without.from_assignment_s, 3),
            "without_records": without.records,
        }
        print(f"checkpoint: {row}", file=sys.stderr)
        rows.append(row)
    return {
        "sessions": sessions,
        "rounds": rounds,
        "histories": rows,
        "ratio_of_times": round(rows[1]["seconds"] / rows[0]["seconds"], 2),
    }
