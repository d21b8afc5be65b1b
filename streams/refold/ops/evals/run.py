"""One run of a batch, from its samples to the last commit."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from refold.errors import UsageError
from refold.ops.evals.committing import Committer
from refold.ops.evals.execution import Execution, Work
from refold.ops.evals.limits import BATCH_ID_CHARS_MAX
from refold.ops.evals.rules import Request, Tally, check, first_cursor, todo
from refold.ops.evals.runner import Runner, now_ms
from refold.ops.evals.samples import SampleFile
from refold.ops.evals.sinks.sink import Sink
from refold.wire.blobs import BlobStore
from refold.wire.evals import EvalResult

BATCH_ID: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{BATCH_ID_CHARS_MAX - 1}}}")

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 75


@dataclass(frozen=True, slots=True)
class Options:
    concurrency: int
    retries: int
    max_seconds: float
    inline_bytes_max: int
    blobs: BlobStore


class Watcher:
    """What a run tells while it goes; the base says nothing."""

    def begun(self, todo: int, done: int, failed: int) -> None: ...

    def started(self) -> None: ...

    def committed(self, row: EvalResult) -> None: ...

    def ended(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """``ran``: attempts begun. ``abandoned``: samples were given up while they ran; they have no outcome."""

    batch: str
    samples: int
    done: int
    failed: int
    ran: int
    epoch: int
    interrupted: bool
    abandoned: bool

    @property
    def left(self) -> int:
        return self.samples - self.done - self.failed

    @property
    def exit_code(self) -> int:
        if self.done == self.samples:
            return EXIT_DONE
        return EXIT_INTERRUPTED if self.interrupted else EXIT_FAILED

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "left": self.left}


def batch_id(given: str | None, file: SampleFile) -> str:
    """The batch's name; without one, that of the samples: file name and digest. Raises UsageError."""
    if given is None:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", file.path.name.partition(".")[0]).lstrip("._-")
        given = f"{stem[:60] or 'batch'}-{file.digest[:8]}"
    if not BATCH_ID.fullmatch(given):
        raise UsageError(
            f"{given!r} is no batch id: letters, digits, '.', '_' and '-', at most {BATCH_ID_CHARS_MAX}, not"
            " beginning with a sign."
        )
    return given


async def run_batch(
    request: Request,
    runner: Runner,
    file: SampleFile,
    sink: Sink,
    options: Options,
    stop: asyncio.Event,
    watcher: Watcher | None = None,
) -> Ended:
    """Returns when nothing is left to do, or when ``stop`` is set and what ran has ended.

    Raises what :func:`refold.ops.evals.rules.check` and the sink raise. Closes nothing that it was given.
    """
    watcher = watcher or Watcher()
    # Before anybody is fenced: a mistaken call must not stop who is at it.
    check(request, file, await sink.look())
    stored = await sink.claim(first_cursor(request, file, now_ms()))
    cursor = stored.cursor
    if cursor is None:
        raise UsageError(f"batch {request.batch!r} was deleted while it was taken: run again.")
    # Again, because somebody may have committed in between; from here on nobody else can. The first to claim
    # it finds the cursor that it has just written.
    check(request if cursor.epoch > 1 else replace(request, resume=True), file, stored)
    cursor = cursor._replace(runner=request.runner)
    wanted = todo(file, stored.samples, only_failed=request.only_failed)
    tally = Tally(cursor, file, stored.samples)
    watcher.begun(len(wanted), cursor.done, cursor.failed)
    ran = 0

    def started() -> None:
        nonlocal ran
        ran += 1
        watcher.started()

    committer = Committer(sink, tally, watcher.committed)
    work = Work(
        runner=runner,
        file=file,
        todo=wanted,
        known=stored.samples,
        cursor=cursor,
        blobs=options.blobs,
        inline_bytes_max=options.inline_bytes_max,
        concurrency=max(1, min(options.concurrency, len(wanted))),
        retries=options.retries,
        max_seconds=options.max_seconds,
    )
    execution = Execution(work, committer, started)
    try:
        await execution.run(stop)
    finally:
        watcher.ended()
    return Ended(
        batch=request.batch,
        samples=cursor.samples,
        done=tally.cursor.done,
        failed=tally.cursor.failed,
        ran=ran,
        epoch=cursor.epoch,
        interrupted=stop.is_set(),
        abandoned=execution.abandoned,
    )
