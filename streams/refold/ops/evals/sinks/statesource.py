"""Reading batches of the evals topic; see :class:`refold.ops.evals.sinks.sink.Source`.

The topic has results in the order of their commits, and a failed one may be followed by another. To give them
by position they are kept in a temporary file meanwhile: memory is 24 bytes a sample, whatever their size.
"""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import AsyncIterator
from typing import IO

from refold.errors import InvariantViolation
from refold.ops.evals.limits import EXPORT_ROWS
from refold.ops.evals.sinks.topic import EvalsTopic
from refold.wire.evals import EvalCursor, EvalResult, decode_eval


class StateSource:
    def __init__(self, topic: EvalsTopic) -> None:
        self._topic = topic

    async def cursors(self) -> list[EvalCursor]:
        found = await asyncio.to_thread(self._cursors, None)
        return [found[batch] for batch in sorted(found)]

    async def cursor(self, batch: str) -> EvalCursor | None:
        return (await asyncio.to_thread(self._cursors, batch)).get(batch)

    async def results(self, batch: str) -> AsyncIterator[EvalResult]:
        with tempfile.TemporaryFile(prefix="refold-eval-") as file:
            kept = await asyncio.to_thread(self._keep, batch, file)
            positions = list(kept.positions())
            for begin in range(0, len(positions), EXPORT_ROWS):
                wanted = positions[begin : begin + EXPORT_ROWS]
                for row in await asyncio.to_thread(kept.rows, wanted):
                    yield row

    async def close(self) -> None:
        pass

    def _cursors(self, batch: str | None) -> dict[str, EvalCursor]:
        found: dict[str, EvalCursor] = {}

        def visit(row: EvalResult | EvalCursor, _: bytes) -> None:
            if isinstance(row, EvalCursor):
                found[row.batch] = row

        only = None if batch is None else self._topic.partition_of(batch)
        for partition in range(self._topic.partitions()) if only is None else (only,):
            self._topic.read(partition, 0, batch, visit)
        return found

    def _keep(self, batch: str, file: IO[bytes]) -> Kept:
        kept = Kept(file)

        def visit(row: EvalResult | EvalCursor, value: bytes) -> None:
            if isinstance(row, EvalResult):
                kept.put(row.position, value)

        self._topic.read(self._topic.partition_of(batch), 0, batch, visit)
        return kept


class Kept:
    """Framed results in a file, the latest of each position."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = 0
        self._at: dict[int, int] = {}
        self._offsets = array("q")
        self._lengths = array("q")

    def put(self, position: int, value: bytes) -> None:
        self._file.write(value)
        self._at[position] = len(self._offsets)
        self._offsets.append(self._size)
        self._lengths.append(len(value))
        self._size += len(value)

    def positions(self) -> list[int]:
        return sorted(self._at)

    def rows(self, positions: list[int]) -> list[EvalResult]:
        return [self._row(position) for position in positions]

    def _row(self, position: int) -> EvalResult:
        index = self._at[position]
        self._file.seek(self._offsets[index])
        row = decode_eval(self._file.read(self._lengths[index]))
        if not isinstance(row, EvalResult):
            raise InvariantViolation("the temporary file of an export holds what was not put there")
        return row
