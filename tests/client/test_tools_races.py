"""What may happen between any two lines of a tool call: each case was once an effect too many, or a lie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from client.memory_session import MemoryLog, MemorySession, patch_clock
from client.tool_world import Gateway, asked, payment
from refold.client.agents import functions
from refold.client.agents.running import Running
from refold.client.agents.starting import start
from refold.client.events import SessionEvent
from refold.client.receipts import Receipt
from refold.client.tools import AlreadySettled, NotDone, Tool, ToolCall, tool
from refold.client.tools.archive import Archive
from refold.client.tools.bodies import in_thread
from refold.client.tools.points import POINTS
from refold.core.limits import CLOSED_CALLS_MAX, ENDED_RUNS_MAX
from refold.errors import TransientError
from refold.wire.parts import tool_call

LEASE = 5.0
#: Longer than a busy machine takes for any step here.
WAIT_S = 10.0


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_clock(monkeypatch)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


class Meeting(MemorySession):
    """``meanwhile``: awaited once, before the first append of ``of``: what others do behind our last look."""

    def __init__(self, log: MemoryLog, producer_id: str = "p-1") -> None:
        super().__init__(log, producer_id)
        self.of = "ToolCallIntended"
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def publish(self, event_type: str, payload: Any, **options: Any) -> Receipt:
        if event_type == self.of and self.meanwhile is not None:
            todo, self.meanwhile = self.meanwhile, None
            await todo()
        return await super().publish(event_type, payload, **options)


async def run(s: MemorySession, tools: list[Tool], *calls: Any, message: str = "m1") -> Any:
    return await s.run_tools(list(calls), tools=tools, message_id=message, lease=LEASE)


async def filled(s: MemorySession, count: int, name: str = "o") -> None:
    for number in range(count):
        async with s.tool("f", {}, operation_id=f"{name}{number}", effect="none") as call:
            call.done(number)


# A thread that was started and has not come to its body


class _Held:
    """Stops the body's thread in front of its look at the lease."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on, self.passed = threading.Event(), threading.Event(), threading.Event()

        def reach(name: str, operation_id: str, tool: str) -> None:
            if name == "before_effect" and threading.current_thread() is not threading.main_thread():
                self.reached.set()
                self.go_on.wait(WAIT_S)
                self.passed.set()

        monkeypatch.setattr(POINTS, "reach", reach)

    async def until(self, event: threading.Event) -> None:
        assert await asyncio.to_thread(event.wait, WAIT_S)


async def test_a_body_that_was_cancelled_before_it_began_does_not_begin(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the ledger says *not done* of the attempt, so the body must not begin after that."""
    s, held = MemorySession(log), _Held(monkeypatch)
    ran: list[str] = []

    @tool(effect="external")
    def pay(order: str, amount: int) -> None:
        ran.append(order)

    task = asyncio.ensure_future(run(s, [pay], asked()))
    await held.until(held.reached)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert s.row("m1:c1").state == "intended"
    held.go_on.set()
    await held.until(held.passed)
    # The thread that was let go has come to its end, whatever it does.
    for thread in threading.enumerate():
        if thread.name == "refold-tool":
            thread.join(WAIT_S)
    assert ran == []
    monkeypatch.undo()
    patch_clock(monkeypatch)
    await run(s, [pay], asked())
    assert ran == ["A"]


async def test_cancelled_while_the_start_is_on_its_way(log: MemoryLog) -> None:
    """Goal: the caller hears nothing of a start that was accepted; it is given back, so that no person is
    asked about a body that never ran."""
    s = MemorySession(log)
    real = s.publish

    async def publish(event_type: str, payload: Any, **options: Any) -> Receipt:
        receipt = await real(event_type, payload, **options)
        if event_type == "ToolCallStarted":
            task.cancel()
            await asyncio.sleep(0.01)  # The acknowledgement is on its way.
        return receipt

    s.publish = publish  # type: ignore[method-assign]
    task = asyncio.ensure_future(run(s, [payment(Gateway(), "external", lookup=False)], asked()))
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(WAIT_S):
        while s.row("m1:c1").state != "intended":
            await log.moved.wait()
    assert s.row("m1:c1").attempt == 1


async def test_a_body_whose_time_was_over_before_it_began_is_not_done(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nothing ran and nothing will, so nobody has to be asked and no person has to decide."""
    s, held = MemorySession(log), _Held(monkeypatch)
    ran: list[str] = []

    @tool(effect="external", timeout=0.05)
    def pay(order: str, amount: int) -> None:
        ran.append(order)

    (result,) = await run(s, [pay], asked())
    assert (s.row("m1:c1").state, s.row("m1:c1").error_code) == ("failed", "timeout")
    assert "did not begin" in result["content"]
    held.go_on.set()
    await held.until(held.passed)
    for thread in threading.enumerate():
        if thread.name == "refold-tool":
            thread.join(WAIT_S)
    assert ran == []


async def test_a_step_that_was_given_up_before_it_began_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the run is given back when no body of it runs here; its thread must not begin one."""
    go_on, ran = threading.Event(), list[str]()

    def held(function: Callable[[], Any]) -> Awaitable[Any]:
        def late() -> Any:
            go_on.wait(WAIT_S)
            return function()

        return in_thread(late)

    monkeypatch.setattr(functions, "in_thread", held)
    run_here = SimpleNamespace(running=Running(lambda: None), look=lambda: None)
    calling = functions._Calling(run_here, Any, ran.append, None, ["a"])  # type: ignore[arg-type]
    task = asyncio.ensure_future(calling(Any, "key", run_here.look))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not run_here.running.unstoppable
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "refold-tool":
            thread.join(WAIT_S)
    assert ran == []


# A key that others used, and whose row left, between our look and our intent


@pytest.mark.parametrize("before", [0, 3, CLOSED_CALLS_MAX + 2])
@pytest.mark.parametrize("by_message", [False, True])
async def test_a_key_used_behind_the_look(log: MemoryLog, before: int, by_message: bool) -> None:
    """Goal: a process that was stopped between its look and its intent does not run what another one has run
    meanwhile, also where the row has left the ledger since."""
    gateway = Gateway()
    pay = payment(gateway, "external", lookup=True)
    s, other = Meeting(log), MemorySession(log, "p-2")
    await filled(other, before, "b")
    if by_message:
        part = tool_call("c1", "pay", asked()["function"]["arguments"])
        await other.append([part], role="assistant", message_id="m1")
    first: list[Any] = []

    async def meanwhile() -> None:
        first.append(await run(other, [pay], asked()))
        await filled(other, CLOSED_CALLS_MAX + 1)
        assert "m1:c1" not in log.state.calls

    s.meanwhile = meanwhile
    assert [await run(s, [pay], asked())] == first
    assert gateway.operations == ["m1:c1"]


async def test_calls_of_one_message_cost_no_scan(log: MemoryLog) -> None:
    """Goal: the second look is free for who is alone: calls that a message asked for are not looked for in
    the journal."""

    class Counting(MemorySession):
        scans = 0

        async def events(
            self, after: int = 0, limit: int | None = None
        ) -> AsyncGenerator[SessionEvent, None]:
            self.scans += 1
            async for event in super().events(after, limit):
                yield event

    await filled(MemorySession(log, "p-2"), CLOSED_CALLS_MAX + 2)
    s, pay = Counting(log), payment(Gateway(), "external", lookup=True)
    parts = [tool_call(f"c{n}", "pay", asked()["function"]["arguments"]) for n in range(8)]
    await s.append(parts, role="assistant", message_id="m1")
    await run(s, [pay], *(asked(call_id=f"c{n}") for n in range(8)))
    assert s.scans == 0


async def test_a_lost_answer_does_not_hide_a_key_used_before(log: MemoryLog) -> None:
    """Goal: an intent that was written although its sender heard nothing is looked at like any other: the
    second try is a duplicate, and says nothing of what was before the first."""
    s, other = MemorySession(log), MemorySession(log, "p-2")

    async def use(session: MemorySession, operation_id: str, ran: list[str] | None = None) -> None:
        async with session.tool("f", {}, operation_id=operation_id, effect="external") as call:
            if ran is not None:
                ran.append(operation_id)
            call.done("first")

    await use(s, "mine")
    await use(other, "x")
    await filled(other, CLOSED_CALLS_MAX + 1)
    real, lost = s.publish, False

    async def publish(event_type: str, payload: Any, **options: Any) -> Receipt:
        nonlocal lost
        receipt = await real(event_type, payload, **options)
        if event_type == "ToolCallIntended" and not lost:
            lost = True
            raise TransientError("the event was not acknowledged")
        return receipt

    s.publish = publish  # type: ignore[method-assign]
    ran: list[str] = []
    with pytest.raises(AlreadySettled) as raised:
        await use(s, "x", ran)
    assert (ran, raised.value.outcome.value) == ([], "first")


async def test_what_had_failed_is_not_done_now(log: MemoryLog) -> None:
    """Goal: the first outcome stands with its state: what is known to have had no effect does not become
    *done* because its row had left."""
    s, other = Meeting(log), MemorySession(log, "p-2")

    async def meanwhile() -> None:
        async with other.tool("f", {}, operation_id="x", effect="external") as call:
            call.failed("no money")
        await filled(other, CLOSED_CALLS_MAX + 1)

    s.meanwhile = meanwhile
    with pytest.raises(AlreadySettled) as raised:
        async with s.tool("f", {}, operation_id="x", effect="external"):
            pytest.fail("ran again")
    assert (raised.value.outcome.state, s.row("x").state) == ("failed", "failed")


async def test_a_refusal_keeps_the_first_result(log: MemoryLog) -> None:
    """Goal: a call whose row has left and whose tool is gone from the program gives what it gave."""
    gateway = Gateway()
    pay = payment(gateway, "external", lookup=True)
    first = await run(MemorySession(log), [pay], asked())
    await filled(MemorySession(log, "p-2"), CLOSED_CALLS_MAX + 1)
    assert await run(MemorySession(log, "p-3"), [], asked()) == first
    assert "m1:c1" not in log.state.calls


# One archive, asked by calls that run side by side


class _Slow(MemorySession):
    """Its events come one by one, each when it is let through."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.gates: list[asyncio.Event] = []

    async def events(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        gate = asyncio.Event()
        self.gates.append(gate)
        async for event in super().events(after, limit):
            await gate.wait()
            yield event


async def test_readings_of_one_archive_leave_no_gap(log: MemoryLog) -> None:
    """Goal: a call whose look at the session is older than another's does not make that one forget: what it
    then took for a new operation ran twice."""
    await filled(MemorySession(log, "p-2"), 4, "a")
    s, archive = _Slow(log), Archive()
    end = log.state.seq

    async def reading(upto: int) -> int | None:
        await archive.read(s, upto, 1)  # type: ignore[arg-type]
        return archive.outcome_seq("a0", upto)

    first = asyncio.ensure_future(reading(end - 1))
    await asyncio.sleep(0.01)
    s.gates[0].set()
    found = await first
    assert found is not None
    newer, older = asyncio.ensure_future(reading(end)), asyncio.ensure_future(reading(end - 2))
    await asyncio.sleep(0.01)
    s.gates[1].set()
    assert await asyncio.wait_for(newer, WAIT_S) == found
    for gate in s.gates:
        gate.set()
    assert await asyncio.wait_for(older, WAIT_S) == found


async def test_a_journal_that_ends_too_early_proves_nothing(log: MemoryLog) -> None:
    """Goal: a key that is not found where not all could be read is not run: without an owner the journal is
    read to the last stable offset, and that may lie before the commit that the state is of."""
    gateway = Gateway()
    pay = payment(gateway, "external", lookup=True)
    await filled(MemorySession(log, "p-2"), 3)
    first = await run(MemorySession(log, "p-2"), [pay], asked())
    await filled(MemorySession(log, "p-2"), CLOSED_CALLS_MAX + 1, "more")
    s, stable = MemorySession(log), 5

    async def events(after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        for event in log.journal[after:stable]:
            yield event

    s.events = events  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="seq"):
        await run(s, [pay], asked())
    stable = len(log.journal)
    assert await run(s, [pay], asked()) == first
    assert gateway.operations == ["m1:c1"]


async def test_what_was_declared_behind_the_look_has_not_ended(log: MemoryLog) -> None:
    """Goal: an archive that is ahead of somebody's look does not call *done* what has just been begun."""
    s, archive = MemorySession(log), Archive()
    await filled(s, 2, "a")
    looked = log.state.seq
    await s.tool_intended("x", "f", {}, effect="external")
    await archive.read(s, log.state.seq, 1)  # type: ignore[arg-type]
    assert archive.outcome_seq("x", looked) is None
    assert archive.outcome_seq("a0", looked) is not None


# Whose word counts


async def test_who_lost_an_idempotent_call_does_not_fail_it(log: MemoryLog) -> None:
    """Goal: *failed* means that nothing took effect. A runner that was stopped with that word on its lips is
    not heard while another one sends the same key."""
    gateway = Gateway()
    a, b = Meeting(log, "p-a"), MemorySession(log, "p-b")
    inside, leave = asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent", name="pay")
    async def turned_away(order: str, amount: int) -> None:
        raise NotDone("not now")

    @tool(effect="idempotent", name="pay")
    async def pays(order: str, amount: int) -> str:
        inside.set()
        await leave.wait()
        return str(gateway.execute("key", "paid"))

    async def meanwhile() -> None:
        log.clock.advance(int(LEASE * 1000) + 1)
        second.append(asyncio.ensure_future(run(b, [pays], asked())))
        await asyncio.wait_for(inside.wait(), WAIT_S)

    second: list[asyncio.Future[Any]] = []
    a.of, a.meanwhile = "its first word on the outcome", meanwhile
    real = a.publish

    async def publish(event_type: str, payload: Any, **options: Any) -> Receipt:
        if event_type in ("ToolCallReconciled", "ToolCallFailed"):
            a.of = event_type
        return await real(event_type, payload, **options)

    a.publish = publish  # type: ignore[method-assign]
    first = asyncio.ensure_future(run(a, [turned_away], asked()))
    async with asyncio.timeout(WAIT_S):
        await inside.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        leave.set()
        (result,) = await second[0]
        assert result["content"] == "paid"
        assert (await first) == [result]
    assert a.row("m1:c1").state == "done"


async def test_an_attempt_of_a_stricter_release_keeps_its_key(log: MemoryLog) -> None:
    """Goal: what was begun as idempotent may have had its effect. A release that calls the tool harmless
    sends the same key, also where the first try raises."""
    gateway = Gateway()
    dead = MemorySession(log, "p-dead")
    await dead.tool_intended("m1:c1", "pay", asked()["function"]["arguments"], effect="idempotent")
    await dead.tool_started("m1:c1", holder="dead", lease_ms=1)
    gateway.execute_once("m1:c1/1", "paid")
    log.clock.advance(10)
    tries: list[str] = []

    async def pay(order: str, amount: int, call: ToolCall) -> str:
        tries.append(call.key)
        if len(tries) == 1:
            raise ConnectionError("reset")
        return str(gateway.execute_once(call.key, "paid"))

    made = tool(pay, effect="none", retry_on=ConnectionError)
    (result,) = await run(MemorySession(log, "p-new"), [made], asked())
    assert result["content"] == "paid"
    assert set(tries) == {"m1:c1/1"}
    assert gateway.ledger == ["m1:c1/1"]


# Runs


async def test_a_run_that_has_ended_long_ago_is_not_started_again(log: MemoryLog) -> None:
    """Goal: a start that is repeated late, as a webhook is, gives the handle of the first."""
    s = MemorySession(log)
    session: Any = s

    async def begun(process: Any, run_id: str) -> None:
        await start("a", process, input=1, run_id=run_id, pin=None, title=None, retries=0)

    for number in range(ENDED_RUNS_MAX + 2):
        await begun(session, f"r{number}")
        await s.run_stopped(f"r{number}", wait="accepted")
    assert "r0" not in log.state.runs
    for process in (session, MemorySession(log, "p-2")):
        await begun(process, "r0")
    assert log.types.count("RunStarted") == ENDED_RUNS_MAX + 2
    await begun(session, "new")
    assert log.state.runs["new"].state == "ready"
