"""Durable agents on a real broker and worker: processes killed, drained and stopped; models and tools."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import forked
from client.worker_process import REFOLD, Worker, refold, worker
from refold.cli.main import run as run_command
from refold.client import Generation, Refold
from refold.client.agents import Agent, Run, RunHandle, RunStopped, StepResult
from refold.errors import NotFound
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PATIENCE_S = 120.0
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"agents-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "2")
    return name


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker, tmp_path: Path) -> AsyncIterator[Refold]:
    settings = Settings(topic_prefix=prefix, blobs={"url": f"file://{tmp_path}/blobs"})  # type: ignore[arg-type]
    async with Refold(settings, bootstrap=kafka.bootstrap) as made:
        yield made


class Agents:
    """Processes of ``client.agent_program`` on one directory."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path) -> None:
        self.directory = directory
        self._where = ["--bootstrap", bootstrap, "--prefix", prefix]
        self._made: list[forked.Process] = []

    def start(self, name: str = "agent", *flags: str, **environment: str) -> forked.Process:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        command = [*REFOLD, "agent", "run", f"client.agent_program:{name}", *self._where, *flags]
        with (self.directory / f"agent-{len(self._made)}.log").open("wb") as log:
            process = forked.popen(
                command,
                cwd=TESTS,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, "REFOLD_TEST_AGENT": str(self.directory), **environment},
            )
        self._made.append(process)
        return process

    def ran(self) -> list[str]:
        file = self.directory / "ran"
        return file.read_text().split() if file.exists() else []

    def effects(self) -> list[str]:
        return [line for line in (self.directory / "ledger").read_text().splitlines() if line]

    def open_gate(self) -> None:
        (self.directory / "gate").touch()

    def end(self) -> None:
        for process in self._made:
            process.kill()
            process.wait(30)


@pytest.fixture
def agents(kafka: Kafka, prefix: str, running: Worker, tmp_path: Path) -> Iterator[Agents]:
    made = Agents(kafka.bootstrap, prefix, tmp_path)
    yield made
    made.end()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - files and processes of others
            await asyncio.sleep(0.02)


async def exit_code(process: forked.Process) -> int:
    return await asyncio.wait_for(asyncio.to_thread(process.wait), PATIENCE_S)


@asynccontextmanager
async def serving(agent: Agent, rf: Refold) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(agent.serve(rf, stop=stop, max_seconds=20))
    try:
        yield
    finally:
        stop.set()
        assert await asyncio.wait_for(task, PATIENCE_S) == "drained"


def new_session(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


async def test_a_frozen_process_and_a_drained_one(rf: Refold, agents: Agents, prefix: str) -> None:
    """Goal: SIGSTOP in a step: another process goes on when the lease is over, with the same attempt and one
    effect, and the first one, woken, writes nothing. SIGTERM: the running step reaches its end, the run is
    given back at once, exit 0."""
    from client.agent_program import agent

    first = agents.start()
    handle = await agent.start(rf, new_session("killed"), input="tides", run_id="r-1")
    await until(lambda: agents.ran() == ["outline", "long"])
    first.send_signal(signal.SIGSTOP)
    second = agents.start()
    await until(lambda: agents.ran() == ["outline", "long", "long"])
    row = await handle.row()
    assert (row.state, row.data["reason"], row.epoch) == ("leased", "timed_out", 2)
    assert row.steps["outline"].output is None
    assert row.steps["long"].attempt == 1
    second.send_signal(signal.SIGTERM)
    third = agents.start()
    agents.open_gate()
    assert await exit_code(second) == 0
    assert await handle.result(PATIENCE_S) == "all about tides"
    assert agents.ran() == ["outline", "long", "long", "publish"]
    assert len(agents.effects()) == 1
    assert await agent.start(rf, handle.session, input="tides", run_id="r-1") is not None
    again = await rf.run(handle.session.id, "r-1").result(PATIENCE_S)
    assert again == "all about tides"
    first.send_signal(signal.SIGCONT)
    for process in (first, third):
        process.send_signal(signal.SIGTERM)
    assert [await exit_code(process) for process in (first, third)] == [0, 0]
    types = [event.type async for event in handle.session.events()]
    assert types.count("StepStarted") == 4
    assert types.count("StepCompleted") == 3
    assert agents.ran().count("publish") == len(agents.effects()) == 1


async def test_a_second_signal_ends_the_process_at_once_and_the_cli_shows_and_stops(
    rf: Refold, agents: Agents, kafka: Kafka, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: what is held shows in `run list` and `run show`; a stop reaches the process; exit 143.
    `session show` lists runs; a session and a run that are not there are told apart."""
    from client.agent_program import agent

    def command(*arguments: str) -> dict[str, Any]:
        where = ("--bootstrap", kafka.bootstrap, "--prefix", prefix, "--json")
        assert run_command(["run", *arguments, *where]) == 0
        made: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return made

    def told(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run_command([*arguments, "--bootstrap", kafka.bootstrap, "--prefix", prefix])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    def rows(text: str, *cells: str) -> list[str]:
        return [line for line in text.splitlines() if all(cell in line for cell in cells)]

    nobody, waiting = new_session("nobody"), new_session("waiting")
    await (await agent.start(rf, waiting, input="x", run_id="r-1")).row()
    code, said = await asyncio.to_thread(told, "session", "show", waiting)
    assert code == 0
    assert rows(said, "r-1", "ready", "nobody has had it yet"), said
    code, said = await asyncio.to_thread(told, "run", "show", waiting, "r-1")
    assert (code, len(rows(said, "waits for", "nobody has had it yet")), rows(said, "reason")) == (0, 1, [])
    for verb in (("show",), ("stop", "--yes"), ("retry",), ("fail",), ("move-pin", "--any")):
        code, said = await asyncio.to_thread(told, "run", *verb, nobody, "r-1")
        assert (code, f"session {nobody!r} of tenant 'default' does not exist" in said) == (66, True), said
        code, said = await asyncio.to_thread(told, "run", *verb, waiting, "r-7")
        assert (code, f"session {waiting!r} of tenant 'default' holds no run 'r-7'" in said) == (66, True), (
            said
        )
    await rf.run(waiting, "r-1").stop()
    with pytest.raises(NotFound, match="does not exist"):
        await rf.run(nobody, "r-1").result(PATIENCE_S)
    with pytest.raises(NotFound, match="holds no run 'r-7'"):
        await rf.run(waiting, "r-7").result(PATIENCE_S)

    process = agents.start()
    handle = await agent.start(rf, new_session("stopped"), input="x", run_id="r-2")
    await until(lambda: "long" in agents.ran())
    code, said = await asyncio.to_thread(told, "session", "show", handle.session.id)
    assert rows(said, "r-2", "leased", "1 running, 1 completed", "which executes it"), said
    code, said = await asyncio.to_thread(told, "session", "show", handle.session.id, "--json")
    shown_json = next(line for line in said.splitlines() if line.startswith("{"))
    [row] = json.loads(shown_json)["runs"]
    assert (row["run_id"], row["state"], len(row["steps"]), row["waiting_for"]) == ("r-2", "leased", 2, [])
    listed = await asyncio.to_thread(command, "list", "--session", handle.session.id)
    assert [(run["run"], run["state"], run["pin"]) for run in listed["runs"]] == [("r-2", "leased", "1")]
    shown = await asyncio.to_thread(command, "show", handle.session.id, "r-2")
    assert [(step["step"], step["state"]) for step in shown["steps"]] == [
        ("outline", "completed"),
        ("long", "running"),
    ]
    assert {step["summary"] for step in shown["steps"]} == {None}
    said = await asyncio.to_thread(command, "show", handle.session.id, "r-2", "--payload")
    assert said["steps"][0]["summary"]
    await asyncio.to_thread(command, "stop", handle.session.id, "r-2", "--by", "ada", "--yes")
    with pytest.raises(RunStopped):
        await handle.result(PATIENCE_S)
    assert (await asyncio.to_thread(command, "list", "--session", handle.session.id))["total"] == 0
    over = await asyncio.to_thread(command, "show", handle.session.id, "r-2")
    assert (over["state"], over["steps_as_of"]) == ("stopped", over["updated_seq"] - 1)
    assert over["steps"] == shown["steps"], "the state has none any more"
    await agent.start(rf, handle.session, input="y", run_id="r-3")
    await until(lambda: agents.ran().count("long") == 2)
    process.send_signal(signal.SIGTERM)
    log = agents.directory / "agent-0.log"
    await until(lambda: "agent_draining" in log.read_text())
    process.send_signal(signal.SIGTERM)
    assert await exit_code(process) == 128 + signal.SIGTERM
    assert agents.ran().count("publish") == 0


async def test_models_tools_and_large_outputs(rf: Refold) -> None:
    """Goal: a generation and its tool calls are steps; approval suspends; large outputs go to the blob store
    and come back; parameters are journalled."""
    agent = Agent("assistant", version="1")
    asked: list[Any] = []

    @agent.tool(effect="none", approval=True)
    def stock(article: str) -> int:
        """How many are in stock."""
        return {"chair": 4}.get(article, 0)

    @agent.generator("reply")
    async def reply(g: Generation) -> None:
        asked.append(g.params)
        call = {"id": "c1", "type": "function", "index": 0}
        function = {"name": "stock", "arguments": '{"article": "chair"}'}
        stream = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "I look."}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [{**call, "function": function}]}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        ]
        for chunk in stream:
            chunk.update({"id": "x", "object": "chat.completion.chunk", "model": "m"})
        async for _ in g.record(stream, "openai"):
            pass

    def large() -> str:
        return "y" * 400_000

    def length(text: str) -> int:
        return len(text)

    @agent.run
    async def body(run: Run) -> StepResult:
        big = await run.step("large", large)
        known = await run.step("length", length, big)
        answer = await run.model("reply", known, params={"temperature": 0.7})
        results = await run.tools(answer.calls)
        assert answer.text == "I look."

        def last(given: list[Any], text: str) -> Any:
            return [given, len(text)]

        return await run.step("last", last, results, big)

    session = rf.session(new_session("model"))
    await session.append("How many chairs?")
    async with serving(agent, rf):
        handle = await agent.start(rf, session)
        async with asyncio.timeout(PATIENCE_S):
            while (row := await handle.row()).state != "waiting":  # noqa: ASYNC110 - another session's state
                await asyncio.sleep(0.02)
        assert row.steps["large"].output_ref is not None
        (operation,) = row.data["waiting_for"]
        await session.approve(operation, by="ada")
        result = await handle.result(PATIENCE_S)
    assert result == [[{"role": "tool", "tool_call_id": "c1", "content": "4"}], 400_000]
    assert [params["temperature"] for params in asked] == [0.7]
    assert asked[0]["inputs"] == [400_000]
    context = (await session.context()).messages
    assert [message["role"] for message in context] == ["user", "assistant", "tool"]


async def test_an_answer_goes_on_under_its_own_parameters(rf: Refold, agents: Agents) -> None:
    """Goal: the process dies in mid-answer; another one continues the same generation, with the parameters it
    was started with and not with its own, in the same attempt of the step."""
    from client.agent_program import WORDS, talker

    first = agents.start("talker", REFOLD_TEST_TEMPERATURE="0.7")
    handle = await talker.start(rf, new_session("talk"), run_id="r-4")
    await until(lambda: "half" in agents.ran())
    first.kill()
    agents.open_gate()
    agents.start("talker", REFOLD_TEST_TEMPERATURE="0.1")
    assert await handle.result(PATIENCE_S) == "".join(WORDS)
    assert [line for line in agents.ran() if line.startswith("say")] == ["say:0.7", "say:0.7"]
    types = [event.type async for event in handle.session.events()]
    assert types.count("GenerationStarted") == types.count("GenerationFinished") == 1
    assert types.count("GenerationAttempted") == 1
    assert types.count("StepStarted") == 2


async def test_a_model_step_that_runs_again_asks_with_temperature_0(rf: Refold) -> None:
    """Goal: a failed answer is tried again as another generation; both parameters stand in the journal."""
    agent = Agent("again", version="1")

    @agent.generator("once-more")
    async def reply(g: Generation) -> None:
        if g.params["temperature"]:
            raise ConnectionError("the provider is away")
        async for _ in g.record(["Hello."], format="text"):
            pass

    @agent.run
    async def body(run: Run) -> str:
        return (await run.model("once-more", params={"temperature": 0.7})).text

    session = rf.session(new_session("again"))
    async with serving(agent, rf):
        handle = await agent.start(rf, session)
        assert await handle.result(PATIENCE_S) == "Hello."
    started = [event.payload async for event in session.events() if event.type == "GenerationStarted"]
    asked = [json.loads(payload["params"])["temperature"] for payload in started if payload is not None]
    assert asked == [0.7, 0.0]


def test_the_sdk_of_agents_needs_no_worker() -> None:
    """Goal: `refold.Agent` is there with the base install, and costs nothing before it is used."""
    program = "import refold, sys; assert 'refold.client' not in sys.modules; refold.Agent('a', version='1');"
    checks = "assert not {'faust', 'rocksdict'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{program} {checks}"], check=True, timeout=PATIENCE_S)


def test_an_agent_is_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["reporter.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        Agent("a", version="1").main()
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "Serve agent a, version 1." in shown
    assert "--max-seconds" in shown


def test_a_handle_asks_nobody_by_itself() -> None:
    assert repr(RunHandle("s", "r")) == "RunHandle(r of 's')"  # type: ignore[arg-type]
