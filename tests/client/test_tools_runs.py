"""Tool calls from intent to outcome, on the real fold without Kafka: what is run, recorded and given back."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from client.memory_session import MemoryLog, MemorySession, patch_clock
from client.tool_world import Gateway, asked, payment
from refold.client.receipts import Refused
from refold.client.tools import (
    NOT_DONE,
    AlreadySettled,
    ApprovalPending,
    Done,
    LookupAnswer,
    NotDone,
    OutcomeNotKnown,
    OutcomeUnknown,
    Tool,
    ToolCall,
    ToolError,
    tool,
)
from refold.core.limits import CLOSED_CALLS_MAX
from refold.errors import UsageError
from refold.wire.parts import tool_call

LEASE = 5.0


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_clock(monkeypatch)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def s(log: MemoryLog) -> MemorySession:
    return MemorySession(log)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


async def run(
    session: MemorySession, tools: list[Tool], *calls: Any, message: str = "m1", **more: Any
) -> Any:
    return await session.run_tools(list(calls), tools=tools, message_id=message, lease=LEASE, **more)


def raising(error: BaseException, effect: Any = "external", **options: Any) -> Tool:
    tries: list[str] = []

    async def pay(order: str, amount: int, call: ToolCall) -> str:
        tries.append(call.key)
        raise error

    made = tool(pay, effect=effect, **options)
    made.tries = tries
    return made  # type: ignore[no-any-return]


async def test_intent_start_effect_result(log: MemoryLog, s: MemorySession, gateway: Gateway) -> None:
    """Goal: the order of the events, what they carry, and that the body comes after *started*."""
    seen: list[list[str]] = []

    @tool(effect="external", lookup=gateway.lookup, timeout=7)
    async def pay(order: str, amount: int, call: ToolCall) -> str:
        seen.append(list(log.types))
        assert call.remaining() is not None
        assert call.session is s
        call.check()
        return "paid"

    results = await run(s, [pay], asked(), run="r1", step="s1")
    assert results == [{"role": "tool", "tool_call_id": "c1", "content": "paid"}]
    assert seen == [["ToolCallIntended", "ToolCallStarted"]]
    assert log.types == ["ToolCallIntended", "ToolCallStarted", "ToolCallCompleted"]
    intent = log.journal[0].payload
    assert intent is not None
    assert (intent["operation_id"], intent["call_id"], intent["message_id"]) == ("r1/s1/m1:c1", "c1", "m1")
    assert (intent["effect"], intent["lookup_supported"], intent["timeout_ms"]) == ("external", True, 7000)
    assert {(e.envelope.run, e.envelope.step) for e in log.journal} == {("r1", "s1")}
    assert [e.envelope.attempt for e in log.journal] == [None, 1, 1]
    assert log.refused == []


async def test_results_come_in_the_order_asked(log: MemoryLog, s: MemorySession) -> None:
    """Goal: parallel, bounded, and not in the order of completion (D05)."""
    running = most = 0
    gates = {name: asyncio.Event() for name in "abcd"}

    @tool(effect="none")
    async def wait(name: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gates[name].wait()
        running -= 1
        return name

    calls = [asked("wait", f"c{n}", f'{{"name": "{n}"}}') for n in "abcd"]
    task = asyncio.ensure_future(run(s, [wait], *calls, parallel=2))
    for _ in range(200):
        await asyncio.sleep(0)
    assert running == 2
    for name in "dcba":
        gates[name].set()
    assert [r["content"] for r in await task] == list("abcd")
    assert most == 2
    with pytest.raises(UsageError, match="parallel"):
        await run(s, [wait], *calls, parallel=0)


async def test_plain_functions_run_in_a_thread_of_their_own(s: MemorySession) -> None:
    @tool(effect="none")
    def where() -> str:
        return threading.current_thread().name

    assert (await run(s, [where], asked("where", arguments="")))[0]["content"] == "refold-tool"


async def test_the_same_key_twice_gives_the_first_result(log: MemoryLog, gateway: Gateway) -> None:
    """Goal: in this and in another process, the whole result, without a second effect."""
    pay = payment(gateway, "external", lookup=True)
    first = await run(MemorySession(log, "p-1"), [pay], asked())
    again = await run(MemorySession(log, "p-2"), [pay], asked())
    assert first == again
    assert gateway.ledger == ["m1:c1/1"]


async def test_two_at_once_run_it_once(log: MemoryLog, gateway: Gateway) -> None:
    """Goal: the second waits for the holder; both get the one result."""
    entered, go = asyncio.Event(), asyncio.Event()

    @tool(effect="external")
    async def pay(order: str, amount: int, call: ToolCall) -> str:
        entered.set()
        await go.wait()
        return str(gateway.execute(call.key, "paid"))

    first = asyncio.ensure_future(run(MemorySession(log, "p-1"), [pay], asked()))
    await entered.wait()
    second = asyncio.ensure_future(run(MemorySession(log, "p-2"), [pay], asked()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    go.set()
    assert await first == await second
    assert gateway.ledger == ["m1:c1/1"]


async def test_twenty_at_once_in_one_process(log: MemoryLog, s: MemorySession, gateway: Gateway) -> None:
    """Goal: a holder's name is new for each run, so that even tasks of one client cannot share a grant."""
    pay = payment(gateway, "external", lookup=False)
    results = await asyncio.gather(*(run(s, [pay], asked()) for _ in range(20)))
    assert {str(r) for r in results} == {str(results[0])}
    assert gateway.ledger == ["m1:c1/1"]


async def test_a_call_id_used_again_in_a_later_turn_is_another_call(
    s: MemorySession, gateway: Gateway
) -> None:
    """D07."""
    pay = payment(gateway, "external", lookup=True)
    one = await run(s, [pay], asked(), message="m1")
    two = await run(s, [pay], asked(arguments='{"order":"B","amount":3}'), message="m2")
    assert gateway.operations == ["m1:c1", "m2:c1"]
    assert (one[0]["content"], two[0]["content"]) == ('{"paid":"A","amount":3}', '{"paid":"B","amount":3}')
    # And once more within one message, a provider's fault: two calls all the same.
    await run(s, [pay], asked(call_id="x"), asked(call_id="x"), message="m3")
    assert gateway.operations[2:] == ["m3:x", "m3:x:2"]


async def test_arguments_cut_short_are_an_error_for_the_model(
    log: MemoryLog, s: MemorySession, gateway: Gateway
) -> None:
    """D08: nothing runs, the raw text is kept, the row is flagged."""
    pay = payment(gateway, "external", lookup=True)
    raw = '{"order": "A", "amou'
    for _ in range(2):
        (result,) = await run(s, [pay], asked(arguments=raw))
        assert "not valid JSON" in result["content"]
    row = s.row("m1:c1")
    assert (row.arguments, row.arguments_valid, row.state) == (raw, False, "failed")
    assert row.error_code == "invalid_arguments"
    assert (gateway.ledger, log.types.count("ToolCallFailed")) == ([], 1)


async def test_arguments_of_the_wrong_kind_and_unknown_tools(s: MemorySession, gateway: Gateway) -> None:
    pay = payment(gateway, "external", lookup=True)
    results = await run(
        s,
        [pay],
        {"type": "tool_use", "id": "t1", "name": "pay", "input": {"order": 3}},
        {"type": "tool_use", "id": "t2", "name": "fly", "input": {}},
    )
    assert results[0]["is_error"] is True
    assert "amount: Field required" in results[0]["content"]
    assert results[1]["content"] == "there is no tool 'fly'"
    assert [s.row(f"m1:t{n}").error_code for n in (1, 2)] == ["invalid_arguments", "unknown_tool"]
    assert gateway.ledger == []


async def test_other_arguments_under_a_used_key_are_refused(s: MemorySession, gateway: Gateway) -> None:
    """D09 for calls: not silently the first, not silently the last."""
    pay = payment(gateway, "external", lookup=True)
    async with s.tool("pay", {"amount": 10}, operation_id="pay-1", effect="external") as call:
        call.done("paid")
    with pytest.raises(AlreadySettled):
        async with s.tool("pay", {"amount": 10}, operation_id="pay-1", effect="external"):
            pytest.fail("entered twice")
    await s.tool_intended("m1:c1", "pay", '{"order":"other","amount":3}')
    log = s.log
    with pytest.raises(Refused, match="conflict"):
        await _intend_again(s, pay)
    assert log.state.calls["m1:c1"].state == "intended"
    assert gateway.ledger == []


async def _intend_again(s: MemorySession, pay: Tool) -> None:
    """A conflicting call whose row came in between our look and our intent."""
    real = s.state
    looked = False

    async def state(**options: Any) -> Any:
        nonlocal looked
        if not looked:
            looked = True
            return None
        return await real(**options)

    s.state = state  # type: ignore[method-assign]
    try:
        await run(s, [pay], asked())
    finally:
        s.state = real  # type: ignore[method-assign]
        for _ in range(20):
            await asyncio.sleep(0)


# What a body may say


async def test_an_answer_that_is_an_error_is_done(s: MemorySession) -> None:
    (result,) = await run(s, [raising(ToolError("no such order", code="no_order"))], asked())
    row = s.row("m1:c1")
    assert result["content"] == "no such order"
    assert (row.state, row.is_error, row.error_code) == ("done", True, "no_order")


@pytest.mark.parametrize("effect", ["external", "idempotent", "none"])
async def test_not_done_is_failed(s: MemorySession, effect: Any) -> None:
    """Goal: whatever the effect, the first try of an attempt knows what it says."""
    (result,) = await run(s, [raising(NotDone("card declined", code="declined"), effect)], asked())
    row = s.row("m1:c1")
    assert (result["content"], row.state, row.error_code) == ("card declined", "failed", "declined")


async def test_an_exception_without_a_lookup_is_unknown_and_never_run_again(
    log: MemoryLog, s: MemorySession
) -> None:
    """Goal: the model is told; running or reconciling again changes nothing."""
    pay = raising(ConnectionResetError("gone"), retry_on=ConnectionError)
    for _ in range(3):
        (result,) = await run(s, [pay], asked())
        assert "unresolved" in result["content"]
    log.clock.advance(3_600_000)
    assert await s.reconcile(tools=[pay]) == []
    row = s.row("m1:c1")
    assert (row.state, pay.tries) == ("unknown", ["m1:c1/1"])
    assert "ConnectionResetError: gone" in row.error
    assert log.types.count("ToolCallOutcomeUnknown") == 1


async def test_the_lookup_says_what_an_exception_cannot(s: MemorySession, gateway: Gateway) -> None:
    """Goal: done is recorded as reconciled, with the looked-up result."""

    @tool(effect="external", lookup=gateway.lookup)
    async def pay(order: str, amount: int, call: ToolCall) -> str:
        gateway.execute(call.key, {"id": 7})
        raise ConnectionResetError

    (result,) = await run(s, [pay], asked())
    assert result["content"] == '{"id":7}'
    assert s.log.journal[-1].payload["reconciled"] is True  # type: ignore[index]


async def test_not_done_by_lookup_is_tried_again_only_where_asked_for(
    log: MemoryLog, s: MemorySession, gateway: Gateway
) -> None:
    """Goal: attempts rise only after not_done; each has its own key; then it is failed."""
    eager = raising(ConnectionResetError(), lookup=gateway.lookup, retry_on=ConnectionError, attempts_max=3)
    await run(s, [eager], asked())
    assert eager.tries == ["m1:c1/1", "m1:c1/2", "m1:c1/3"]
    assert [t for t in log.types if t != "ToolCallStarted"] == [
        "ToolCallIntended",
        "ToolCallReconciled",
        "ToolCallReconciled",
        "ToolCallFailed",
    ]
    plain = raising(ConnectionResetError(), lookup=gateway.lookup)
    await run(s, [plain], asked(), message="m2")
    assert plain.tries == ["m2:c1/1"]
    assert (s.row("m1:c1").state, s.row("m2:c1").state) == ("failed", "failed")


async def test_a_lookup_that_fails_does_not_know(s: MemorySession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.tools.lookups.LOOKUP_PAUSE_S", 0.001)
    tries: list[str] = []

    def broken(key: str) -> LookupAnswer:
        tries.append(key)
        raise OSError("no route")

    async def nonsense(key: str) -> Any:
        return True

    await run(s, [raising(OutcomeNotKnown("no answer"), lookup=broken)], asked())
    await run(s, [raising(OutcomeNotKnown("no answer"), lookup=nonsense)], asked(), message="m2")
    assert tries == ["m1:c1/1"] * 3
    assert (s.row("m1:c1").state, s.row("m2:c1").state) == ("unknown", "unknown")
    assert "the lookup failed 3 times: OSError" in s.row("m1:c1").error


async def test_effect_none_fails_and_retries_with_new_attempts(s: MemorySession) -> None:
    flaky = raising(ConnectionResetError("x"), effect="none", retry_on=ConnectionError)
    (result,) = await run(s, [flaky], asked())
    assert flaky.tries == ["m1:c1/1", "m1:c1/2", "m1:c1/3"]
    assert (s.row("m1:c1").state, result["content"]) == ("failed", "ConnectionResetError: x")
    once = raising(ValueError("x"), effect="none", retry_on=ConnectionError)
    await run(s, [once], asked(), message="m2")
    assert once.tries == ["m2:c1/1"]


async def test_effect_idempotent_repeats_under_the_same_key(log: MemoryLog, s: MemorySession) -> None:
    """Goal: no new attempt, one key; when it does not help, the outcome is not known."""
    flaky = raising(ConnectionResetError("x"), effect="idempotent", retry_on=ConnectionError)
    await run(s, [flaky], asked())
    assert flaky.tries == ["m1:c1/1"] * 3
    assert s.row("m1:c1").state == "unknown"
    assert log.types == ["ToolCallIntended", "ToolCallStarted", "ToolCallOutcomeUnknown"]


async def test_a_timeout_is_an_outcome_that_is_not_known(s: MemorySession, gateway: Gateway) -> None:
    """Goal: sync and async bodies; with a lookup it is asked, without one it is unknown."""
    release = threading.Event()

    @tool(effect="external", timeout=0.05)
    def stuck(order: str, amount: int) -> None:
        release.wait(10)

    @tool(effect="external", timeout=0.05, lookup=gateway.lookup)
    async def slow(order: str, amount: int, call: ToolCall) -> None:
        gateway.execute(call.key, "paid")
        await asyncio.Event().wait()

    try:
        results = await run(s, [stuck, slow], asked("stuck", "a"), asked("slow", "b"))
    finally:
        release.set()
    assert (s.row("m1:a").state, s.row("m1:b").state) == ("unknown", "done")
    assert results[1]["content"] == "paid"
    assert "no answer within 0.05 s" in s.row("m1:a").error


@pytest.mark.parametrize(
    ("effect", "lookup", "state"),
    [
        ("external", False, "unknown"),
        ("external", True, "done"),
        ("idempotent", False, "started"),
        ("none", False, "intended"),
    ],
)
async def test_cancelled_in_the_middle(
    s: MemorySession, gateway: Gateway, effect: Any, lookup: bool, state: str
) -> None:
    """Goal: as much is recorded as can be known; the caller is cancelled all the same."""
    entered = asyncio.Event()

    async def pay(order: str, amount: int, call: ToolCall) -> None:
        gateway.execute(call.key, "paid")
        entered.set()
        await asyncio.Event().wait()

    made = tool(pay, effect=effect, lookup=gateway.lookup if lookup else None)
    task = asyncio.ensure_future(run(s, [made], asked()))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert s.row("m1:c1").state == state


async def test_cancelled_after_the_effect_the_result_is_recorded(log: MemoryLog, s: MemorySession) -> None:
    """Goal: a cancellation between the body's end and the record does not lose the result."""
    task: asyncio.Task[Any] | None = None

    def before(event_type: str) -> None:
        if event_type == "ToolCallCompleted" and task is not None:
            task.cancel()

    s.before = before
    pay = payment(Gateway(), "external", lookup=False)
    task = asyncio.ensure_future(run(s, [pay], asked()))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert s.row("m1:c1").state == "done"


async def test_cancelled_before_the_body_it_is_not_done(s: MemorySession, gateway: Gateway) -> None:
    """Goal: nothing ran, so nobody has to be asked: the call is free again."""
    task: asyncio.Task[Any] | None = None

    def before(event_type: str) -> None:
        if event_type == "ToolCallStarted" and task is not None:
            task.cancel()

    s.before = before
    pay = payment(gateway, "external", lookup=False)
    task = asyncio.ensure_future(run(s, [pay], asked()))
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(50):
        await asyncio.sleep(0)
    assert (s.row("m1:c1").state, gateway.ledger) == ("intended", [])
    s.before = lambda _: None
    await run(s, [pay], asked())
    assert gateway.operations == ["m1:c1"]


# Approvals


async def test_an_approval_waits_without_a_process(log: MemoryLog, gateway: Gateway) -> None:
    """Goal: everything else runs; approved in another process it runs in a third; asked for once."""
    pay = payment(gateway, "external", lookup=True, approval=lambda a: a["amount"] > 100)
    small, large = asked(), asked(call_id="c2", arguments='{"order":"B","amount":1000}')
    for _ in range(2):
        with pytest.raises(ApprovalPending) as pending:
            await run(MemorySession(log, "p-1"), [pay], large, small)
        assert [o.operation_id for o in pending.value.pending] == ["m1:c2"]
        assert pending.value.results == [
            None,
            {"role": "tool", "tool_call_id": "c1", "content": '{"paid":"A","amount":3}'},
        ]
    assert gateway.operations == ["m1:c1"]
    assert log.types.count("ToolCallApprovalRequested") == 1
    await MemorySession(log, "p-2").approve("m1:c2", by="ada")
    results = await run(MemorySession(log, "p-3"), [pay], large, small)
    assert [r["tool_call_id"] for r in results] == ["c2", "c1"]
    assert gateway.operations == ["m1:c1", "m1:c2"]


async def test_a_denial_is_an_error_for_the_model(s: MemorySession, gateway: Gateway) -> None:
    """D05: two parallel calls, one denied; the order asked is kept."""
    pay = payment(gateway, "external", lookup=True, approval=lambda a: a["order"] == "A")
    calls = asked(), asked(call_id="c2", arguments='{"order":"B","amount":1}')
    with pytest.raises(ApprovalPending):
        await run(s, [pay], *calls)
    await s.deny("m1:c1", by="ada", reason="too much")
    denied, done = await run(s, [pay], *calls)
    assert "denied" in denied["content"]
    assert "too much" in denied["content"]
    assert done["content"] == '{"paid":"B","amount":1}'
    assert (s.row("m1:c1").state, s.row("m1:c2").state) == ("denied", "done")
    assert gateway.operations == ["m1:c2"]


async def test_an_async_approval_and_one_for_all(s: MemorySession, gateway: Gateway) -> None:
    async def ask(arguments: Any) -> bool:
        return bool(arguments["amount"] == 3)

    for number, approval in enumerate((True, ask)):
        with pytest.raises(ApprovalPending):
            await run(
                s, [payment(gateway, "none", lookup=False, approval=approval)], asked(), message=f"m{number}"
            )
    assert gateway.ledger == []


# Final is final


async def test_the_first_final_status_stays(s: MemorySession, gateway: Gateway) -> None:
    """D19: a late failure or unknown after done changes nothing; the same key gives the first result."""
    pay = payment(gateway, "external", lookup=True)
    first = await run(s, [pay], asked())
    for late in (
        await s.tool_failed("m1:c1", "late", call_attempt=1),
        await s.tool_unknown("m1:c1", "late", call_attempt=1),
        await s.tool_reconciled("m1:c1", "not_done", holder="x", call_attempt=1),
    ):
        assert (await late.ruling()).code == "already_final"
    assert await run(s, [pay], asked()) == first


async def test_a_key_is_known_after_its_row_has_left_the_ledger(log: MemoryLog, gateway: Gateway) -> None:
    """Goal: the ledger keeps the newest closed rows; an old key is found in the journal and not run again."""
    pay = payment(gateway, "external", lookup=True)
    s = MemorySession(log)
    first = await run(s, [pay], asked(), message="m0")
    failing = raising(NotDone("no"), name="fail")
    await run(s, [failing], asked("fail"), message="f0")
    for n in range(CLOSED_CALLS_MAX + 3):
        await run(s, [pay], asked(), message=f"n{n}")
    assert "m0:c1" not in log.state.calls
    ran = len(gateway.ledger)
    for process in ("p-1", "p-2"):
        other = MemorySession(log, process)
        assert await run(other, [pay], asked(), message="m0") == first
        (failed,) = await run(other, [failing], asked("fail"), message="f0")
        assert failed["content"] == "no"
    assert (len(gateway.ledger), failing.tries) == (ran, ["f0:c1/1"])
    # New ones still run.
    await run(s, [pay], asked(), message="new")
    assert len(gateway.ledger) == ran + 1


async def test_a_key_is_known_after_its_row_was_pruned(log: MemoryLog, gateway: Gateway) -> None:
    """Goal: what left the state by pruning does not happen again; also where rows had left it before."""
    pay = payment(gateway, "external", lookup=True)
    s = MemorySession(log)

    async def turn(name: str) -> Any:
        await s.append(
            [tool_call("c1", "pay", asked()["function"]["arguments"])], role="assistant", message_id=name
        )
        return await run(s, [pay], asked(), message=name)

    first = await turn("m0")
    for calls in (0, CLOSED_CALLS_MAX + 3):
        for n in range(calls):
            await turn(f"n{n}")
        for _ in range(2):
            await s.publish("SessionPruned", {"ended": True}, wait="accepted")
        assert "m0:c1" not in log.state.calls
        ran = len(gateway.ledger)
        for process in (s, MemorySession(log, f"p-{calls}"), MemorySession(log, f"q-{calls}")):
            assert await run(process, [pay], asked(), message="m0") == first
        assert len(gateway.ledger) == ran
        await turn(f"new-{calls}")
        assert len(gateway.ledger) == ran + 1


async def test_a_result_the_application_appended_is_the_result(s: MemorySession, gateway: Gateway) -> None:
    """Goal: a transcript that already answers the call is not run over."""
    pay = payment(gateway, "external", lookup=True)
    await s.append([tool_call("c1", "pay", '{"order":"A","amount":3}')], role="assistant", message_id="m1")
    await s.append({"role": "tool", "tool_call_id": "c1", "content": "paid by hand"})
    (result,) = await run(s, [pay], asked())
    assert (result["content"], gateway.ledger) == ("paid by hand", [])


async def test_the_call_joins_the_message_that_asked(s: MemorySession, gateway: Gateway) -> None:
    """D06, D04: one row, with the message; the context shows the result in its place."""
    pay = payment(gateway, "external", lookup=True)
    await s.append("pay please")
    await s.append([tool_call("c1", "pay", '{"order":"A","amount":3}')], role="assistant", message_id="m1")
    await run(s, [pay], asked())
    row = s.row("m1:c1")
    assert (row.declared, row.message_id, row.state) == (True, "m1", "done")
    assert len(s.log.state.calls) == 1


async def test_a_result_may_come_before_its_message(s: MemorySession, gateway: Gateway) -> None:
    """D06: run before the assistant message is appended: held, then in its place; nothing is invented."""
    pay = payment(gateway, "external", lookup=True)
    await run(s, [pay], asked())
    assert len(s.log.state.orphans) == 1
    await s.append([tool_call("c1", "pay", '{"order":"A","amount":3}')], role="assistant", message_id="m1")
    assert s.log.state.orphans == []
    assert len(s.log.state.calls) == 1


# session.tool


async def test_a_block_says_what_came_of_it(log: MemoryLog, s: MemorySession) -> None:
    async with s.tool("pay", {"a": 1}, operation_id="o1", effect="external") as call:
        assert (call.key, call.attempt, call.arguments) == ("o1/1", 1, {"a": 1})
        call.done({"id": 3})
    assert call.outcome is not None
    assert (call.outcome.state, call.outcome.value) == ("done", {"id": 3})
    async with s.tool("pay", {"a": 2}, operation_id="o2", effect="external") as call:
        call.failed("declined", code="declined")
    assert call.outcome is not None
    assert (call.outcome.state, s.row("o2").error_code) == ("failed", "declined")
    async with s.tool("note", "{}", operation_id="o3", effect="none"):
        pass
    assert s.row("o3").state == "done"
    async with s.tool("pay", {}, operation_id="o4", effect="external") as call:
        call.unknown("no answer")
    assert s.row("o4").state == "unknown"
    with pytest.raises(OutcomeUnknown, match="refold review list"):
        async with s.tool("pay", {}, operation_id="o4", effect="external"):
            pytest.fail("entered")
    with pytest.raises(UsageError, match="said once"):
        async with s.tool("pay", {}, operation_id="o5", effect="external") as call:
            call.done()
            call.done()
    assert s.row("o5").state == "done"


async def test_a_block_that_raises(s: MemorySession, gateway: Gateway) -> None:
    """Goal: the exception is the caller's; the record follows the effect."""
    for number, (effect, lookup, state) in enumerate(
        [("none", None, "failed"), ("external", None, "unknown"), ("external", gateway.lookup, "failed")]
    ):
        with pytest.raises(ZeroDivisionError):
            async with s.tool("f", {}, operation_id=f"o{number}", effect=effect, lookup=lookup):  # type: ignore[arg-type]
                raise ZeroDivisionError
        assert s.row(f"o{number}").state == state
    with pytest.raises(TimeoutError):
        async with s.tool("f", {}, operation_id="late", effect="external", timeout=0.05):
            await asyncio.Event().wait()
    assert s.row("late").state == "unknown"


async def test_a_block_waits_for_approval(s: MemorySession) -> None:
    with pytest.raises(ApprovalPending):
        async with s.tool("f", {}, operation_id="o", effect="external", approval=True):
            pytest.fail("entered")
    await s.approve("o")
    async with s.tool("f", {}, operation_id="o", effect="external", approval=True) as call:
        call.done("x")
    with pytest.raises(AlreadySettled) as settled:
        async with s.tool("f", {}, operation_id="o", effect="external", approval=True):
            pytest.fail("entered")
    assert settled.value.outcome.text == "x"


async def test_a_block_after_a_crash(log: MemoryLog, gateway: Gateway) -> None:
    """Goal: what another process left started is asked for before the block is entered."""
    s = MemorySession(log, "p-2")
    for operation in ("ran", "did-not"):
        await s.tool_intended(operation, "pay", "{}", effect="external")
        await s.tool_started(operation, holder="dead", lease_ms=1000)
    gateway.execute("ran/1", "paid")
    log.clock.advance(2000)
    with pytest.raises(AlreadySettled) as settled:
        async with s.tool("pay", "{}", operation_id="ran", effect="external", lookup=gateway.lookup):
            pytest.fail("entered")
    assert settled.value.outcome.text == "paid"
    async with s.tool("pay", "{}", operation_id="did-not", effect="external", lookup=gateway.lookup) as call:
        assert call.key == "did-not/2"
        call.done()


async def test_wrong_calls(s: MemorySession, gateway: Gateway) -> None:
    pay = payment(gateway, "none", lookup=False)
    with pytest.raises(UsageError, match="not declared as a tool"):
        await s.run_tools([], tools=[lambda: 1], message_id="m")  # type: ignore[list-item]
    with pytest.raises(UsageError, match="two tools are called 'pay'"):
        await s.run_tools([], tools=[pay, pay], message_id="m")
    with pytest.raises(UsageError, match="lease="):
        await s.run_tools([asked()], tools=[pay], message_id="m", lease=0.1)
    with pytest.raises(UsageError, match="wait="):
        await s.run_tools([asked()], tools=[pay], message_id="m", wait="soon")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="effect 'x'"):
        s.tool("f", {}, operation_id="o", effect="x")  # type: ignore[arg-type]
    assert await s.run_tools(None, tools=[pay], message_id="m") == []


async def test_lookups_may_be_plain_functions(s: MemorySession) -> None:
    threads: list[str] = []

    def lookup(key: str) -> LookupAnswer:
        threads.append(threading.current_thread().name)
        return Done("looked up") if key.startswith("m1:c1") else NOT_DONE

    (result,) = await run(s, [raising(OSError(), lookup=lookup)], asked())
    assert (result["content"], threads) == ("looked up", ["refold-tool"])


async def test_a_repeat_that_is_turned_away_keeps_its_key(s: MemorySession) -> None:
    """Goal: the key changes only when the attempt is known not done. Found by `verify effects`: the answer of
    the first request was lost, the second was turned away ("nothing happened"), a third under a new key ran
    the operation twice. Method: those three answers, in that order."""
    ran: list[str] = []

    class AnswerLost(Exception):
        pass

    @tool(effect="idempotent", retry_on=AnswerLost)
    async def pay(call: ToolCall) -> str:
        ran.append(call.key)
        if len(ran) == 1:
            raise AnswerLost
        if len(ran) == 2:
            raise NotDone("turned away", retryable=True)
        return "paid"

    [result] = await run(s, [pay], asked("pay", arguments=""))
    assert result["content"] == "paid"
    assert len(ran) == 3
    assert len(set(ran)) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("pay", '{"order":"\ud83d","amount":1}', "half of a surrogate pair"),
        ("pay", '{"order":"\\ud83d","amount":1}', "not valid JSON"),
        ("x" * 1000, "{}", "there is no tool 'xxx"),
        ("a\ud83db", "{}", "there is no tool 'a\ufffdb'"),
        ("pay", "[" * 5000, "not valid JSON"),
        ("pay", "\x00", "not valid JSON"),
    ],
)
async def test_whatever_a_model_says_it_gets_an_answer(
    s: MemorySession, gateway: Gateway, name: str, arguments: str, said: str
) -> None:
    """D25 and kin: no text of a model ends the turn; nothing runs."""
    pay = payment(gateway, "external", lookup=True)
    (result,) = await run(s, [pay], asked(name, "c1", arguments))
    assert said in result["content"]
    assert (s.row("m1:c1").state, gateway.ledger) == ("failed", [])
    assert (await run(s, [pay], asked(name, "c1", arguments)))[0] == result


async def test_a_block_of_odd_values(s: MemorySession, gateway: Gateway) -> None:
    """Goal: Anthropic's parsed input may hold what no encoding takes."""
    pay = payment(gateway, "external", lookup=True)
    block = {"type": "tool_use", "id": "t1", "name": "pay", "input": {"order": "\ud83d", "amount": 1}}
    (result,) = await run(s, [pay], block)
    assert result["is_error"] is True
    assert gateway.ledger == []
