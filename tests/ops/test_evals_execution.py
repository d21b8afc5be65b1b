"""Running a batch on a sink in memory: order, attempts, stops, takeovers, crashes at every commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ops.evalsink import MemorySink, Place, evaluate, write_samples
from refold.errors import ConfigError, FencedError, StorageError, UsageError
from refold.ops.evals import execution
from refold.ops.evals.limits import CHUNK_RESULTS_MAX
from refold.ops.evals.run import Watcher
from refold.ops.evals.runner import EvalContext, find_runner, parse_params
from refold.wire.blobs import BlobStore
from refold.wire.evals import EvalCursor, EvalResult

Sample = dict[str, Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries are made at once."""
    monkeypatch.setattr(execution, "RETRY_WAIT_S", 0.001)


class Crash(BaseException):
    """The process is gone: nothing of ours catches it."""


async def test_all_are_done_in_order_with_one_slot(tmp_path: Path) -> None:
    file, place, seen = write_samples(tmp_path / "s.jsonl", 150), Place(), []

    async def runner(sample: Sample, context: EvalContext) -> dict[str, Any]:
        seen.append(context)
        return {"twice": 2 * sample["n"], "t": context.params["t"]}

    ended = await evaluate(place, file, runner, concurrency=1, params='{"t":1}')
    assert (ended.exit_code, ended.done, ended.failed, ended.left, ended.ran) == (0, 150, 0, 0, 150)
    assert [context.position for context in seen] == list(range(150))
    assert seen[7] == EvalContext("b", "s7", 7, 1, {"t": 1})
    assert seen[7].idempotency_key == "b/s7/1"
    assert [(row.sample, row.result) for row in place.results][3] == ("s3", b'{"t":1,"twice":6}')
    assert place.cursor is not None
    assert (place.cursor.done, place.cursor.through, place.cursor.epoch) == (150, 150, 1)


async def test_results_of_many_slots_are_committed_in_chunks(tmp_path: Path) -> None:
    """Goal: one transaction for what ends together, never more than the limit."""
    file, place = write_samples(tmp_path / "s.jsonl", 200), Place()
    begun, together = 0, asyncio.Event()

    async def runner(sample: Sample, context: EvalContext) -> int:
        nonlocal begun
        begun += 1
        if begun == 100:
            together.set()
        await together.wait()
        return int(sample["n"])

    await evaluate(place, file, runner, concurrency=100)
    sizes = [len(rows) for rows, _ in place.chunks]
    assert sum(sizes) == 200
    assert max(sizes) == CHUNK_RESULTS_MAX
    done = 0
    for rows, cursor in place.chunks:
        done += len(rows)
        assert cursor.done == done


async def test_failures_have_codes_and_are_tried_again_on_resume_only(tmp_path: Path) -> None:
    file, place = write_samples(tmp_path / "s.jsonl", 12), Place()
    attempts: dict[int, list[int]] = {}

    class Coded(Exception):
        code = "rate_limited"

    def runner(sample: Sample, context: EvalContext) -> object:
        attempts.setdefault(sample["n"], []).append(context.attempt)
        if context.attempt > 1:
            return "fine"
        match sample["n"]:
            case 1:
                raise Coded("slow\0down\ud800")
            case 2:
                raise StopIteration
            case 3:
                raise SystemExit(3)
            case 4:
                return object()
            case 5:
                return float("nan")
        return "fine"

    ended = await evaluate(place, file, runner)
    assert (ended.exit_code, ended.done, ended.failed) == (1, 7, 5)
    codes = {row.position: (row.error_code, row.status) for row in place.results if not row.done}
    assert codes == {
        1: ("rate_limited", "failed"),
        2: ("StopIteration", "failed"),
        3: ("SystemExit", "failed"),
        4: ("not_json", "failed"),
        5: ("not_json", "failed"),
    }
    texts = {row.position: row.error for row in place.results}
    assert texts[1] == "slow\\0down\\ud800"
    with pytest.raises(UsageError, match="exists"):
        await evaluate(place, file, runner)
    ended = await evaluate(place, file, runner, only_failed=True)
    assert (ended.exit_code, ended.ran) == (0, 5)
    assert {n: made for n, made in attempts.items() if len(made) > 1} == {n: [1, 2] for n in range(1, 6)}
    assert {row.attempts for row in place.results if row.position in (1, 2) and row.done} == {2}


async def test_an_attempt_begins_when_the_failure_before_is_committed(tmp_path: Path) -> None:
    """Goal: the idempotency key changes only after "not done" is durable. Method: look at each call."""
    file, place = write_samples(tmp_path / "s.jsonl", 5), Place()

    async def runner(sample: Sample, context: EvalContext) -> str:
        known = place.stored().samples.get(context.sample_id)
        assert (known.attempts if known else 0) == context.attempt - 1
        if context.attempt < 3:
            raise ValueError("again")
        return "ok"

    ended = await evaluate(place, file, runner, retries=2)
    assert (ended.exit_code, ended.ran) == (0, 15)
    assert {row.error for row in place.results if not row.done} == {"again"}


async def test_what_is_not_retryable_is_not_retried(tmp_path: Path) -> None:
    file, place = write_samples(tmp_path / "s.jsonl", 2), Place()

    class Final(Exception):
        retryable = False

    async def runner(sample: Sample, context: EvalContext) -> str:
        raise Final

    ended = await evaluate(place, file, runner, retries=3)
    assert (ended.ran, ended.failed) == (2, 2)


async def test_a_crash_before_any_commit_repeats_only_what_was_in_flight(tmp_path: Path) -> None:
    """Goal: E1 and E2 at every commit. Method: every life dies before its first, second, third … commit; each
    sample ends with one done result, and calls beyond one are at most the slots per death."""
    file, place, calls = write_samples(tmp_path / "s.jsonl", 60), Place(), []

    async def runner(sample: Sample, context: EvalContext) -> int:
        calls.append((context.position, context.attempt))
        if context.position % 5 == 0 and context.attempt == 1:
            raise ValueError("first")
        return int(sample["n"])

    deaths = 0
    for number in range(1, 200):

        def before(commit: int, at: int = number) -> None:
            if commit == at:
                raise Crash

        try:
            ended = await evaluate(
                place, file, runner, sink=MemorySink(place, before), retries=1, resume=True
            )
            break
        except Crash:
            deaths += 1
    assert deaths >= 4
    assert ended.exit_code == 0
    done = [row.position for row in place.results if row.done]
    assert sorted(done) == list(range(60))
    assert {row.attempts for row in place.results if row.done and row.position % 5 == 0} == {2}
    assert len(calls) - len(set(calls)) <= 4 * deaths
    assert set(calls) == {(n, 1) for n in range(60)} | {(n, 2) for n in range(0, 60, 5)}


async def test_a_second_runner_fences_the_first(tmp_path: Path) -> None:
    file, place = write_samples(tmp_path / "s.jsonl", 20), Place()
    held, go = asyncio.Event(), asyncio.Event()

    async def slow(sample: Sample, context: EvalContext) -> str:
        held.set()
        await go.wait()
        return "first"

    async def quick(sample: Sample, context: EvalContext) -> str:
        return "second"

    first = asyncio.create_task(evaluate(place, file, slow))
    await held.wait()
    ended = await evaluate(place, file, quick, resume=True)
    assert (ended.exit_code, ended.epoch) == (0, 2)
    go.set()
    with pytest.raises(FencedError, match="another runner has taken batch 'b' over"):
        await first
    assert [row.result for row in place.results] == [b'"second"'] * 20


async def test_a_refused_call_disturbs_nobody(tmp_path: Path) -> None:
    """Goal: the mistake is found before the claim: the running runner is not fenced by it."""
    file, place = write_samples(tmp_path / "s.jsonl", 3), Place()
    other = write_samples(tmp_path / "other.jsonl", 4)

    async def runner(sample: Sample, context: EvalContext) -> str:
        with pytest.raises(ConfigError, match="another --batch"):
            await evaluate(place, other, runner, resume=True)
        return "ok"

    assert (await evaluate(place, file, runner)).exit_code == 0


async def test_a_stop_finishes_what_runs_and_begins_nothing(tmp_path: Path) -> None:
    file, place, stop = write_samples(tmp_path / "s.jsonl", 50), Place(), asyncio.Event()
    begun = 0

    class Watch(Watcher):
        def started(self) -> None:
            nonlocal begun
            begun += 1
            if begun == 10:
                stop.set()

    async def runner(sample: Sample, context: EvalContext) -> str:
        await asyncio.sleep(0.01)
        return "ok"

    ended = await evaluate(place, file, runner, stop=stop, watcher=Watch())
    assert (ended.exit_code, ended.interrupted, ended.abandoned) == (75, True, False)
    assert ended.done == begun == len(place.results)
    assert 10 <= begun < 10 + 4
    ended = await evaluate(place, file, runner, resume=True)
    assert (ended.exit_code, ended.ran) == (0, 50 - begun)


@pytest.mark.parametrize("threads", [False, True])
async def test_after_max_seconds_what_runs_has_no_outcome(tmp_path: Path, threads: bool) -> None:
    """Goal: a hung sample does not hold the end up, and is run again with its own key."""
    file, place, stop = write_samples(tmp_path / "s.jsonl", 2), Place(), asyncio.Event()
    release, begun = threading.Event(), threading.Event()
    keys: list[str] = []

    def hung(sample: Sample, context: EvalContext) -> str:
        keys.append(context.idempotency_key)
        if context.position == 1:
            begun.set()
            release.wait(30)
        begun.wait(30)
        return "ok"

    async def hung_too(sample: Sample, context: EvalContext) -> str:
        keys.append(context.idempotency_key)
        if context.position == 1:
            begun.set()
            await asyncio.Event().wait()
        await asyncio.to_thread(begun.wait, 30)
        return "ok"

    class Watch(Watcher):
        def committed(self, row: object) -> None:
            stop.set()

    runner = hung if threads else hung_too
    ended = await evaluate(place, file, runner, stop=stop, watcher=Watch(), max_seconds=0.05)
    assert (ended.exit_code, ended.done, ended.left, ended.abandoned) == (75, 1, 1, True)
    release.set()

    async def runner_again(sample: Sample, context: EvalContext) -> str:
        keys.append(context.idempotency_key)
        return "ok"

    assert (await evaluate(place, file, runner_again, resume=True)).exit_code == 0
    assert sorted(keys) == ["b/s0/1", "b/s1/1", "b/s1/1"]


async def test_a_large_result_is_a_reference(tmp_path: Path) -> None:
    file, place = write_samples(tmp_path / "s.jsonl", 1), Place()

    def runner(sample: Sample, context: EvalContext) -> str:
        return "x" * 5_000

    await evaluate(place, file, runner)
    (row,) = place.results
    assert row.result is None
    assert row.result_ref is not None
    assert BlobStore(f"file://{tmp_path}/blobs").get(row.result_ref) == b'"' + b"x" * 5_000 + b'"'


async def test_a_blob_store_that_fails_ends_the_run(tmp_path: Path) -> None:
    """Goal: a result that was paid for is not recorded as a failure because a disk is full."""
    file, place = write_samples(tmp_path / "s.jsonl", 3), Place()
    (tmp_path / "blobs").write_text("no directory")

    async def runner(sample: Sample, context: EvalContext) -> str:
        return "x" * 5_000

    with pytest.raises(StorageError):
        await evaluate(place, file, runner, concurrency=1)
    assert place.results == []


async def test_what_was_finished_before_an_error_is_committed(tmp_path: Path) -> None:
    """Goal: an error of ours costs the sample it met, not those beside it. Method: the blob store
    fails for one sample while the other's result is on its way."""
    file, place, committing = write_samples(tmp_path / "s.jsonl", 2), Place(), asyncio.Event()
    (tmp_path / "blobs").write_text("no directory")

    class Slow(MemorySink):
        async def commit(self, results: Sequence[EvalResult], cursor: EvalCursor) -> None:
            committing.set()
            await asyncio.sleep(0.05)
            await super().commit(results, cursor)

    async def runner(sample: Sample, context: EvalContext) -> str:
        if context.position == 0:
            return "paid for"
        await committing.wait()
        return "x" * 5_000

    with pytest.raises(StorageError):
        await evaluate(place, file, runner, sink=Slow(place))
    assert [row.result for row in place.results] == [b'"paid for"']
    assert place.cursor is not None
    assert (place.cursor.done, place.cursor.through) == (1, 1)


async def test_a_runner_may_change_its_sample(tmp_path: Path) -> None:
    file, place = write_samples(tmp_path / "s.jsonl", 1), Place()

    def runner(sample: Sample, context: EvalContext) -> int:
        sample["n"] += 1
        context.params["t"] = 2
        if context.attempt == 1:
            raise ValueError
        return int(sample["n"])

    await evaluate(place, file, runner, retries=1)
    assert (place.results[-1].result, place.results[-1].params) == (b"1", "{}")


def test_runners_are_found_and_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "def good(sample, context): ...\ndef bad(sample): ...\nvalue = 1\n"
    (tmp_path / "evalmodule_of_ours.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_runner("evalmodule_of_ours:good").__name__ == "good"
    for target, said in (
        ("evalmodule_of_ours", "is not MODULE:FUNCTION"),
        ("evalmodule_of_nobody:f", "there is no module"),
        ("evalmodule_of_ours:value", "has no function 'value'"),
        ("evalmodule_of_ours:bad", "is called with a sample and a context"),
    ):
        with pytest.raises(UsageError, match=said):
            find_runner(target)


@pytest.mark.parametrize(
    "text", ["[1]", "{", '{"a": NaN}', '{"a": "' + "x" * 70_000 + '"}', '{"a":"\\ud800"}']
)
def test_parameters_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--params"):
        parse_params(text)
