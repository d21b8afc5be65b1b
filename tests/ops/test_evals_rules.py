"""Rules E2 and E3: what may be run, and which samples are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.evalsink import write_samples
from refold.errors import ConfigError, InvariantViolation, NotFound, RefoldError, UsageError
from refold.ops.evals import points
from refold.ops.evals.rules import Known, Request, Stored, Tally, check, first_cursor, todo
from refold.ops.evals.run import batch_id
from refold.ops.evals.samples import SampleFile
from refold.wire.evals import EvalCursor, EvalResult, batch_of, decode_eval, encode_eval, eval_key

DONE, FAILED = Known(True, 1), Known(False, 3)


@pytest.fixture
def file(tmp_path: Path) -> SampleFile:
    return write_samples(tmp_path / "s.jsonl", 5)


def stored(file: SampleFile, **changes: object) -> Stored:
    """s0 done, s1 failed, and a cursor that counts them."""
    first = first_cursor(Request("b", "m:f", "s.jsonl", '{"t":0}'), file, 1)
    return Stored(
        first._replace(**{"epoch": 1, "done": 1, "failed": 1, "through": 2, **changes}),
        {"s0": DONE, "s1": FAILED},
    )


def result(sample: str, position: int, status: str = "done", **changes: object) -> EvalResult:
    row = EvalResult("b", sample, position, status, 1, "{}", 1, 2, 1, b"1")
    return row._replace(**changes)


def test_e2_done_is_left_and_failed_is_not(file: SampleFile) -> None:
    known = stored(file).samples
    assert todo(file, known, only_failed=False) == {1, 2, 3, 4}
    assert todo(file, known, only_failed=True) == {1}
    assert todo(file, {}, only_failed=True) == set()


@pytest.mark.parametrize(("rule", "wanted"), [("redo-done", {0, 1, 2, 3, 4}), ("skip-failed", {2, 3, 4})])
def test_the_sabotages_break_e2(file: SampleFile, rule: str, wanted: set[int]) -> None:
    points.set_up(None, rule)
    try:
        assert todo(file, stored(file).samples, only_failed=False) == wanted
    finally:
        points.set_up(None, None)


@pytest.mark.parametrize(
    ("request_", "changes", "error", "said"),
    [
        ({}, {}, UsageError, r"exists \(1 of 5 done, 1 failed\): --resume"),
        (
            {"resume": True},
            {"samples_digest": "0" * 64},
            ConfigError,
            r"Restore that file .* another --batch",
        ),
        ({"only_failed": True}, {"samples_digest": "0" * 64}, ConfigError, r"another --batch"),
        ({"resume": True, "params": "{}"}, {}, ConfigError, r"leave --params out to resume"),
        ({"resume": True}, {"done": 2}, InvariantViolation, r"must commit together \(E1\)"),
        ({"resume": True}, {"failed": 0}, InvariantViolation, r"there are 1 and 1"),
    ],
)
def test_e3_what_is_refused(
    file: SampleFile,
    request_: dict[str, object],
    changes: dict[str, object],
    error: type[RefoldError],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        check(Request("b", "m:f", "s.jsonl", **request_), file, stored(file, **changes))  # type: ignore[arg-type]


def test_what_may_be_resumed(file: SampleFile) -> None:
    for request in (
        Request("b", "other:runner", "renamed.jsonl", None, resume=True),
        Request("b", "m:f", "s.jsonl", '{"t":0}', resume=True),
        Request("b", "m:f", "s.jsonl", only_failed=True),
    ):
        check(request, file, stored(file))
    check(Request("new", "m:f", "s.jsonl"), file, Stored())
    check(Request("new", "m:f", "s.jsonl", resume=True), file, Stored())


def test_results_without_cursor_strangers_and_nothing_that_failed(file: SampleFile) -> None:
    with pytest.raises(InvariantViolation, match="2 results and no cursor"):
        check(Request("b", "m:f", "s", resume=True), file, Stored(None, stored(file).samples))
    with pytest.raises(NotFound, match="nothing of it failed"):
        check(Request("b", "m:f", "s", only_failed=True), file, Stored())
    strange = Stored(stored(file).cursor, {"s0": DONE, "other": FAILED})
    with pytest.raises(InvariantViolation, match="results of other samples: 'other'"):
        check(Request("b", "m:f", "s", resume=True), file, strange)


def test_the_cursor_counts_samples_and_not_records(file: SampleFile) -> None:
    """A failed sample that is done later moves from one count to the other; ``through`` has no gaps."""
    tally = Tally(stored(file).cursor, file, stored(file).samples)  # type: ignore[arg-type]
    after = tally.after([result("s4", 4), result("s1", 1)], 9)
    assert (after.done, after.failed, after.through, after.updated_ms) == (3, 0, 2, 9)
    after = tally.after([result("s2", 2, "failed"), result("s3", 3)], 10)
    assert (after.done, after.failed, after.through) == (4, 1, 5)


def test_records_and_keys_come_back_equal() -> None:
    ref = {
        "uri": "file:///b",
        "sha256": "ab" * 32,
        "length": 7,
        "media_type": "application/json",
        "field": "data",
    }
    rows: list[EvalResult | EvalCursor] = [
        result("s#/é", 0),
        result("x", 1, "failed", result=None, error_code="E", error="why", epoch=3),
        result("y", 2, result=None, result_ref=ref),
        EvalCursor("b", "d", 5, "s.jsonl", "m:f", "{}", 1, 2, 3, 4, 5, 6),
    ]
    assert [decode_eval(encode_eval(row)) for row in rows] == rows
    keys = {eval_key("b", name) for name in (None, "@cursor", "a/b", "a%2Fb", "é")}
    assert len(keys) == 5
    assert {batch_of(key) for key in keys} == {"b"}


def test_the_default_batch_is_named_by_its_samples(file: SampleFile) -> None:
    assert batch_id(None, file) == f"s-{file.digest[:8]}"
    assert batch_id("nightly_7.a-b", file) == "nightly_7.a-b"
    for bad in ("", "-x", "a/b", "a b", "é", "x" * 101):
        with pytest.raises(UsageError, match="is no batch id"):
            batch_id(bad, file)
