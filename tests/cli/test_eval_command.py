"""``refold eval`` on a real Kafka and a real PostgreSQL, and short runs of ``refold verify eval``.

Goals: the same words and numbers whichever sink; a takeover, a signal and a refusal end as documented;
results and cursor are one transaction, and the judge of ``verify eval`` sees it when they are not.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.worker_process import refold
from refold.cli.main import run
from refold.errors import ConfigError, FencedError
from refold.ops.evals import points
from refold.ops.evals.proof.countstate import observe_topic
from refold.ops.evals.proof.counttables import observe_tables
from refold.ops.evals.proof.judging import Count, Observed, judge
from refold.ops.evals.proof.plan import ProofPlan
from refold.ops.evals.proof.run import run_proof
from refold.ops.evals.proof.server import Server, unavailable
from refold.ops.evals.sinks.postgres import PostgresSink
from refold.ops.evals.sinks.sink import Sink
from refold.ops.evals.sinks.state import StateSink
from refold.ops.evals.sinks.topic import EvalsTopic
from refold.settings import load_settings
from refold.testing.kafka import Kafka
from refold.topology.names import TopicNames
from refold.wire.evals import EvalCursor, EvalResult

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SINKS = ("state", "postgres")

RUNNER = """
import os, signal

def grade(sample, context):
    if sample["n"] % 5 == 0 and context.attempt == 1:
        raise ValueError("no fives at first")
    return {"twice": 2 * sample["n"], "t": context.params["t"], "key": context.idempotency_key}

async def stopping(sample, context):
    if sample["n"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return "fine"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if (why := unavailable()) is not None:
        pytest.skip(why)
    pytest.importorskip("asyncpg", reason="the extra eval is not installed")
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"eval-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "2")
    return name


class Place:
    """One sink, by its command line, as an object, and as a foreign client sees it."""

    def __init__(self, kind: str, bootstrap: str, prefix: str, dsn: str) -> None:
        self.kind = kind
        self.dsn = dsn
        self.names = TopicNames(prefix)
        self.settings = load_settings(None, {"kafka.bootstrap": bootstrap, "topic_prefix": prefix})
        kafka = ("--bootstrap", bootstrap, "--prefix", prefix)
        self.arguments = ("--sink", kind, *(("--dsn", dsn) if kind == "postgres" else kafka))

    def sink(self, batch: str) -> Sink:
        if self.kind == "postgres":
            return PostgresSink(batch, self.dsn)
        return StateSink(
            batch,
            topic=EvalsTopic(self.settings.kafka_config("reader"), self.names.evals),
            transactional_id=self.names.eval_transactional_id(batch),
            producer_config=self.settings.kafka_config("producer"),
        )

    async def observe(self, batch: str) -> Observed:
        if self.kind == "postgres":
            return await observe_tables(self.dsn, batch)
        config = self.settings.kafka_config("reader")
        return await asyncio.to_thread(observe_topic, config, self.names.evals, batch)


@pytest.fixture(params=SINKS)
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "postgres":
        return Place("postgres", "127.0.0.1:1", "none", request.getfixturevalue("server").dsn)
    kafka = request.getfixturevalue("kafka")
    return Place("state", kafka.bootstrap, request.getfixturevalue("prefix"), "")


Call = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def call(
    place: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    module = f"evalrunner_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(RUNNER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def made(verb: str, *args: str) -> tuple[int, Any, str]:
        """Exit code, the JSON object if any, and stderr."""
        given = [argument.replace("RUNNER", module) for argument in args]
        code = run(["eval", verb, *given, *place.arguments, "--json"])
        captured = capsys.readouterr()
        last = captured.out.splitlines()[-1] if captured.out.strip() else "null"
        return code, json.loads(last), captured.err

    return made


def samples(path: Path, count: int) -> str:
    path.write_text("".join(json.dumps({"id": f"s/{n}", "n": n}) + "\n" for n in range(count)))
    return str(path)


def test_from_the_first_run_to_the_export(call: Call, tmp_path: Path) -> None:
    batch = f"b-{uuid.uuid4().hex[:6]}"
    file = samples(tmp_path / "s.jsonl", 20)
    first = ("--samples", file, "--runner", "RUNNER:grade", "--batch", batch)
    code, row, said = call("run", *first, "--params", '{"t": 1}')
    assert (code, row["done"], row["failed"], row["left"]) == (1, 16, 4, 0)
    assert f"--batch {batch} --only-failed" in said

    code, row, said = call("run", *first)
    assert code == 64
    assert "16 of 20 done, 4 failed" in said
    (tmp_path / "changed.jsonl").write_text('{"id":"s/0","n":0}\n')
    code, _, said = call("run", "--samples", "changed.jsonl", *first[2:], "--resume")
    assert code == 78
    assert "has not the samples of batch" in said
    assert "another --batch" in said

    code, row, _ = call("run", *first, "--only-failed")
    assert (code, row["ran"], row["done"]) == (0, 4, 20)
    code, row, _ = call("run", *first, "--resume")
    assert (code, row["ran"], row["epoch"]) == (0, 0, 3)

    code, row, _ = call("status", "--batch", batch)
    assert (code, row["done"], row["through"], row["runs"], row["params"]) == (0, 20, 20, 3, '{"t":1}')
    code, row, _ = call("list")
    assert batch in [one["batch"] for one in row["batches"]]
    code, row, _ = call("export", "--batch", batch, "-o", "out.jsonl")
    assert (code, row["results"]) == (0, 20)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["position"] for line in lines] == list(range(20))
    assert lines[5]["result"] == {"twice": 10, "t": 1, "key": f"{batch}/s/5/2"}
    assert (lines[5]["attempts"], lines[6]["attempts"], lines[6]["params"]) == (2, 1, {"t": 1})

    for verb, further in (("status", ()), ("export", ("-o", "no.csv"))):
        code, _, said = call(verb, "--batch", "no-such", *further)
        assert code == 66
        assert "no batch 'no-such'" in said


def test_sigterm_ends_in_order_and_says_how_to_go_on(call: Call, tmp_path: Path) -> None:
    batch = f"b-{uuid.uuid4().hex[:6]}"
    file = samples(tmp_path / "s.jsonl", 30)
    first = ("--samples", file, "--runner", "RUNNER:stopping", "--batch", batch, "--concurrency", "1")
    code, row, said = call("run", *first)
    assert (code, row["interrupted"], row["failed"]) == (75, True, 0)
    assert 3 <= row["done"] < 30
    assert f"--batch {batch} --resume" in said
    code, row, _ = call("status", "--batch", batch)
    assert row["left"] == 30 - row["done"]


def result(batch: str, position: int, status: str = "done", epoch: int = 0) -> EvalResult:
    value = b'{"x":"\\u0000"}' if status == "done" else None
    return EvalResult(batch, f"s{position}", position, status, 1, "{}", 1, 2, 1, value, epoch=epoch)


async def test_e1_a_taken_over_runner_commits_nothing(place: Place) -> None:
    batch = f"b-{uuid.uuid4().hex[:6]}"
    first, second = place.sink(batch), place.sink(batch)
    cursor = EvalCursor(batch, "d" * 64, 3, "s.jsonl", "m:f", "{}", 1, 1)
    assert (await first.look()).cursor is None
    claimed = (await first.claim(cursor)).cursor
    assert claimed is not None
    assert claimed.epoch == 1
    counted = claimed._replace(done=1, failed=1, through=2)
    await first.commit([result(batch, 0), result(batch, 1, "failed")], counted)
    stored = await second.claim(cursor)
    assert stored.cursor == counted._replace(epoch=2)
    assert {name: known.done for name, known in stored.samples.items()} == {"s0": True, "s1": False}
    with pytest.raises(FencedError, match="another runner"):
        await first.commit([result(batch, 2)], counted._replace(done=2))
    await second.commit([result(batch, 1)], stored.cursor._replace(done=2, failed=0))
    seen = await place.observe(batch)
    assert seen.cursor == Count(3, 2, 0)
    assert {row.sample: row.status for row in seen.rows.values()} == {"s0": "done", "s1": "done"}
    await first.close()
    await second.close()


async def test_the_judge_sees_a_cursor_that_is_committed_before_its_results(place: Place) -> None:
    """Goal: `verify eval --sabotage cursor-first` cannot be passed by luck. The runner dies between."""

    class Died(Exception):
        pass

    def die(point: str) -> None:
        if point == "between":
            raise Died

    batch = f"b-{uuid.uuid4().hex[:6]}"
    sink = place.sink(batch)
    claimed = (await sink.claim(EvalCursor(batch, "d" * 64, 3, "s", "m:f", "{}", 1, 1))).cursor
    assert claimed is not None
    points.set_up(die, "cursor-first")
    try:
        with pytest.raises(Died):
            await sink.commit([result(batch, 0)], claimed._replace(done=1, through=1))
    finally:
        points.set_up(None, None)
        await sink.close()
    found = judge(ProofPlan(samples=3), await place.observe(batch), [])
    assert any(text.startswith("cursor:") for text in found.told)


async def test_a_dead_runners_open_transaction_is_neither_waited_for_nor_counted(
    kafka: Kafka, prefix: str
) -> None:
    """Goal: a resume after a death within a commit begins at once. Method: look, and see that the transaction
    is still open; where the broker has ended it meanwhile (10 s), once more."""

    def die(point: str) -> None:
        if point == "cursor":
            raise InterruptedError

    place = Place("state", kafka.bootstrap, prefix, "")
    topic = EvalsTopic(place.settings.kafka_config("reader"), place.names.evals)
    for _ in range(3):
        batch = f"b-{uuid.uuid4().hex[:6]}"
        first, second = place.sink(batch), place.sink(batch)
        cursor = (await first.claim(EvalCursor(batch, "d" * 64, 3, "s", "m:f", "{}", 1, 1))).cursor
        assert cursor is not None
        points.set_up(die, None)
        try:
            with pytest.raises(InterruptedError):
                await first.commit([result(batch, 0)], cursor._replace(done=1))
        finally:
            points.set_up(None, None)
        partition = topic.partition_of(batch)

        def is_open(where: int = partition) -> bool:
            return topic.end(where, committed=True) < topic.end(where, committed=False)

        for _ in range(200):
            if was_open := await asyncio.to_thread(is_open):
                break
            await asyncio.sleep(0.02)
        looked = await second.look()
        still_open = await asyncio.to_thread(is_open)
        assert looked.samples == {}
        assert (await second.claim(cursor)).samples == {}
        assert not is_open()
        if was_open and still_open:
            return
    pytest.fail("no transaction stayed open for the length of a look")


@pytest.mark.parametrize("value", ["garbage://x", "postgresql://u@h:no/x", "postgresql://[::1/x"])
async def test_a_wrong_address_is_the_callers(value: str) -> None:
    pytest.importorskip("asyncpg", reason="the extra eval is not installed")
    with pytest.raises(ConfigError, match="--dsn"):
        await PostgresSink("b", value).look()


@pytest.mark.parametrize("kind", SINKS)
def test_killed_and_resumed(kind: str, request: pytest.FixtureRequest) -> None:
    """The whole is `refold verify eval --samples 1000 --kills 10`."""
    plan = ProofPlan(samples=60, kills=2, concurrency=4, sink=kind)
    said: list[str] = []
    if kind == "postgres":
        outcome = run_proof(plan, None, request.getfixturevalue("server").dsn, said.append)
    else:
        kafka = request.getfixturevalue("kafka")
        settings = load_settings(None, {"kafka.bootstrap": kafka.bootstrap})
        outcome = run_proof(plan, settings, None, said.append)
    assert outcome.told == []
    assert outcome.clean
    assert (outcome.findings.results, outcome.lives.kills, outcome.lives.fenced) == (60, 2, 1)
    assert outcome.lives.killed_in_commits == 1
    assert len(said) == 2
