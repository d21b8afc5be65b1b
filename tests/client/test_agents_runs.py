"""Runs of agents on the worker's own rules, without Kafka: what is executed once, again, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from client.memory_session import MemoryLog, MemorySession, patch_clock
from refold.client.agents import (
    Agent,
    NonRetryable,
    Run,
    RunFailed,
    RunHandle,
    RunInReview,
    RunStopped,
    Step,
    StepResult,
)
from refold.client.agents.holding import Holding
from refold.client.agents.limits import REPLAY_GRACE_S
from refold.client.agents.points import POINTS
from refold.client.agents.rows import RunRow, find_run
from refold.client.agents.serving import Server
from refold.client.tools import NOT_DONE, Done, LookupAnswer, NotDone, ToolCall
from refold.core.work import work_items
from refold.errors import PermissionDenied, TransientError, UsageError
from refold.testing.agents import MemoryProcess, fire_timers

#: Far more than anything here takes.
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_clock(monkeypatch)


class World:
    """One session, and what happened outside of it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.ran: Counter[str] = Counter()
        self.done: dict[str, str] = {}
        self.void: set[str] = set()

    def process(self, agent: Agent, **options: Any) -> MemoryProcess:
        name = options.pop("name", f"p-{len(self.ran)}-{id(options)}")
        return MemoryProcess(agent, self.log, name=name, session=MemorySession(self.log, name), **options)

    def lease_over(self) -> None:
        self.log.clock.advance(3_600_000)
        fire_timers(self.log)

    def row(self, handle: RunHandle) -> RunRow:
        row = find_run(self.log.view(), handle.id)
        assert row is not None
        return row

    def attempts(self, step_id: str) -> list[int]:
        return [
            (event.payload or {})["attempt"]
            for event in self.log.journal
            if event.type == "StepStarted" and (event.payload or {})["step_id"] == step_id
        ]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - conditions of several parts
                await asyncio.sleep(0.005)

    # The world outside

    def publish(self, text: str, key: str) -> str:
        if key in self.void:
            raise NotDone("voided")
        return self.done.setdefault(key, f"page {len(self.done) + 1}: {text}")

    async def lookup(self, key: str) -> LookupAnswer:
        if key in self.done:
            return Done(self.done[key])
        self.void.add(key)
        return NOT_DONE


@pytest.fixture
def world() -> World:
    return World()


def reporter(world: World, **options: Any) -> Agent:
    """research → outline → draft → publish."""
    agent = Agent("reporter", version=options.pop("version", "1"), lease=60.0, **options)

    def research(topic: str) -> list[str]:
        world.ran["research"] += 1
        return [f"{topic} a", f"{topic} b"]

    async def outline(sources: list[str]) -> dict[str, Any]:
        world.ran["outline"] += 1
        return {"parts": sources, "long": "x" * 3_000}

    async def draft(plan: dict[str, Any], step: Step) -> str:
        world.ran["draft"] += 1
        return " / ".join(plan["parts"])

    async def publish(text: str, step: Step) -> str:
        world.ran["publish"] += 1
        return world.publish(text, step.key)

    @agent.run
    async def report(run: Run) -> StepResult:
        await run.plan(["research", "outline", "draft", "publish"])
        sources = await run.step("research", research, run.input["topic"])
        plan = await run.step("outline", outline, sources, summary=lambda o: f"{len(o['parts'])} parts")
        text = await run.step("draft", draft, plan)
        return await run.step("publish", publish, text, effect="external", lookup=world.lookup)

    return agent


PUBLISHED = "page 1: tides a / tides b"


async def test_a_run_is_executed_once(world: World) -> None:
    """Goal: every step once, its output in the session, the result with whoever asks."""
    async with world.process(reporter(world)) as process:
        handle = await process.start(input={"topic": "tides"})
        assert await handle.result(PATIENCE_S) == PUBLISHED
        assert await RunHandle(handle.session, handle.id).result(PATIENCE_S) == PUBLISHED
    assert world.ran == {"research": 1, "outline": 1, "draft": 1, "publish": 1}
    assert world.done == {f"{handle.id}/publish/body:1/1": PUBLISHED}
    assert not world.log.refused
    assert [t for t in world.log.types if t.startswith("Run")] == ["RunStarted", "RunLeased", "RunCompleted"]


class Killed(BaseException):
    """What a process that is killed raises in these tests."""


class Killer:
    """Kills the process that reaches a point of a step for the first time: nothing of it is heard again."""

    def __init__(self, point: str, step: str) -> None:
        self.point, self.step = point, step
        self.victim: MemoryProcess | None = None
        self.killed = False

    def __call__(self, point: str, run_id: str, step: str) -> None:
        if self.victim is not None and not self.killed and (point, step) == (self.point, self.step):
            self.killed = True
            self.victim.session.dead = True
            raise Killed


@asynccontextmanager
async def killed_at(
    world: World, agent: Agent, point: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[RunHandle, None]:
    """A run whose first process was killed there and whose lease is over."""
    killer = Killer(point, step)
    monkeypatch.setattr(POINTS, "watch", killer)
    async with world.process(agent, name="p-first") as first:
        handle = await first.start(input={"topic": "tides"})
        killer.victim = first
        await world.until(lambda: killer.killed)
    world.lease_over()
    yield handle


STEPS = ("research", "outline", "draft", "publish")
POINTS_OF_A_STEP = (
    "before_step",
    "after_step_started",
    "after_step_body",
    "before_step_completed",
    "after_step_completed",
)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("point", POINTS_OF_A_STEP)
async def test_a_killed_agents_run_goes_on_elsewhere(
    world: World, step: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: completed steps do not run again, the one it died in is the same attempt, one effect."""
    agent = reporter(world)
    async with killed_at(world, agent, point, step, monkeypatch) as handle:
        async with world.process(agent) as second:
            found = await RunHandle(second.session, handle.id).result(PATIENCE_S)  # type: ignore[arg-type]
    assert found == PUBLISHED
    assert list(world.done.values()) == [PUBLISHED]
    at = STEPS.index(step)
    again = POINTS_OF_A_STEP.index(point) in (2, 3)
    for name in STEPS[:at] + STEPS[at + 1 :]:
        assert world.ran[name] == 1
    assert world.ran[step] == (2 if again and step != "publish" else 1)
    assert all(set(world.attempts(name)) == {1} for name in STEPS)
    completed = Counter(
        (event.payload or {})["step_id"] for event in world.log.journal if event.type == "StepCompleted"
    )
    assert completed == dict.fromkeys(STEPS, 1)


async def test_the_brief_of_a_resumed_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: who goes on is told what is done, by summary, and what it is to do now."""
    agent = reporter(world)
    briefs: list[str] = []
    async with killed_at(world, agent, "after_step_started", "draft", monkeypatch) as handle:
        plain = agent.body

        async def with_brief(run: Run) -> Any:
            briefs.append(run.brief().text)
            assert (run.resumed, run.reason) == (True, "timed_out")
            return await plain(run)

        agent._body = with_brief
        async with world.process(agent):
            await handle_of(world, handle).result(PATIENCE_S)
    (brief,) = briefs
    assert brief.splitlines() == [
        'Task of reporter: {"topic":"tides"}',
        "Done so far:",
        '- research: ["tides a","tides b"]',
        "- outline: 2 parts",
    ]


def handle_of(world: World, handle: RunHandle) -> RunHandle:
    """The same run, from a process that lives."""
    return RunHandle(MemorySession(world.log, "p-asks"), handle.id)  # type: ignore[arg-type]


# --- retries and reviews ---------------------------------------------------------------------------------


async def test_a_step_is_retried_twice_and_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal (N5): two retries, each with its own attempt and temperature 0; the third try may succeed."""
    monkeypatch.setattr("refold.client.agents.stepping.RETRY_PAUSE_S", 0.001)
    seen: list[tuple[int, bool, float | None, str]] = []
    agent = Agent("flaky", version="1")

    async def try_it(step: Step) -> str:
        seen.append((step.attempt, step.rerun, step.temperature, step.key.partition("/")[2]))
        if len(seen) < 3:
            raise ConnectionError("not now")
        return "at last"

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("try", try_it)

    async with world.process(agent) as process:
        handle = await process.start()
        assert await handle.result(PATIENCE_S) == "at last"
    assert seen == [(1, False, None, "try/1"), (2, True, 0.0, "try/2"), (3, True, 0.0, "try/3")]


@pytest.mark.parametrize(
    ("error", "retries", "tries", "code"),
    [
        (NonRetryable("no such topic", code="no_topic"), 2, 1, "no_topic"),
        (ConnectionError("down"), 2, 3, "ConnectionError"),
        (ConnectionError("down"), 0, 1, "ConnectionError"),
        (UsageError("wrong call"), 2, 1, "UsageError"),
    ],
)
async def test_what_fails_for_good_waits_for_a_person(
    world: World, error: Exception, retries: int, tries: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal (N5): the run is in review, no process holds it; `retry` lets it go on from the failed step."""
    monkeypatch.setattr("refold.client.agents.stepping.RETRY_PAUSE_S", 0.001)
    agent = Agent("flaky", version="1")
    mended = False

    def first() -> int:
        world.ran["first"] += 1
        return 1

    async def second(_: int) -> str:
        world.ran["second"] += 1
        if not mended:
            raise error
        return "mended"

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("second", second, await run.step("first", first), retries=retries)

    async with world.process(agent) as process:
        handle = await process.start()
        with pytest.raises(RunInReview) as told:
            await handle.result(PATIENCE_S)
        assert told.value.code == code
        assert world.ran == {"first": 1, "second": tries}
        assert world.row(handle).data["holder"] is None
        await world.until(lambda: process.server.running == 0)
        mended = True
        await handle.retry(by="ada", reason="mended")
        assert await handle.result(PATIENCE_S) == "mended"
    assert world.ran == {"first": 1, "second": tries + 1}


async def test_a_body_that_says_failed_ends_its_run(world: World) -> None:
    agent = Agent("strict", version="1")

    @agent.run
    async def body(run: Run) -> None:
        raise RunFailed("nothing to report", code="empty")

    async with world.process(agent) as process:
        handle = await process.start()
        with pytest.raises(RunFailed, match="nothing to report") as told:
            await handle.result(PATIENCE_S)
    assert told.value.code == "empty"


async def test_a_fault_of_the_body_is_mended_by_another_version(world: World) -> None:
    """Goal: an exception between steps loses nothing: the run waits for another version."""
    broken = Agent("reporter", version="1")
    mended = Agent("reporter", version="2")

    def one() -> int:
        world.ran["one"] += 1
        return 1

    @broken.run
    async def wrong(run: Run) -> None:
        await run.step("one", one)
        raise KeyError("no such thing")

    @mended.run
    async def right(run: Run) -> StepResult:
        return await run.step("one", one)

    async with world.process(broken) as process:
        handle = await process.start()
        with pytest.raises(RunInReview, match="KeyError") as told:
            await handle.result(PATIENCE_S)
        assert told.value.code == "KeyError"
    async with world.process(mended):
        other = handle_of(world, handle)
        await other.move_pin("2", by="ada")
        await other.retry(by="ada")
        assert await other.result(PATIENCE_S) == 1
    assert world.ran["one"] == 1


# --- what has changed ------------------------------------------------------------------------------------


async def test_a_renamed_step_is_noticed_before_it_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a body that does not ask for what is recorded does no harm, and says what is wrong."""
    monkeypatch.setattr("refold.client.agents.stepping.REPLAY_GRACE_S", 0.02)
    assert REPLAY_GRACE_S > 1
    agent = reporter(world)
    renamed = Agent("reporter", version="1")

    def never() -> None:
        world.ran["never"] += 1

    @renamed.run
    async def other(run: Run) -> None:
        await run.step("investigate", never)

    async with killed_at(world, agent, "before_step", "outline", monkeypatch) as handle:
        async with world.process(renamed):
            with pytest.raises(RunInReview, match=r"'research'.*names or order have changed") as told:
                await handle_of(world, handle).result(PATIENCE_S)
    assert told.value.code == "BodyChanged"
    assert world.ran["never"] == 0


async def test_a_body_that_ends_early_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = reporter(world)
    shorter = Agent("reporter", version="1")

    @shorter.run
    async def other(run: Run) -> str:
        return "nothing"

    async with killed_at(world, agent, "before_step", "outline", monkeypatch) as handle:
        async with world.process(shorter):
            with pytest.raises(RunInReview, match="ends, but the run has recorded 'research'"):
                await handle_of(world, handle).result(PATIENCE_S)


async def invalidated(
    world: World, monkeypatch: pytest.MonkeyPatch, outputs: list[str], mode: Any
) -> RunHandle:
    """a → b → c, killed before its end; then a's output is said to hold no more."""
    agent = Agent("chain", version="1")

    def a() -> str:
        world.ran["a"] += 1
        return outputs[world.ran["a"] - 1]

    def b(given: str) -> str:
        world.ran["b"] += 1
        return given[:1]

    def c(given: str) -> str:
        world.ran["c"] += 1
        return given

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("c", c, await run.step("b", b, await run.step("a", a)))

    async with killed_at(world, agent, "after_step_completed", "c", monkeypatch) as handle:
        await handle_of(world, handle).invalidate(["a"], mode=mode, by="ada")
        async with world.process(agent):
            await handle_of(world, handle).result(PATIENCE_S)
    return handle


@pytest.mark.parametrize(
    ("outputs", "mode", "ran"),
    [
        (["x", "x"], "by_digest", {"a": 2, "b": 1, "c": 1}),
        (["xa", "xb"], "by_digest", {"a": 2, "b": 2, "c": 1}),
        (["x", "y"], "by_digest", {"a": 2, "b": 2, "c": 2}),
        (["x", "x"], "all", {"a": 2, "b": 2, "c": 2}),
    ],
)
async def test_invalidation_goes_along_what_was_read(
    world: World, outputs: list[str], mode: str, ran: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal (N6): readers run again where the output differs, or all of them; nothing else does."""
    await invalidated(world, monkeypatch, outputs, mode)
    assert world.ran == ran


async def test_a_step_with_an_effect_is_not_repeated_silently(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what it read has changed, so it is stale; it runs again only when a person says so, then as a new
    operation with a new key."""
    agent = Agent("pages", version="1")
    titles = ["old", "new"]

    def title() -> str:
        world.ran["title"] += 1
        return titles[world.ran["title"] - 1]

    async def publish(text: str, step: Step) -> str:
        return world.publish(text, step.key)

    @agent.run
    async def body(run: Run) -> StepResult:
        made = await run.step("title", title)
        return await run.step("publish", publish, made, effect="external", lookup=world.lookup)

    async with killed_at(world, agent, "after_step_completed", "publish", monkeypatch) as handle:
        other = handle_of(world, handle)
        await other.invalidate(["title"], by="ada")
        async with world.process(agent):
            with pytest.raises(RunInReview, match="'publish' had an effect outside") as told:
                await other.result(PATIENCE_S)
            assert told.value.code == "StaleStep"
            assert list(world.done.values()) == ["page 1: old"]
            await other.retry(rerun=["publish"], by="ada")
            assert await other.result(PATIENCE_S) == "page 2: new"
    assert [key.partition("/")[2] for key in world.done] == ["publish/body:1/1", "publish/body:2/1"]


async def test_a_step_invalidated_while_its_body_goes_on_runs_again_before_the_end(world: World) -> None:
    """Goal: no run completes on outputs that hold no more."""
    agent = Agent("late", version="1")
    outputs = iter(["old", "new"])
    handle: RunHandle | None = None

    def first() -> str:
        return next(outputs)

    async def last(given: str) -> str:
        world.ran["last"] += 1
        if given == "old":
            assert handle is not None
            await handle_of(world, handle).invalidate(["first"])
        return given

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("last", last, await run.step("first", first))

    async with world.process(agent) as process:
        handle = await process.start()
        assert await handle.result(PATIENCE_S) == "new"
    assert world.ran["last"] == 2
    assert world.log.types.count("RunLeased") == 1


# --- effects ---------------------------------------------------------------------------------------------


async def test_an_unknown_effect_is_never_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: without a lookup nobody can tell; a person rules on the call, and the run goes on with that."""
    monkeypatch.setattr("refold.client.tools.aftermath.SETTLE_S", 0.01)
    agent = Agent("letters", version="1")

    async def send(step: Step) -> str:
        world.ran["send"] += 1
        return "sent"

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("send", send, effect="external")

    def dies(point: str, run_id: str, step: str) -> None:
        killer(point, run_id, step)

    killer = Killer("after_step_started", "send")
    monkeypatch.setattr(POINTS, "watch", dies)
    async with world.process(agent, name="p-first") as first:
        handle = await first.start()
        # It died inside the call: the ledger knows that it was started.
        real = first.session.tool_completed

        async def lost(*args: Any, **kwargs: Any) -> Any:
            first.session.dead = True
            return await real(*args, **kwargs)

        monkeypatch.setattr(first.session, "tool_completed", lost)
        await world.until(lambda: first.session.dead)
    world.lease_over()
    other = handle_of(world, handle)
    async with world.process(agent):
        with pytest.raises(RunInReview, match="nobody can tell") as told:
            await other.result(PATIENCE_S)
        assert told.value.code == "outcome_unknown"
        await other.session.tool_completed(f"{handle.id}/send/body:1", "sent, says the carrier")
        await other.retry(by="ada")
        assert await other.result(PATIENCE_S) == "sent, says the carrier"
    assert world.ran["send"] == 1


async def test_a_step_may_be_a_declared_tool(world: World) -> None:
    """Goal: effect, lookup and key are the tool's; a known failure may be tried again as a new operation."""
    agent = Agent("orders", version="1")
    refusals = iter([NotDone("busy"), None])

    @agent.tool(effect="external", lookup=world.lookup)
    async def order(article: str, amount: int, call: ToolCall) -> str:
        """Order it."""
        if (refused := next(refusals)) is not None:
            raise refused
        return world.publish(f"{amount} {article}", call.key)

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("order", order, "chairs", 4)

    async with world.process(agent) as process:
        handle = await process.start()
        assert await handle.result(PATIENCE_S) == "page 1: 4 chairs"
    assert list(world.done) == [f"{handle.id}/order/body:2/1"]
    assert world.attempts("order") == [1, 2]


# --- tools and approvals ---------------------------------------------------------------------------------


async def test_a_run_waits_for_approval_without_a_process(world: World) -> None:
    """Goal: the calls that may run do; the run is suspended, held by nobody, and goes on when it is ruled."""
    agent = Agent("clerk", version="1")

    @agent.tool(effect="external", lookup=world.lookup, approval=True)
    async def pay(amount: int, call: ToolCall) -> str:
        """Pay."""
        return world.publish(str(amount), call.key)

    @agent.tool(effect="none")
    def stock(article: str) -> int:
        """How many."""
        world.ran["stock"] += 1
        return 4

    asked = [
        {"type": "function", "id": "c1", "function": {"name": "pay", "arguments": '{"amount": 5}'}},
        {"type": "function", "id": "c2", "function": {"name": "stock", "arguments": '{"article": "x"}'}},
    ]

    @agent.run
    async def body(run: Run) -> Any:
        results = await run.tools(asked, message_id="m1")
        return [result["content"] for result in results.value]

    async with world.process(agent) as process:
        handle = await process.start()
        await world.until(lambda: world.row(handle).state == "waiting")
        await world.until(lambda: process.server.running == 0)
        waiting = world.row(handle).data["waiting_for"]
        assert waiting == [f"{handle.id}/tools/m1:c1"]
        assert not world.done
    async with world.process(agent) as process:
        other = handle_of(world, handle)
        await other.session.approve(waiting[0], by="ada")
        assert await other.result(PATIENCE_S) == ["page 1: 5", "4"]
    assert world.ran["stock"] == 1
    assert list(world.done) == [f"{handle.id}/tools/m1:c1/1"]


# --- leases, pins, drains --------------------------------------------------------------------------------


async def test_only_versions_that_fit_take_a_pinned_run(world: World) -> None:
    """Goal: the first taker pins the run; another version needs to accept it, or the pin is moved."""
    async with world.process(reporter(world, version="4")) as process:
        handle = await process.start(input={"topic": "tides"}, pin="3")
        async with world.process(reporter(world, version="5", accepts=("3",))):
            assert await handle.result(PATIENCE_S) == PUBLISHED
    row = world.row(handle)
    assert (row.data["pin"], row.data["version"]) == ("3", "5")
    assert not any(code == "pin_mismatch" for _, code in world.log.refused)


def waiter(world: World, gate: asyncio.Event, **options: Any) -> Agent:
    agent = Agent("waiter", version="1", lease=60.0, **options)

    async def long() -> str:
        world.ran["long"] += 1
        await gate.wait()
        return "done"

    def then(_: str) -> str:
        world.ran["then"] += 1
        return "after"

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("then", then, await run.step("long", long))

    return agent


async def test_a_drain_lets_running_steps_reach_their_end(world: World) -> None:
    """Goal: no further step begins, the lease is given back, and another process goes on at once."""
    gate = asyncio.Event()
    async with world.process(waiter(world, gate)) as first:
        handle = await first.start()
        await world.until(lambda: world.ran["long"] == 1)
        first.stop.set()
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.wait_for(first.task, PATIENCE_S) == "drained"  # type: ignore[arg-type]
        assert world.log.types[-1] == "RunReleased"
        assert world.ran["then"] == 0
    async with world.process(waiter(world, gate)):
        assert await handle.result(PATIENCE_S) == "after"
    assert world.ran == {"long": 1, "then": 1}
    assert world.log.types.count("TimerFired") == 0


async def test_a_drain_that_takes_too_long_gives_steps_up(world: World) -> None:
    """Goal: the step begins again elsewhere as the same attempt; the run is not held until its lease ends."""
    gate = asyncio.Event()
    async with world.process(waiter(world, gate), drain_s=0.01) as first:
        handle = await first.start()
        await world.until(lambda: world.ran["long"] == 1)
        first.stop.set()
        assert await asyncio.wait_for(first.task, PATIENCE_S) == "cut_short"  # type: ignore[arg-type]
        assert world.log.types[-1] == "RunReleased"
    gate.set()
    async with world.process(waiter(world, gate)):
        assert await handle.result(PATIENCE_S) == "after"
    assert world.attempts("long") == [1, 1]


async def test_who_lost_the_run_stops_and_writes_nothing(world: World) -> None:
    """Goal (N2): hearing of another holder, the body is cancelled; what it would say counts not."""
    gate, cancelled = asyncio.Event(), asyncio.Event()
    agent = Agent("waiter", version="1", lease=60.0)

    async def long(step: Step) -> str:
        world.ran["long"] += 1
        if world.ran["long"] > 1:
            return "by the second"
        try:
            await gate.wait()
        finally:
            cancelled.set()
        return "by the first"

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("long", long)

    async with world.process(agent, name="p-first") as first:
        handle = await first.start()
        await world.until(lambda: world.ran["long"] == 1)
        async with world.process(agent, name="p-second") as second:
            first.stop.clear()
            world.lease_over()
            assert await handle_of(world, handle).result(PATIENCE_S) == "by the second"
            await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
            await world.until(lambda: first.server.running == second.server.running == 0)
    assert world.log.types.count("StepCompleted") == 1
    assert world.attempts("long") == [1, 1]


async def test_a_stopped_run_ends_where_it_is(world: World) -> None:
    gate = asyncio.Event()
    async with world.process(waiter(world, gate)) as process:
        handle = await process.start()
        await world.until(lambda: world.ran["long"] == 1)
        await handle_of(world, handle).stop("changed my mind", by="ada")
        with pytest.raises(RunStopped):
            await handle.result(PATIENCE_S)
        await world.until(lambda: process.server.running == 0)
    assert world.ran == {"long": 1}


async def test_branches_of_a_body_run_side_by_side_and_resume(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: parallel steps are recorded and replayed, in whatever order they come."""
    agent = Agent("wide", version="1")

    async def part(n: int) -> int:
        world.ran[f"part{n}"] += 1
        await asyncio.sleep(0)
        return n

    def total(parts: list[int]) -> int:
        return sum(parts)

    async def branch(run: Run, n: int) -> StepResult:
        first = await run.step(f"first{n}", part, n)
        return await run.step(f"second{n}", part, first)

    @agent.run
    async def body(run: Run) -> StepResult:
        parts = await asyncio.gather(*(branch(run, n) for n in range(3)))
        return await run.step("total", total, list(parts))

    async with killed_at(world, agent, "before_step_completed", "second1", monkeypatch) as handle:
        async with world.process(agent):
            assert await handle_of(world, handle).result(PATIENCE_S) == 3
    assert len(world.row(handle).steps) == 0
    done = Counter((e.payload or {})["step_id"] for e in world.log.journal if e.type == "StepCompleted")
    assert set(done.values()) == {1}
    assert len(done) == 7


async def test_many_processes_share_the_work_and_no_run_is_executed_twice(world: World) -> None:
    """Goal: every step runs once however many processes hear of its run."""
    agent = reporter(world)
    processes = [world.process(agent, name=f"p-{n}") for n in range(4)]
    for process in processes:
        await process.__aenter__()
    handles = [await processes[0].start(input={"topic": f"t{n}"}) for n in range(4)]
    for handle in handles:
        await handle.result(PATIENCE_S)
    for process in processes:
        await process.__aexit__(None, None, None)
    assert world.ran == dict.fromkeys(STEPS, 4)
    assert len(world.done) == 4


async def test_a_step_that_shows_no_life_goes_to_another_process(world: World) -> None:
    """Goal (N7): silence fails the step, the run is taken elsewhere, and who held it leaves it alone."""
    gate = asyncio.Event()
    agent = waiter(world, gate)
    async with world.process(agent, name="p-first") as first:
        handle = await first.start()
        await world.until(lambda: world.ran["long"] == 1)
        row = world.log.state.runs[handle.id].steps["long"]
        assert row.heartbeat_ms == 300_000
        until = row.heartbeat_until_ms
        assert until is not None
        # The lease is renewed, the step is silent.
        world.log.state.runs[handle.id].lease_until_ms = until + 3_600_000
        world.log.clock.advance(until - world.log.clock.now_ms() + 1)
        fire_timers(world.log)
        assert world.log.state.runs[handle.id].reason == "heartbeat"
        gate.set()
        async with world.process(agent, name="p-second"):
            assert await handle_of(world, handle).result(PATIENCE_S) == "after"
    assert world.attempts("long") == [1, 2]
    assert (world.log.state.runs[handle.id].version, first.server.running) == ("1", 0)


# --- what a body must not do, and what may go wrong around it ---------------------------------------------


async def test_steps_do_not_nest(world: World) -> None:
    """Goal: a step inside of a step would be missing when the outer one is replayed: it is refused."""
    agent = Agent("nested", version="1")

    @agent.run
    async def body(run: Run) -> StepResult:
        async def outer() -> Any:
            return (await run.step("inner", lambda: 1)).value

        return await run.step("outer", outer)

    async with world.process(agent) as process:
        handle = await process.start()
        with pytest.raises(RunInReview, match="steps do not nest"):
            await handle.result(PATIENCE_S)


async def test_a_body_awaits_its_steps(world: World) -> None:
    """Goal: a run does not end while a step of it runs; the body is told so, once."""
    agent = Agent("hasty", version="1")

    async def slow() -> None:
        await asyncio.Event().wait()

    @agent.run
    async def body(run: Run) -> str:
        forgotten = asyncio.ensure_future(run.step("slow", slow))
        await run.step("quick", lambda: 1)
        return "done" if not forgotten.done() else ""

    async with world.process(agent) as process:
        handle = await process.start()
        with pytest.raises(RunInReview, match="returned while step 'slow' runs"):
            await handle.result(PATIENCE_S)
        await world.until(lambda: process.server.running == 0)


async def test_what_runs_beside_a_failed_step_is_recorded_first(world: World) -> None:
    """Goal: a failure for good takes the run from this process, not what its other steps have done."""
    agent = Agent("wide", version="1")
    gate = asyncio.Event()
    mended = False

    async def slow() -> str:
        world.ran["slow"] += 1
        await gate.wait()
        return "slow"

    async def fails() -> str:
        if not mended:
            asyncio.get_running_loop().call_later(0.05, gate.set)
            raise NonRetryable("no")
        return "mended"

    @agent.run
    async def body(run: Run) -> list[Any]:
        return list(await asyncio.gather(run.step("slow", slow), run.step("fails", fails)))

    async with world.process(agent) as process:
        handle = await process.start()
        with pytest.raises(RunInReview):
            await handle.result(PATIENCE_S)
        mended = True
        await handle.retry()
        assert await handle.result(PATIENCE_S) == ["slow", "mended"]
    assert world.ran["slow"] == 1


async def test_two_that_fail_for_good_do_not_wait_for_each_other(world: World) -> None:
    agent = Agent("wide", version="1")

    async def fails() -> str:
        raise NonRetryable("no")

    @agent.run
    async def body(run: Run) -> list[Any]:
        return list(await asyncio.gather(run.step("a", fails), run.step("b", fails)))

    async with world.process(agent) as process:
        handle = await process.start()
        with pytest.raises(RunInReview):
            await handle.result(PATIENCE_S)
        await world.until(lambda: process.server.running == 0)


async def test_a_body_in_a_thread_keeps_its_run(world: World) -> None:
    """Goal: what cannot be cancelled is not given back: another process would run the step beside it."""
    gate = threading.Event()
    agent = Agent("threads", version="1", lease=60.0)

    def stuck() -> str:
        world.ran["stuck"] += 1
        if world.ran["stuck"] == 1:
            gate.wait(PATIENCE_S)
        return "done"

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("stuck", stuck)

    async with world.process(agent, drain_s=0.01) as first:
        handle = await first.start()
        await world.until(lambda: world.ran["stuck"] == 1)
        first.stop.set()
        assert await asyncio.wait_for(first.task, PATIENCE_S) == "cut_short"  # type: ignore[arg-type]
    assert world.row(handle).state == "leased"
    assert "RunReleased" not in world.log.types
    gate.set()
    world.lease_over()
    async with world.process(agent):
        assert await handle.result(PATIENCE_S) == "done"


async def test_where_nothing_answers_the_run_is_left_and_not_failed(world: World) -> None:
    """Goal: a body that cannot reach Kafka between two steps is no fault of the body."""
    agent = Agent("cut-off", version="1", lease=60.0)

    @agent.run
    async def body(run: Run) -> str:
        world.ran["body"] += 1
        if world.ran["body"] == 1:
            raise TransientError("nothing answers")
        return "done"

    async with world.process(agent, name="p-first") as first:
        handle = await first.start()
        await world.until(lambda: world.ran["body"] == 1 and first.server.running == 0)
        assert world.row(handle).state == "leased"
        world.lease_over()
        assert await handle.result(PATIENCE_S) == "done"


async def test_a_step_says_that_it_is_alive(world: World) -> None:
    """Goal: heartbeats are events, a few per heartbeat time however often the step asks for them."""
    agent = Agent("alive", version="1", lease=60.0, step_heartbeat=1.0)

    async def long(step: Step) -> int:
        async with asyncio.timeout(PATIENCE_S):
            while (said := world.log.types.count("StepHeartbeat")) < 2:
                step.heartbeat()
                step.check()
                await asyncio.sleep(0.01)
        return said

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("long", long)

    async with world.process(agent) as process:
        handle = await process.start()
        assert await handle.result(PATIENCE_S) == 2


async def test_a_closed_sessions_run_rests_until_it_is_reopened(world: World) -> None:
    """Goal (N9): no step begins in a closed session, no process holds its run, and nothing has failed."""
    agent = Agent("rests", version="1", lease=60.0)

    async def closes() -> int:
        await handle_of(world, handle).session.close()
        return 1

    def then(n: int) -> int:
        return n + 1

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("then", then, await run.step("closes", closes))

    async with world.process(agent) as process:
        handle = await process.start()
        await world.until(lambda: world.log.types[-1] == "RunReleased" and process.server.running == 0)
        await handle_of(world, handle).session.reopen()
        assert await handle.result(PATIENCE_S) == 2
    assert world.log.types.count("RunLeased") == 2


async def test_a_time_out_is_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.agents.stepping.RETRY_PAUSE_S", 0.001)
    agent = Agent("slow", version="1")

    async def slow() -> str:
        world.ran["slow"] += 1
        if world.ran["slow"] == 1:
            await asyncio.Event().wait()
        return "done"

    @agent.run
    async def body(run: Run) -> StepResult:
        return await run.step("slow", slow, timeout=0.01)

    async with world.process(agent) as process:
        handle = await process.start()
        assert await handle.result(PATIENCE_S) == "done"
    assert world.attempts("slow") == [1, 2]


async def test_more_steps_than_a_run_holds_end_it(world: World) -> None:
    """Goal: there is no room for the failed step that would send it to the review either."""
    agent = Agent("endless", version="1")

    @agent.run
    async def body(run: Run) -> None:
        while True:
            await run.step("again", lambda: 1)

    async with world.process(agent) as process:
        handle = await process.start()
        with pytest.raises(RunFailed, match="64 steps") as told:
            await handle.result(PATIENCE_S)
    assert told.value.code == "runs_full"


async def test_an_agent_that_cannot_hear_of_runs_says_so() -> None:
    """Goal: no right to read the topic ends serving with that error, and not in silence."""

    class Deaf:
        async def work(self) -> AsyncGenerator[Any, None]:
            raise PermissionDenied("no right to read")
            yield

        def session(self, tenant: str, session: str) -> Any:
            raise AssertionError

    agent = Agent("deaf", version="1")
    with pytest.raises(PermissionDenied, match="no right to read"):
        await Server(agent, Deaf(), "p", 1).serve(asyncio.Event(), 1.0)


def test_what_an_agent_is_declared_with_is_checked() -> None:
    with pytest.raises(UsageError, match=r"lease=0\.1"):
        Agent("a", version="1", lease=0.1)
    with pytest.raises(UsageError, match="a list of at most"):
        Agent("a", version="1", accepts="2")
    with pytest.raises(UsageError, match="version has 1 to 128 bytes"):
        Agent("a", version="")
    agent = Agent("a", version="1")
    with pytest.raises(UsageError, match="no body"):
        _ = agent.body
    agent.run(lambda run: asyncio.sleep(0))
    with pytest.raises(UsageError, match="a body already"):
        agent.run(lambda run: asyncio.sleep(0))


@pytest.mark.parametrize(("over", "code"), [("stopped", "already_final"), ("deleted", "unknown_run")])
async def test_a_run_that_is_over_is_asked_for_once(world: World, over: str, code: str) -> None:
    """Goal: a process that missed the run's tombstone learns from the refusal, and does not go on asking."""
    agent, session = reporter(world), MemorySession(world.log)
    holding = Holding(agent, "p", 1, lambda tenant, name: session)  # type: ignore[arg-type, return-value]
    await session.run_started("r1", agent.name, wait="accepted")
    holding.told(session.key + b"#r1", work_items(world.log.state)["r1"])
    if over == "stopped":
        await session.run_stopped("r1", wait="accepted")
    else:
        await session.delete(wait="accepted")
    assert holding.dispatch() is None
    await world.until(lambda: bool(world.log.refused))
    await holding.drain(PATIENCE_S)
    assert holding.dispatch() is None
    assert world.log.refused == [("RunLeased", code)]
