"""Files of samples: every format gives the same samples and digest; what is wrong is named (E3)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from refold.errors import UsageError
from refold.ops.evals.samples import open_samples

SAMPLES: list[dict[str, Any]] = [{"id": "a", "q": "één"}, {"id": "b", "q": 'x,\n"y"'}, {"id": "ć#%", "q": ""}]


def test_every_format_gives_the_same_samples(tmp_path: Path) -> None:
    """Goal: the digest is of the samples, not of the file's bytes."""
    text = "".join(json.dumps(sample) + "\n" for sample in SAMPLES)
    (tmp_path / "s.jsonl").write_text(text)
    (tmp_path / "spaced.jsonl").write_text("\n" + text.replace('", "', '" ,  "').replace("\n", "\r\n"))
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    table = 'q,id\r\néén,a\r\n"x,\n""y""",b\r\n,ć#%\r\n'
    (tmp_path / "s.csv").write_text(table, encoding="utf-8-sig", newline="")
    (tmp_path / "s.csv.gz").write_bytes(gzip.compress(table.encode()))
    files = [open_samples(path) for path in sorted(tmp_path.iterdir())]
    assert len(files) == 5
    assert len({file.digest for file in files}) == 1
    for file in files:
        assert file.ids == ("a", "b", "ć#%")
        assert [sample for _, sample in file.samples({0, 1, 2})] == SAMPLES
        assert [position for position, _ in file.samples({1})] == [1]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra eval is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(SAMPLES), tmp_path / "s.parquet")
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in SAMPLES))
    assert open_samples(tmp_path / "s.parquet").digest == open_samples(tmp_path / "s.jsonl").digest
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"bad\.parquet is no Parquet file"):
        open_samples(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("s.jsonl", '{"id":"a"}\n{"id":"b"}\n{"id":"a"}\n', r"line 3: the id 'a' is that of sample 1 too"),
        ("s.jsonl", '{"id":"a"}\n\n{"no":1}\n', r"line 3: 'id' must be a text .* --id-field"),
        ("s.jsonl", '{"id":true}\n', r"line 1: 'id' must be"),
        ("s.jsonl", '{"id":"a"}\n[1]\n', r"line 2: a sample is a JSON object"),
        ("s.jsonl", '{"id":"a"\n', r"line 1: no JSON"),
        ("s.jsonl", '{"id":"a","x":NaN}\n', r"line 1: the value has no JSON"),
        ("s.jsonl", '{"id":"a","x":"\\ud800"}\n', r"line 1: a text holds half of a surrogate"),
        ("s.jsonl", '{"id":"\\u0000"}\n', r"line 1: an id has at most 256 bytes and no NUL"),
        ("s.jsonl", '{"id":"' + "x" * 257 + '"}\n', r"line 1: an id has at most 256 bytes"),
        ("s.jsonl", "[" * 100_000, r"line 1: no JSON"),
        ("s.jsonl", "\n\n", r"has no sample"),
        ("s.jsonl", b"\xff\xfe", r"is not UTF-8"),
        ("s.jsonl.gz", b"no gzip", r"is not a whole gzip file"),
        ("s.jsonl.gz", gzip.compress(b'{"id":"a"}\n')[:-6], r"is not a whole gzip file"),
        ("s.csv", "id,q\na\n", r"line 2: not as many fields"),
        ("s.csv", "id,q\na,1,2\n", r"line 2: not as many fields"),
        ("s.csv", 'id,q\n"a', r"no CSV"),
        ("s.txt", "", r"samples are \.jsonl"),
    ],
)
def test_what_is_no_sample_is_named(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=said):
        open_samples(path)


def test_numbers_are_ids_and_the_field_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"key": 7}\n{"key": "8"}\n')
    assert open_samples(path, "key").ids == ("7", "8")


@pytest.mark.parametrize(
    "then", ['{"id":"a"}\n{"id":"c"}\n', '{"id":"a"}\n', '{"id":"a"}\n{"id":"b"}\n{"id":"c"}\n']
)
def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path, then: str) -> None:
    """Goal: no result is recorded for a sample that is not the one the digest was taken of."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"id":"a"}\n{"id":"b"}\n')
    file = open_samples(path)
    path.write_text(then)
    with pytest.raises(UsageError, match="changed while it was read"):
        list(file.samples({0, 1}))
