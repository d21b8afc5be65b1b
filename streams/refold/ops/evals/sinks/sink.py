"""What a run needs of a place for results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from refold.errors import FencedError
from refold.ops.evals.rules import Stored
from refold.wire.evals import EvalCursor, EvalResult


class Sink(Protocol):
    """One batch. Calls are made one at a time.

    E1: :meth:`commit` makes results and cursor visible together or not at all; after another runner's
    :meth:`claim` it raises :class:`FencedError` and nothing of it becomes visible.
    """

    async def look(self) -> Stored:
        """What is committed, without disturbing whoever runs the batch."""

    async def claim(self, first: EvalCursor) -> Stored:
        """Fence whoever had the batch, and return what is committed for good then. The cursor (``first``
        where there was none) has a new epoch, which is committed."""

    async def commit(self, results: Sequence[EvalResult], cursor: EvalCursor) -> None:
        """Raises :class:`FencedError`, :class:`UnavailableError` (outcome unknown: resume)."""

    async def close(self) -> None: ...


class Source(Protocol):
    """Reading for ``eval status``, ``list`` and ``export``."""

    async def cursors(self) -> list[EvalCursor]:
        """Of every batch, by name."""

    def results(self, batch: str) -> AsyncIterator[EvalResult]:
        """Of one batch, by position; none when there is no such batch."""

    async def cursor(self, batch: str) -> EvalCursor | None: ...

    async def close(self) -> None: ...


def fenced(batch: str) -> FencedError:
    return FencedError(
        f"another runner has taken batch {batch!r} over: this one is stopped. What it had committed counts;"
        " the samples it was at are the other's now. To hand it back, stop that one and resume here."
    )
