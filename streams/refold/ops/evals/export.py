"""A batch as one file: JSON lines, CSV or Parquet, in the order of the samples.

The file appears at once: it is written beside its name and renamed. Memory: EXPORT_ROWS results.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from refold.ops.evals.extras import extra
from refold.ops.evals.limits import EXPORT_ROWS
from refold.wire.blobs import BlobStore
from refold.wire.evals import EvalResult

Format = Literal["jsonl", "csv", "parquet"]

#: In order; ``result`` and ``params`` are JSON (text in CSV and Parquet).
COLUMNS: Final = (
    *("batch", "sample", "position", "status", "attempts", "params", "result"),
    *("result_uri", "result_sha256", "result_length"),
    *("error_code", "error", "started_ms", "finished_ms", "latency_ms"),
)
INTEGERS: Final = frozenset(
    {"position", "attempts", "result_length", "started_ms", "finished_ms", "latency_ms"}
)


class Writer(Protocol):
    def put(self, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def flat(row: EvalResult, load: Callable[[Mapping[str, Any]], bytes] | None = None) -> dict[str, Any]:
    """A result as columns, JSON as text. ``load`` fetches results that are references."""
    ref = row.result_ref
    result = load(ref) if ref is not None and load is not None else row.result
    return {
        "batch": row.batch,
        "sample": row.sample,
        "position": row.position,
        "status": row.status,
        "attempts": row.attempts,
        "params": row.params,
        "result": None if result is None else result.decode(),
        "result_uri": ref and ref["uri"],
        "result_sha256": ref and ref["sha256"],
        "result_length": ref and ref["length"],
        "error_code": row.error_code,
        "error": row.error,
        "started_ms": row.started_ms,
        "finished_ms": row.finished_ms,
        "latency_ms": row.latency_ms,
    }


async def export(
    results: AsyncIterator[EvalResult], path: Path, kind: Format, blobs: BlobStore | None
) -> int:
    """Write all results; how many. ``blobs``: fetch results that are references from there."""
    count = 0
    with _aside(path) as aside:
        writer = open_writer(aside, kind)
        try:
            async for row in results:
                writer.put(flat(row, None if blobs is None else blobs.get))
                count += 1
        finally:
            writer.close()
    return count


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        aside.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


def open_writer(path: Path, kind: Format) -> Writer:
    writers: dict[Format, Callable[[Path], Writer]] = {"jsonl": JsonLines, "csv": Csv, "parquet": Parquet}
    return writers[kind](path)


class JsonLines:
    """``params`` and ``result`` are values here, not texts of them."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def put(self, row: Mapping[str, Any]) -> None:
        values = {**row, "params": json.loads(row["params"])}
        if row["result"] is not None:
            values["result"] = json.loads(row["result"])
        self._file.write(json.dumps(values, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class Csv:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._csv = csv.DictWriter(self._file, COLUMNS)
        self._csv.writeheader()

    def put(self, row: Mapping[str, Any]) -> None:
        self._csv.writerow(row)

    def close(self) -> None:
        self._file.close()


class Parquet:
    def __init__(self, path: Path) -> None:
        self._arrow = extra("pyarrow")
        types = [
            (name, self._arrow.int64() if name in INTEGERS else self._arrow.string()) for name in COLUMNS
        ]
        self._schema = self._arrow.schema(types)
        self._writer = extra("pyarrow.parquet").ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []

    def put(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= EXPORT_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []
