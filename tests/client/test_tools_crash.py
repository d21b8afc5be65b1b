"""A runner dies, or stops, at every point of a call; others take over: on the real fold without Kafka.

Judged by the external system's own ledger, not by ours.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from client.memory_session import MemoryLog, MemorySession, patch_clock
from client.tool_world import Gateway, Killed, asked, dying_at, payment, until_over
from refold.client.tools import ApprovalPending, Tool, ToolCall, tool
from refold.client.tools.points import CALL, RECONCILE
from refold.core.invariants import well_formed

LEASE_S = 5.0
LEASE_MS = 5_000

#: effect, has a lookup
KINDS = [("none", False), ("idempotent", False), ("external", True), ("external", False)]

#: A death here leaves a call of which nobody can say whether it ran, unless somebody can be asked.
IN_DOUBT = {"after_started", "before_effect", "after_effect", "before_result"}


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_clock(monkeypatch)


async def run(session: MemorySession, pay: Tool, *, message: str = "m1", call: str = "c1") -> Any:
    return await session.run_tools([asked(call_id=call)], tools=[pay], message_id=message, lease=LEASE_S)


async def die(session: MemorySession, point: str, work: Any) -> None:
    """Do the work; the session's process dies at the point, or ends before it."""
    with dying_at(session, point):
        try:
            await work
        except Killed:
            session.dead = True


@pytest.mark.parametrize("point", CALL)
@pytest.mark.parametrize(("effect", "lookup"), KINDS)
async def test_killed_at_every_point(point: str, effect: Any, lookup: bool) -> None:
    """Goal: D04. After the lease another process reconciles and runs the same calls: one effect, or none and
    *unknown*; the result is there unless the outcome cannot be known. ``none`` may run again."""
    log, gateway = MemoryLog(), Gateway()
    pay = payment(gateway, effect, lookup=lookup)
    first = MemorySession(log, "p-1")
    await die(first, point, run(first, pay))
    assert first.dead
    before = list(gateway.ledger)
    log.clock.advance(LEASE_MS + 1)
    second = MemorySession(log, "p-2")
    reconciled = await second.reconcile(tools=[pay], lease=LEASE_S)
    assert len(reconciled) == (1 if point in IN_DOUBT else 0)
    (result,) = await run(second, pay)
    row = log.state.calls["m1:c1"]
    if effect == "external" and not lookup and point in IN_DOUBT:
        assert row.state == "unknown"
        assert "unresolved" in result["content"]
        assert gateway.ledger == before
    else:
        assert row.state == "done"
        assert result["content"] == '{"paid":"A","amount":3}'
    if effect != "none":
        assert len(gateway.ledger) <= 1
    assert set(gateway.operations) <= {"m1:c1"}
    assert log.types.count("ToolCallIntended") == 1
    well_formed(log.state)


@pytest.mark.parametrize("point", RECONCILE)
async def test_the_reconciler_dies_too(point: str) -> None:
    """Goal: at every step of a reconciliation, a third process ends it the same way."""
    for ran in (True, False):
        log, gateway = MemoryLog(), Gateway()
        pay = payment(gateway, "external", lookup=True)
        first = MemorySession(log, "p-1")
        await die(first, "after_effect" if ran else "before_effect", run(first, pay))
        log.clock.advance(LEASE_MS + 1)
        second = MemorySession(log, "p-2")
        await die(second, point, second.reconcile(tools=[pay], lease=LEASE_S))
        log.clock.advance(LEASE_MS + 1)
        third = MemorySession(log, "p-3")
        await third.reconcile(tools=[pay], lease=LEASE_S)
        assert gateway.ledger == (["m1:c1/1"] if ran else ["m1:c1/2"])
        assert log.state.calls["m1:c1"].state == "done"


async def test_within_the_lease_nobody_takes_over() -> None:
    log, gateway = MemoryLog(), Gateway()
    pay = payment(gateway, "external", lookup=True)
    first = MemorySession(log, "p-1")
    await die(first, "before_effect", run(first, pay))
    second = MemorySession(log, "p-2")
    assert await second.reconcile(tools=[pay], lease=LEASE_S) == []
    # A process whose clock is ahead claims too early: the fold refuses, and it leaves the call alone.
    log.skew_ms = -60_000
    log.clock.advance(30_000)
    assert await second.reconcile(tools=[pay], lease=LEASE_S) == []
    assert ("ToolCallReconciled", "lease_held") in log.refused
    assert gateway.asked == []


@pytest.mark.parametrize(("effect", "lookup"), KINDS[1:])
async def test_a_runner_stopped_in_front_of_the_effect_runs_nothing(effect: Any, lookup: bool) -> None:
    """Goal: woken past its lease it finds another holder's result, and its body has not begun."""
    log, gateway = MemoryLog(), Gateway()
    bodies: list[tuple[str, str]] = []
    stopped, wake = asyncio.Event(), asyncio.Event()
    zombie, other = MemorySession(log, "p-z"), MemorySession(log, "p-o")

    async def pay(order: str, amount: int, call: ToolCall) -> Any:
        bodies.append((call.session._connection.options.producer_id, call.key))
        return gateway.execute_once(call.key, "paid")

    made = tool(pay, effect=effect, lookup=gateway.lookup if lookup else None)
    real = made.run

    async def stopping(call: ToolCall, arguments: Any, check: Any) -> Any:
        if call.session is zombie and not wake.is_set():
            zombie.frozen = True
            stopped.set()
            await wake.wait()
        return await real(call, arguments, check)

    made.run = stopping
    waiting = asyncio.ensure_future(zombie.run_tools([asked()], tools=[made], message_id="m1", lease=0.5))
    await stopped.wait()
    results = await other.run_tools([asked()], tools=[made], message_id="m1", lease=0.5)
    wake.set()
    zombie.thaw()
    assert await waiting == results
    if effect == "external" and not lookup:
        assert (log.state.calls["m1:c1"].state, bodies) == ("unknown", [])
    else:
        assert bodies == [("p-o", "m1:c1/2" if lookup else "m1:c1/1")]
        assert gateway.operations == ["m1:c1"]


async def test_a_lost_lease_nobody_took_is_given_back_and_run() -> None:
    """Goal: stopped in front of the effect, woken, and nobody else came: known to be not done, so it runs as
    the next attempt although the tool has no lookup."""
    log, gateway = MemoryLog(), Gateway()
    s = MemorySession(log)
    made = payment(gateway, "external", lookup=False)
    real = made.run
    stops = iter([True, False])

    async def stopping(call: ToolCall, arguments: Any, check: Any) -> Any:
        if next(stops):
            s.frozen = True
            assert call._lease is not None
            await until_over(call._lease)
            s.thaw()
        return await real(call, arguments, check)

    made.run = stopping  # type: ignore[method-assign]
    await s.run_tools([asked()], tools=[made], message_id="m1", lease=0.5)
    assert gateway.ledger == ["m1:c1/2"]


async def test_a_long_body_keeps_its_lease() -> None:
    """Goal: renewed by own claims while it runs; nobody takes over a living runner."""
    log, gateway = MemoryLog(), Gateway()
    s, other = MemorySession(log, "p-1"), MemorySession(log, "p-2")
    go = asyncio.Event()

    @tool(effect="external", lookup=gateway.lookup)
    async def pay(order: str, amount: int, call: ToolCall) -> Any:
        await go.wait()
        call.check()
        return gateway.execute(call.key, "paid")

    # Its clock is the real one: the lease must outlast a stall of this process.
    running = asyncio.ensure_future(s.run_tools([asked()], tools=[pay], message_id="m1", lease=2.0))
    while log.types.count("ToolCallReconciled") < 4:
        await asyncio.sleep(0.02)
        assert await other.reconcile(tools=[pay], lease=2.0) == []
    go.set()
    await running
    assert (gateway.ledger, gateway.asked) == (["m1:c1/1"], [])


async def test_evidence_of_a_stale_holder_is_taken() -> None:
    """Goal: a body that began under its lease and ended after it says what it did, also after *unknown*."""
    log, gateway = MemoryLog(), Gateway()
    s, other = MemorySession(log, "p-1"), MemorySession(log, "p-2")
    began, go = asyncio.Event(), asyncio.Event()

    @tool(effect="external")
    async def pay(order: str, amount: int, call: ToolCall) -> Any:
        s.frozen = True
        began.set()
        await go.wait()
        return gateway.execute(call.key, "paid")

    running = asyncio.ensure_future(run(s, pay))
    await began.wait()
    log.clock.advance(LEASE_MS + 1)
    (outcome,) = await other.reconcile(tools=[pay], lease=LEASE_S)
    assert outcome.state == "unknown"
    s.thaw()
    go.set()
    assert (await running)[0]["content"] == "paid"
    assert log.state.calls["m1:c1"].state == "done"


async def test_a_tool_that_kills_its_runner_ends_in_review(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: recoveries are bounded: after so many attempts somebody should look."""
    monkeypatch.setattr("refold.client.tools.acquire.RECOVERED_ATTEMPTS_MAX", 3)
    log, gateway = MemoryLog(), Gateway()
    pay = payment(gateway, "external", lookup=True)
    for n in range(5):
        session = MemorySession(log, f"p-{n}")
        await die(session, "before_effect", run(session, pay))
        log.clock.advance(LEASE_MS + 1)
    row = log.state.calls["m1:c1"]
    assert (row.state, row.attempt, gateway.ledger) == ("unknown", 3, [])
    assert "not done after 3 attempts" in (row.error or "")


async def test_a_ruling_of_a_review_goes_on() -> None:
    """Goal: unknown, ruled not done by a person: the next attempt runs; ruled done: its result is given."""
    for outcome in ("not_done", "done"):
        log, gateway = MemoryLog(), Gateway()
        pay = payment(gateway, "external", lookup=False)
        first, second = MemorySession(log, "p-1"), MemorySession(log, "p-2")
        await die(first, "before_effect", run(first, pay))
        log.clock.advance(LEASE_MS + 1)
        await second.reconcile(tools=[pay], lease=LEASE_S)
        if outcome == "done":
            await second.tool_completed("m1:c1", "by hand", call_attempt=1, reconciled=True)
        else:
            await second.tool_reconciled("m1:c1", "not_done", holder="operator", call_attempt=1)
        (result,) = await run(second, pay)
        assert gateway.ledger == ([] if outcome == "done" else ["m1:c1/2"])
        assert result["content"] == ("by hand" if outcome == "done" else '{"paid":"A","amount":3}')


async def test_approved_and_then_killed() -> None:
    """Goal: an approval survives the death of whoever asked for it, and is asked for once."""
    log, gateway = MemoryLog(), Gateway()
    pay = payment(gateway, "external", lookup=True, approval=True)
    for n, point in enumerate(("after_intent", "before_started", "before_effect", "before_result")):
        session = MemorySession(log, f"p-{n}")
        with dying_at(session, point):
            try:
                await run(session, pay)
            except (Killed, ApprovalPending):
                session.dead = True
        if log.state.calls["m1:c1"].state == "awaiting_approval":
            await MemorySession(log, "ui").approve("m1:c1")
        log.clock.advance(LEASE_MS + 1)
    last = MemorySession(log, "p-last")
    try:
        await run(last, pay)
    except ApprovalPending:
        await MemorySession(log, "ui").approve("m1:c1")
        await run(last, pay)
    assert gateway.operations == ["m1:c1"]
    assert log.types.count("ToolCallApprovalRequested") == 1


@pytest.mark.parametrize("seed", range(12))
async def test_many_runners_many_deaths(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: three processes at a time run the same five calls and die at random points, clocks move on; in
    the end every call with a lookup has one effect and is done, no key is executed twice."""
    # A dead process settles nothing; do not wait for it.
    monkeypatch.setattr("refold.client.tools.aftermath.SETTLE_S", 0.01)
    rng = random.Random(seed)
    log, gateway = MemoryLog(), Gateway()
    pay = payment(gateway, "external", lookup=True)
    deaths = 0
    calls = [asked(call_id=f"c{n}", arguments=f'{{"order":"o{n}","amount":{n}}}') for n in range(5)]
    for generation in range(8):
        sessions = [MemorySession(log, f"p-{generation}-{n}") for n in range(3)]
        for session in sessions:
            _dies_at_random(session, rng)
        work = [
            asyncio.ensure_future(s.run_tools(calls, tools=[pay], message_id="m1", lease=LEASE_S))
            for s in sessions
        ]
        await asyncio.wait(work, timeout=0.05)
        log.clock.advance(LEASE_MS + 1)
        await asyncio.wait(work, timeout=0.05)
        for session, task in zip(sessions, work, strict=True):
            session.dead = True
            deaths += not task.done()
            task.cancel()
        await asyncio.wait(work)
        log.clock.advance(LEASE_MS + 1)
    last = MemorySession(log, "last")
    await last.reconcile(tools=[pay], lease=LEASE_S)
    results = await last.run_tools(calls, tools=[pay], message_id="m1", lease=LEASE_S)
    assert sorted(gateway.operations) == [f"m1:c{n}" for n in range(5)]
    assert len(set(gateway.ledger)) == len(gateway.ledger)
    assert [r["content"] for r in results] == [f'{{"paid":"o{n}","amount":{n}}}' for n in range(5)]
    assert {call.state for call in log.state.calls.values()} == {"done"}


def _dies_at_random(session: MemorySession, rng: random.Random) -> None:
    """After a random number of appends; sometimes the append is written and the process never hears of it."""
    left = rng.randrange(1, 18)

    def before(event_type: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            session.dead = True
            if left == 0 and rng.random() < 0.5:
                return
            raise Killed(event_type)

    session.before = before
