"""A file of samples: JSON lines, CSV or Parquet, the first two also with gzip.

E3: ids are unique, and the digest names the samples and their order, not the file's bytes: compressing it
again changes nothing. The file is read twice, once for ids and digest and once for the run; the second time
each sample must be the one seen before.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from refold.errors import InvalidRecord, UsageError
from refold.ops.evals.extras import extra
from refold.ops.evals.jsonvalue import canonical
from refold.ops.evals.limits import SAMPLE_BYTES_MAX, SAMPLE_ID_BYTES_MAX, SAMPLES_MAX

Sample = dict[str, Any]

#: Of the SHA-256 of one sample; enough to notice a changed one, and 16 bytes each in memory.
CHECK_BYTES: Final = 16

#: Rows of a Parquet file at once.
PARQUET_ROWS: Final = 1_000

FORMATS: Final = (".jsonl", ".ndjson", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class SampleFile:
    """``ids`` and ``checks`` by position."""

    path: Path
    id_field: str
    digest: str
    ids: tuple[str, ...]
    checks: tuple[bytes, ...]

    def samples(self, wanted: Container[int]) -> Iterator[tuple[int, Sample]]:
        """(position, sample) of the wanted positions, in order. Blocks. Raises UsageError when the file has
        changed since it was opened."""
        seen = 0
        for position, (_, sample, text) in enumerate(_read(self.path)):
            if position >= len(self.checks) or _check(text) != self.checks[position]:
                raise self._changed(position)
            seen += 1
            if position in wanted:
                yield position, sample
        if seen != len(self.checks):
            raise self._changed(seen)

    def _changed(self, position: int) -> UsageError:
        return UsageError(
            f"{self.path} changed while it was read (sample {position + 1}). What is committed stays; restore"
            " the file and run again with --resume."
        )


def open_samples(path: Path, id_field: str = "id") -> SampleFile:
    """Read the file once. Blocks. Raises UsageError naming the line for what is no sample, a missing or
    repeated id, and a file of no known format; OSError where it cannot be read."""
    whole = hashlib.sha256()
    ids: dict[str, int] = {}
    checks: list[bytes] = []
    for position, (where, sample, text) in enumerate(_read(path)):
        if position >= SAMPLES_MAX:
            raise UsageError(f"{path} has more than {SAMPLES_MAX} samples: split it into several batches.")
        name = sample_id(sample, id_field, where)
        if name in ids:
            raise UsageError(
                f"{where}: the id {name!r} is that of sample {ids[name] + 1} too. Ids name results, so each"
                f" is used once: change one, or name another field with --id-field."
            )
        if len(text) > SAMPLE_BYTES_MAX:
            raise UsageError(f"{where}: larger than {SAMPLE_BYTES_MAX} bytes; refer to large parts.")
        ids[name] = position
        checks.append(_check(text))
        whole.update(len(text).to_bytes(8, "big") + text)
    if not ids:
        raise UsageError(f"{path} has no sample.")
    return SampleFile(path, id_field, whole.hexdigest(), tuple(ids), tuple(checks))


def sample_id(sample: Sample, field: str, where: str) -> str:
    """The sample's id; a whole number counts as its digits. Raises UsageError."""
    value = sample.get(field)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        way = "Add one, or name the field that has it with --id-field."
        raise UsageError(f"{where}: {field!r} must be a text or a whole number. {way}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{where}: the id holds half of a surrogate pair.") from None
    if size > SAMPLE_ID_BYTES_MAX or "\0" in value:
        raise UsageError(f"{where}: an id has at most {SAMPLE_ID_BYTES_MAX} bytes and no NUL.")
    return value


def kind_of(path: Path) -> tuple[str, bool]:
    """(format, gzipped) by the name. Raises UsageError."""
    gzipped = path.suffix == ".gz"
    suffix = Path(path.stem).suffix if gzipped else path.suffix
    if suffix not in FORMATS or (gzipped and suffix == ".parquet"):
        raise UsageError(f"{path}: samples are .jsonl, .ndjson or .csv, these also with .gz, or .parquet.")
    return suffix, gzipped


def _read(path: Path) -> Iterator[tuple[str, Sample, bytes]]:
    """(where it stands, sample, its canonical JSON)."""
    for where, sample in _rows(path):
        try:
            yield where, sample, canonical(sample)
        except InvalidRecord as error:
            raise UsageError(f"{where}: {error.reason}; a sample is what JSON can say.") from None


def _rows(path: Path) -> Iterator[tuple[str, Sample]]:
    suffix, gzipped = kind_of(path)
    if suffix == ".parquet":
        yield from _parquet(path)
        return
    with _text(path, gzipped) as file:
        try:
            yield from _csv(file, path) if suffix == ".csv" else _lines(file, path)
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 ({error.reason}).") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{path} is not a whole gzip file ({error}): copy it again.") from None


@contextmanager
def _text(path: Path, gzipped: bool) -> Iterator[IO[str]]:
    with path.open("rb") as raw:
        inner: Any = gzip.GzipFile(fileobj=raw) if gzipped else raw
        yield io.TextIOWrapper(inner, encoding="utf-8-sig", newline="")


def _lines(file: IO[str], path: Path) -> Iterator[tuple[str, Sample]]:
    number = 0
    # Bounded: a file without line ends must not become one string of its whole size.
    while line := file.readline(SAMPLE_BYTES_MAX + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(line) > SAMPLE_BYTES_MAX:
            raise UsageError(f"{where}: longer than {SAMPLE_BYTES_MAX} bytes; refer to large parts.")
        if not line.strip():
            continue
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: no JSON ({error}).") from None
        if not isinstance(sample, dict):
            raise UsageError(f"{where}: a sample is a JSON object.")
        yield where, sample


def _csv(file: IO[str], path: Path) -> Iterator[tuple[str, Sample]]:
    reader = csv.DictReader(file, strict=True)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise UsageError(f"{where}: not as many fields as the header has.")
            yield where, dict(row)
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: no CSV ({error}).") from None


def _parquet(path: Path) -> Iterator[tuple[str, Sample]]:
    arrow, parquet = extra("pyarrow"), extra("pyarrow.parquet")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except arrow.ArrowException as error:
        raise UsageError(f"{path} is no Parquet file ({error}).") from None


def _check(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:CHECK_BYTES]
