"""What a run of a batch may do, from its samples and what is committed of it. Pure.

E2: what is done is not done again; what failed, and what has no result, is done. E3: the samples are those of
the batch, and so are its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from refold.errors import ConfigError, InvariantViolation, NotFound, UsageError
from refold.ops.evals.points import broken
from refold.ops.evals.samples import SampleFile
from refold.wire.evals import EvalCursor, EvalResult


class Known(NamedTuple):
    """What is committed of a sample."""

    done: bool
    attempts: int


@dataclass(slots=True)
class Stored:
    """What is committed of a batch; ``samples`` by id."""

    cursor: EvalCursor | None = None
    samples: dict[str, Known] = field(default_factory=dict)

    def take(self, row: EvalResult | EvalCursor) -> None:
        """The next record, in the order in which they were committed."""
        if isinstance(row, EvalCursor):
            self.cursor = row
        else:
            self.samples[row.sample] = Known(row.done, row.attempts)


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asks for. ``params`` None: those of the batch, or ``{}`` for a new one."""

    batch: str
    runner: str
    source: str
    params: str | None = None
    resume: bool = False
    only_failed: bool = False


def first_cursor(request: Request, file: SampleFile, now_ms: int) -> EvalCursor:
    return EvalCursor(
        batch=request.batch,
        samples_digest=file.digest,
        samples=len(file.ids),
        source=request.source,
        runner=request.runner,
        params=request.params or "{}",
        created_ms=now_ms,
        updated_ms=now_ms,
    )


def check(request: Request, file: SampleFile, stored: Stored) -> None:
    """Raises ConfigError or UsageError for what must not be run, NotFound for a batch that is not there and
    InvariantViolation when results and cursor do not agree."""
    cursor = stored.cursor
    if cursor is None:
        if stored.samples:
            raise InvariantViolation(
                f"batch {request.batch} has {len(stored.samples)} results and no cursor: they are committed"
                " together (E1). Was one of them deleted? Evaluate under another --batch."
            )
        if request.only_failed:
            raise NotFound(f"there is no batch {request.batch!r}, so nothing of it failed: see `eval list`.")
        return
    if not (request.resume or request.only_failed):
        raise UsageError(
            f"batch {request.batch!r} exists ({cursor.done} of {cursor.samples} done, {cursor.failed}"
            " failed): --resume goes on with it, another --batch begins a new one."
        )
    if cursor.samples_digest != file.digest:
        raise ConfigError(
            f"{request.source} has not the samples of batch {request.batch!r} ({len(file.ids)} samples,"
            f" digest {file.digest[:12]}…; the batch was begun with {cursor.samples} of {cursor.source},"
            f" digest {cursor.samples_digest[:12]}…). Restore that file to resume, or evaluate the"
            " changed one under another --batch."
        )
    if request.params is not None and request.params != cursor.params:
        raise ConfigError(
            f"batch {request.batch!r} was begun with --params '{cursor.params}': leave --params out to"
            " resume, or use another --batch. One batch has one set of parameters."
        )
    check_counts(stored, cursor)
    if strangers := stored.samples.keys() - set(file.ids):
        raise InvariantViolation(f"batch {request.batch!r} has results of other samples: {min(strangers)!r}.")


def check_counts(stored: Stored, cursor: EvalCursor) -> None:
    """E1: the cursor counts exactly the results that are there. Raises InvariantViolation."""
    done = sum(known.done for known in stored.samples.values())
    failed = len(stored.samples) - done
    if (cursor.done, cursor.failed) != (done, failed):
        raise InvariantViolation(
            f"the cursor of batch {cursor.batch} counts {cursor.done} done and {cursor.failed} failed, there"
            f" are {done} and {failed}: results and cursor must commit together (E1). Please report this;"
            " another --batch evaluates anew."
        )


def todo(file: SampleFile, samples: Mapping[str, Known], *, only_failed: bool) -> set[int]:
    """Positions to run."""
    wanted = set()
    for position, name in enumerate(file.ids):
        known = samples.get(name)
        if known is None:
            take = not only_failed
        elif known.done:
            take = broken("redo-done")
        else:
            take = not broken("skip-failed")
        if take:
            wanted.add(position)
    return wanted


class Tally:
    """The cursor as results come in. One record per sample: a failed one may be followed by another."""

    def __init__(self, cursor: EvalCursor, file: SampleFile, samples: Mapping[str, Known]) -> None:
        self.cursor = cursor
        #: By position: 0 no result, 1 failed, 2 done.
        self._states = bytearray(len(file.ids))
        for position, name in enumerate(file.ids):
            if (known := samples.get(name)) is not None:
                self._states[position] = 2 if known.done else 1

    def after(self, results: Sequence[EvalResult], now_ms: int) -> EvalCursor:
        """Count ``results`` in; the cursor to be committed with them."""
        for row in results:
            self._states[row.position] = 2 if row.done else 1
        through = self.cursor.through
        while through < len(self._states) and self._states[through]:
            through += 1
        self.cursor = self.cursor._replace(
            done=self._states.count(2), failed=self._states.count(1), through=through, updated_ms=now_ms
        )
        return self.cursor
