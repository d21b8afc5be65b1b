"""Tool calls on a real broker with real workers: processes killed and stopped at every point of a call."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.file_gateway import FileGateway
from client.tool_world import until_over
from client.two_runners import Runner, play
from client.worker_process import Worker, refold, worker
from refold.client import Refold
from refold.client.tools import ApprovalPending, ToolCall, tool
from refold.client.tools.points import CALL
from refold.settings import Settings
from refold.testing.kafka import Kafka
from refold.wire.parts import text, tool_call

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LEASE_S = 2.0


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"tools-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "4")
    return name


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker) -> AsyncIterator[Refold]:
    async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap) as made:
        yield made


@pytest.fixture
def runners(kafka: Kafka, prefix: str, running: Worker, tmp_path: Path) -> Iterator[Any]:
    """Starts runner processes, all on one gateway; ends them."""
    made: list[Runner] = []

    def start(*, fenced: bool = True, **environment: str) -> Runner:
        flags = ["--lease", str(LEASE_S), *(["--fenced"] if fenced else [])]
        made.append(Runner(kafka.bootstrap, prefix, tmp_path, *flags, **environment))
        return made[-1]

    yield start
    for runner in made:
        runner.end()


def new_session(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


async def test_a_turn_with_tools(rf: Refold) -> None:
    """Goal: ask, run, and the context has every result in the order asked; what is not known is shown as
    unresolved, and the transcript stays one that a provider takes (D04, D05)."""
    s = rf.session(new_session("turn"))

    @tool(effect="none")
    async def add(a: int, b: int) -> int:
        return a + b

    @tool(effect="external")
    async def pay(amount: int, call: ToolCall) -> None:
        raise ConnectionResetError

    await s.append("3 + 4, and pay 10")
    calls = [("c1", "pay", '{"amount": 10}'), ("c2", "add", '{"a": 3, "b": 4}'), ("c3", "add", '{"a": 3')]
    await s.append([text("On it."), *(tool_call(*call) for call in calls)], role="assistant", message_id="m1")
    asked = [{"id": c, "type": "function", "function": {"name": n, "arguments": a}} for c, n, a in calls]
    results = await s.run_tools(asked, tools=[add, pay], message_id="m1")
    assert [r["tool_call_id"] for r in results] == ["c1", "c2", "c3"]
    assert results[1]["content"] == "7"
    shown = [m for m in (await s.context()).messages if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in shown] == ["c1", "c2", "c3"]
    assert "unresolved" in shown[0]["content"]
    assert [m["content"] for m in shown[1:]] == [r["content"] for r in results[1:]]
    again = await s.run_tools(asked, tools=[add, pay], message_id="m1")
    assert again == results
    await s.append("And now?", wait="accepted")
    assert (await s.context()).messages[-1] == {"role": "user", "content": "And now?"}


async def test_killed_at_every_point_and_reconciled_by_another_process(
    rf: Refold, runners: Any, tmp_path: Path
) -> None:
    """Goal: D04. kill -9 at each point of a call; after the lease another process reconciles and runs all of
    them: one effect each, where somebody can be asked."""
    gateway = FileGateway(tmp_path, fenced=True)
    sessions = {point: new_session("kill") for point in CALL}
    for point, session in sessions.items():
        runner = runners(REFOLD_TOOL_POINT=f"{point}:kill").ready()
        runner.tell(do="run", session=session, call=point, tool="asked_for")
        assert runner.answer() is None
        assert runner.process.wait(30) == -9
    other = runners().ready()
    for point, session in sessions.items():
        other.tell(do="reconcile", session=session)
        assert other.answer() is not None
        other.tell(do="run", session=session, call=point, tool="asked_for")
        assert other.answer() == f'{{"paid":"{point}"}}'
        assert gateway.count(f"m1:{point}") == 1, point
        row = (await rf.session(session).state()).data["tools"][0]  # type: ignore[union-attr]
        assert (row["state"], row["attempt"]) == (
            "done",
            2 if point in ("after_started", "before_effect") else 1,
        ), point


async def test_without_a_lookup_it_is_unknown_and_stays_so(rf: Refold, runners: Any, tmp_path: Path) -> None:
    """Goal: killed with the effect done, and with it not done: both unknown, neither run again."""
    gateway = FileGateway(tmp_path, fenced=True)
    for point, times in (("before_effect", 0), ("after_effect", 1)):
        session = new_session("unknown")
        runner = runners(REFOLD_TOOL_POINT=f"{point}:kill").ready()
        runner.tell(do="run", session=session, call=point, tool="never_known")
        assert runner.answer() is None
        other = runners().ready()
        for _ in range(2):
            other.tell(do="run", session=session, call=point, tool="never_known")
            assert "unresolved" in other.answer()
            other.tell(do="reconcile", session=session)
            assert other.answer() == []
        assert gateway.count(f"m1:{point}") == times
        plan = (await rf.session(session).recover()).plan
        assert [step.action for step in plan] == ["review"]


async def test_the_same_key_from_two_processes_at_once(runners: Any, tmp_path: Path) -> None:
    """Goal: one effect, one result, whoever is first."""
    one, two = runners(), runners()
    one.ready()
    two.ready()
    for number in range(5):
        command = {"do": "run", "session": new_session("twice"), "call": f"c{number}", "tool": "never_known"}
        one.tell(**command)
        two.tell(**command)
        assert one.answer() == two.answer() == f'{{"paid":"c{number}"}}'
        assert FileGateway(tmp_path, fenced=True).count(f"m1:c{number}") == 1


def test_two_runners_one_stopped_in_front_of_the_effect(
    kafka: Kafka, prefix: str, running: Worker, tmp_path: Path
) -> None:
    """Goal: as ``two_runners.py --rounds 200``, shorter: the external system refuses nothing, so only the
    lease stands between the woken runner and a second payment."""
    counts = play(kafka.bootstrap, prefix, tmp_path, 6, lease=LEASE_S)
    assert dict(counts) == {"rounds": 6, "executed": 4, "executed_twice": 0, "lost": 0, "two_results": 0}


def test_runners_that_do_not_look_at_their_lease_are_caught(
    kafka: Kafka, prefix: str, running: Worker, tmp_path: Path
) -> None:
    """Goal: the check above can fail."""
    counts = play(kafka.bootstrap, prefix, tmp_path, 3, lease=LEASE_S, no_lease=True)
    assert counts["executed_twice"] > 0


async def test_an_approval_survives_every_restart(
    kafka: Kafka, prefix: str, rf: Refold, runners: Any, running: Worker, tmp_path: Path
) -> None:
    """Goal: asked by one process, approved while none runs and the worker was killed, run by another."""
    session = new_session("approval")
    first = runners().ready()
    first.tell(do="run", session=session, call="c1", tool="approved")
    assert first.answer() == {"pending": ["m1:c1"]}
    first.end()
    running.kill()
    running.start()
    running.wait_started()
    await rf.session(session).approve("m1:c1", by="ada", wait="accepted")
    last = runners().ready()
    last.tell(do="run", session=session, call="c1", tool="approved")
    assert last.answer() == '{"paid":"c1"}'
    assert FileGateway(tmp_path, fenced=True).count("m1:c1") == 1


@pytest.mark.parametrize("letters", [50_000, 150_000])
async def test_long_arguments_and_results(rf: Refold, letters: int) -> None:
    """Goal: what the state leaves out (D23) is read back from the journal, or from the store where the event
    leaves it out too: arguments for a reconciliation, the whole result for a repeated key."""
    s = rf.session(new_session("long"))
    ran: list[int] = []

    @tool(effect="idempotent")
    async def echo(words: str = "nothing") -> str:
        ran.append(len(words))
        return words

    words = "x" * letters
    call = {"type": "tool_use", "id": "t1", "name": "echo", "input": {"words": words}}
    await s.tool_intended("m1:t1", "echo", {"words": words}, call_id="t1", asked_by="m1", effect="idempotent")
    await s.tool_started("m1:t1", holder="dead", lease_ms=1)
    (outcome,) = await s.reconcile(tools=[echo])
    assert (outcome.state, outcome.text == words) == ("done", True)
    (result,) = await s.run_tools([call], tools=[echo], message_id="m1")
    assert result["content"] == words
    assert ran == [len(words)]


async def test_approval_pending_names_what_waits(rf: Refold) -> None:
    s = rf.session(new_session("pending"))
    pay = tool(lambda: "paid", name="pay", effect="external", approval=True)
    calls = [{"type": "function_call", "call_id": "c1", "name": "pay", "arguments": "{}"}]
    with pytest.raises(ApprovalPending, match=r"waiting for approval: m1:c1 \(pay\)"):
        await s.run_tools(calls, tools=[pay], message_id="m1")
    assert [step.action for step in (await s.recover()).plan] == ["await_approval"]
    await s.deny("m1:c1", reason="no", wait="accepted")
    (result,) = await s.run_tools(calls, tools=[pay], message_id="m1")
    assert result["output"].endswith("Reason: no")


async def test_the_worker_dies_while_a_body_runs(rf: Refold, running: Worker) -> None:
    """Goal: no worker for longer than the lease, with renewals on the way: the body's result is recorded once
    the worker is back, nobody else runs it, and nothing is asked of the caller."""
    s = rf.session(new_session("worker"))
    ran: list[str] = []

    @tool(effect="external")
    async def pay(call: ToolCall) -> str:
        ran.append(call.key)
        running.kill()
        assert call._lease is not None
        await until_over(call._lease)
        running.start()
        await asyncio.to_thread(running.wait_started)
        return "paid"

    call = {"type": "tool_use", "id": "t1", "name": "pay", "input": {}}
    (result,) = await s.run_tools([call], tools=[pay], message_id="m1", lease=LEASE_S)
    assert (result["content"], ran) == ("paid", ["m1:t1/1"])
    assert await s.run_tools([call], tools=[pay], message_id="m1") == [result]
    events = [event.type async for event in s.events()]
    assert (events.count("ToolCallStarted"), events.count("ToolCallCompleted")) == (1, 1)
