"""Exports: the same results in three formats, in the samples' order; a file appears whole or not at all."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from refold.ops.evals.export import COLUMNS, export
from refold.ops.evals.progress import Progress, Rate, duration
from refold.ops.evals.sinks.statesource import Kept
from refold.wire.blobs import BlobStore
from refold.wire.evals import EvalResult, encode_eval


def row(position: int, status: str = "done", **changes: Any) -> EvalResult:
    first = EvalResult("b", f"s{position}", position, status, 1, '{"t":0}', 10, 15, 5, b'{"x":"\xc3\xa9"}')
    return first._replace(**changes)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def files_of(path: Path) -> list[str]:
    return [found.name for found in path.iterdir() if found.is_file()]


async def stream(rows: list[EvalResult]) -> AsyncIterator[EvalResult]:
    for one in rows:
        yield one


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(f"file://{tmp_path}/blobs")


@pytest.fixture
def rows(blobs: BlobStore) -> list[EvalResult]:
    ref = blobs.put(b'"large"', media_type="application/json", field="data")
    failed = row(1, "failed", result=None, error_code="E", error='said "no",\nthen more')
    return [row(0), failed, row(2, result=None, result_ref=ref)]


async def test_three_formats(tmp_path: Path, rows: list[EvalResult], blobs: BlobStore) -> None:
    pytest.importorskip("pyarrow", reason="the extra eval is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    for kind in ("jsonl", "csv", "parquet"):
        assert await export(stream(rows), tmp_path / f"o.{kind}", kind, blobs) == 3  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [line["result"] for line in lines] == [{"x": "é"}, None, "large"]
    assert lines[1]["error"] == 'said "no",\nthen more'
    assert lines[2]["params"] == {"t": 0}
    with (tmp_path / "o.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    columns = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert list(columns[0]) == list(table[0]) == list(lines[0]) == list(COLUMNS)
    assert [record["result"] for record in columns] == ['{"x":"é"}', None, '"large"']
    assert [record["position"] for record in columns] == [0, 1, 2]
    assert columns[2]["result_length"] == 7
    assert [record["result"] for record in table] == ['{"x":"é"}', "", '"large"']


async def test_references_stay_references_unless_asked(tmp_path: Path, rows: list[EvalResult]) -> None:
    await export(stream(rows), tmp_path / "o.jsonl", "jsonl", None)
    line = json.loads(lines_of(tmp_path / "o.jsonl")[2])
    assert line["result"] is None
    assert line["result_sha256"] is not None


async def test_a_failed_export_leaves_the_former_file(tmp_path: Path, rows: list[EvalResult]) -> None:
    async def breaking() -> AsyncIterator[EvalResult]:
        yield rows[0]
        raise OSError("gone")

    target = tmp_path / "o.jsonl"
    target.write_text("before")
    with pytest.raises(OSError, match="gone"):
        await export(breaking(), target, "jsonl", None)
    assert target.read_text() == "before"
    assert files_of(tmp_path) == ["o.jsonl"]


def test_kept_results_are_the_latest_by_position(tmp_path: Path) -> None:
    with (tmp_path / "kept").open("w+b") as file:
        kept = Kept(file)
        for one in (row(2), row(0, "failed"), row(1), row(0, attempts=2)):
            kept.put(one.position, encode_eval(one))
        assert kept.rows(kept.positions()) == [row(0, attempts=2), row(1), row(2)]


def test_the_rate_is_that_of_the_last_while() -> None:
    moment = 0.0
    rate = Rate(lambda: moment)
    assert rate.per_s() is None
    for _ in range(600):
        moment += 0.1
        rate.add()
    assert rate.per_s() == pytest.approx(10, rel=0.1)
    for _ in range(60):
        moment += 1
        rate.add()
    assert rate.per_s() == pytest.approx(1, rel=0.1)


def test_progress_counts_samples_and_not_attempts() -> None:
    said: list[str] = []
    progress = Progress("b", said.append)
    progress.begun(3, 1, 1)
    for one in (row(0, "failed"), row(0), row(1), row(2, "failed")):
        progress.committed(one)
    progress.ended()
    assert said == ["batch b: 3 samples to run; 1 done and 1 failed before"]
    assert progress._words().endswith("1 failed")
    assert [duration(s) for s in (0, 42, 200, 4_800)] == ["0 s", "42 s", "3 min", "1 h 20 min"]
