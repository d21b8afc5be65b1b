"""A sink in memory that commits whole chunks and can be taken over, and helpers around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold.ops.evals.rules import Request, Stored
from refold.ops.evals.run import Ended, Options, Watcher, run_batch
from refold.ops.evals.runner import Runner
from refold.ops.evals.samples import SampleFile, open_samples
from refold.ops.evals.sinks.sink import fenced
from refold.wire.blobs import BlobStore
from refold.wire.evals import EvalCursor, EvalResult


@dataclass
class Place:
    """What is committed: every chunk with its cursor."""

    chunks: list[tuple[tuple[EvalResult, ...], EvalCursor]] = field(default_factory=list)

    @property
    def cursor(self) -> EvalCursor | None:
        return self.chunks[-1][1] if self.chunks else None

    @property
    def results(self) -> list[EvalResult]:
        return [row for rows, _ in self.chunks for row in rows]

    def stored(self) -> Stored:
        found = Stored()
        for rows, cursor in self.chunks:
            for row in (*rows, cursor):
                found.take(row)
        return found


class MemorySink:
    """``before``: called with the number of a commit, 1 the first after the claim, before it is made."""

    def __init__(self, place: Place, before: Callable[[int], None] = lambda number: None) -> None:
        self.place = place
        self._before = before
        self._epoch = 0
        self._commits = 0

    async def look(self) -> Stored:
        return self.place.stored()

    async def claim(self, first: EvalCursor) -> Stored:
        cursor = self.place.cursor or first
        self._epoch = cursor.epoch + 1
        self.place.chunks.append(((), cursor._replace(epoch=self._epoch)))
        return self.place.stored()

    async def commit(self, results: Sequence[EvalResult], cursor: EvalCursor) -> None:
        self._commits += 1
        self._before(self._commits)
        await asyncio.sleep(0)
        assert self.place.cursor is not None
        if self.place.cursor.epoch != self._epoch:
            raise fenced(cursor.batch)
        self.place.chunks.append((tuple(results), cursor))

    async def close(self) -> None: ...


def write_samples(path: Path, count: int) -> SampleFile:
    path.write_text("".join(json.dumps({"id": f"s{n}", "n": n}) + "\n" for n in range(count)))
    return open_samples(path)


async def evaluate(
    place: Place,
    file: SampleFile,
    runner: Runner,
    *,
    sink: MemorySink | None = None,
    concurrency: int = 4,
    retries: int = 0,
    max_seconds: float = 20,
    stop: asyncio.Event | None = None,
    watcher: Watcher | None = None,
    inline_bytes_max: int = 1_000,
    **request: Any,
) -> Ended:
    blobs = BlobStore(f"file://{file.path.parent}/blobs")
    return await run_batch(
        Request("b", "m:f", file.path.name, **request),
        runner,
        file,
        sink or MemorySink(place),
        Options(concurrency, retries, max_seconds, inline_bytes_max, blobs),
        stop or asyncio.Event(),
        watcher,
    )
