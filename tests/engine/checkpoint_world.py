"""A partition's DB with recognisable content, and its way to a checkpoint store and back."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refold.engine import rows
from refold.engine.checkpoints.keys import write_filter
from refold.engine.checkpoints.publish import Hashes, Published, Upload
from refold.engine.checkpoints.remote import Remote
from refold.engine.points import Points
from refold.engine.rows import Frontier
from refold.engine.store import Batch, Memory, Store, stored_frontier

PREFIX = "t"
PARTITION = 3
KEYS = 40
NOW = 2_000_000_000_000


def frontier(number: int, **changes: Any) -> Frontier:
    """The place after ``number`` batches."""
    values = {
        "state_topic": "ts",
        "history_topic": "th",
        "generations_topic": "tg",
        "inbox_next": number,
        "batches_next": number,
        "state_next": number * KEYS,
        "history_next": number,
        "generations_next": number,
        "applied_ms": NOW,
        **changes,
    }
    return Frontier(**values)


def write(store: Store, number: int, **changes: Any) -> None:
    """Batch ``number``: every key carries it, so that a torn copy would show."""
    batch = Batch()
    for key in range(KEYS):
        batch.put_state(b"a/%d" % key, rows.pack(number, b"", b"%d " % number * 40 + os.urandom(200)))
    batch.frontier(frontier(number, **changes))
    store.write(batch)


def seqs(store: Store) -> set[int]:
    found = set()
    for key in range(KEYS):
        row = store.row(b"a/%d" % key)
        assert row is not None
        found.add(rows.seq_of(row))
    return found


class World:
    """One store, one partition, one clock."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.directory = directory
        self.memory = Memory()
        self.url = url or f"file://{directory / 'remote'}"
        self.remote = Remote(self.url, PREFIX)
        self.path = directory / "data" / f"p{PARTITION:05d}"
        self.store = Store(self.path, self.memory)
        self.hashes = Hashes()
        #: That of the store's files, or none of them would be young.
        self.now_ms = time.time_ns() // 1_000_000
        self.number = 0

    def go_on(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.number += 1
            write(self.store, self.number)

    def batch(self) -> Batch:
        """Empty; :meth:`commit` adds the place after ``number`` batches."""
        return Batch()

    def commit(self, batch: Batch) -> None:
        batch.frontier(frontier(self.number))
        self.store.write(batch)

    def file(self, sha256: str) -> Path:
        """Of a file in the local store."""
        return self.directory / "remote" / PREFIX / f"p{PARTITION:05d}" / "files" / sha256

    def publish(
        self,
        *,
        points: Points | None = None,
        keep: int = 3,
        stopped: Callable[[], bool] = lambda: False,
        hashes: Hashes | None = None,
    ) -> Published:
        return publish(
            self.remote,
            self.store,
            self.memory,
            self.directory,
            self.now_ms,
            points=points or Points(),
            keep=keep,
            stopped=stopped,
            hashes=hashes or self.hashes,
        )

    def close(self) -> None:
        self.store.close()


def publish(
    remote: Remote,
    store: Store,
    memory: Memory,
    directory: Path,
    now_ms: int,
    *,
    points: Points,
    keep: int = 3,
    stopped: Callable[[], bool] = lambda: False,
    hashes: Hashes | None = None,
) -> Published:
    """Take and upload, as the worker's service does."""
    taken, scratch = directory / "taken", directory / "scratch"
    shutil.rmtree(taken, ignore_errors=True)
    scratch.mkdir(exist_ok=True)
    assert store.checkpoint(taken)
    at = stored_frontier(taken, memory)
    assert at is not None
    upload = Upload(
        remote,
        PARTITION,
        writer="w",
        keep=keep,
        points=points,
        now_ms=lambda: now_ms,
        stopped=stopped,
    )
    return upload.run(
        taken, at, hashes or Hashes(), scratch, lambda to: write_filter(taken, memory, to, upload.check)
    )


class Told:
    """Metrics and a log that remember."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], float] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = (name, *labels.values())
        self.counts[key] = self.counts.get(key, 0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.count(name, value, **labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.counts[(name, *labels.values())] = value

    def forget(self, name: str, **labels: str) -> None:
        self.counts.pop((name, *labels.values()), None)

    def info(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    warning = error = info

    def restores(self) -> dict[str, float]:
        name = "refold_checkpoint_restores_total"
        return {labels[1]: count for labels, count in self.counts.items() if labels[0] == name}

    def reasons(self) -> list[str]:
        return [fields["reason"] for event, fields in self.events if event == "checkpoint_skipped"]
