"""The pure rules of durable agents: which step is which, what a row says, what is read, briefed and taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refold.client.agents.brief import CurrentStep, make_brief
from refold.client.agents.current import Step, input_names, wants_step
from refold.client.agents.handles import StepResult, given, plain
from refold.client.agents.lease import RunLease
from refold.client.agents.limits import AVOID_S, BRIEF_BYTES_MAX, JITTER_S_MAX, JITTER_S_MIN
from refold.client.agents.outcomes import RunLeft
from refold.client.agents.past import StepPast, body_operation
from refold.client.agents.plans import fits
from refold.client.agents.points import AgentPoints
from refold.client.agents.replay import (
    Begin,
    Decision,
    Expected,
    Invalidate,
    Refuse,
    Replay,
    StepIds,
    decide_step,
)
from refold.client.agents.rows import StepRow
from refold.client.agents.taking import Contention
from refold.client.agents.values import decode, digest, encode, short, summary_of
from refold.client.agents.work import WorkTable
from refold.client.receipts import Ruling
from refold.core.work import WorkItem
from refold.errors import ConfigError, TransientError, UsageError

INPUTS = (("topic", "d1"),)


def row(state: str, **more: Any) -> StepRow:
    attempt = more.pop("attempt", 1)
    return StepRow(more.pop("step_id", "draft"), "draft", state, attempt, inputs=INPUTS, **more)


# --- which step is which ---------------------------------------------------------------------------------


def test_a_step_is_known_by_its_name_and_occurrence() -> None:
    """Goal: the same calls in the same order have the same ids, in every execution."""
    ids = StepIds()
    assert [ids.next(name) for name in ("a", "b", "a", "a")] == ["a", "b", "a@2", "a@3"]


@pytest.mark.parametrize("name", ["", "a@b", "x" * 101, "a\nb"])
def test_a_name_that_cannot_be_an_id_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="step name"):
        StepIds().next(name)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, Begin(1)),
        (row("pending", attempt=0), Begin(1)),
        (row("completed"), Replay()),
        (row("running"), Begin(1, again=True)),
        (row("running", attempt=2), Begin(2, again=True, rerun=True)),
        (row("failed"), Begin(2, again=True, rerun=True)),
        (row("invalid"), Begin(2, again=True, rerun=True)),
        (row("stale"), Refuse("stale")),
        (row("stale", rerunnable=True), Begin(2, again=True, rerun=True)),
    ],
)
def test_what_a_row_says(found: StepRow | None, expected: Decision) -> None:
    """Goal (N4): only a known outcome lets the attempt rise; what is valid is not run again."""
    assert decide_step(found, INPUTS, rerunnable=False) == expected


def test_other_inputs_do_not_get_the_recorded_output() -> None:
    other = (("topic", "d2"),)
    assert decide_step(row("completed"), other, rerunnable=False) == Invalidate(("topic",))
    assert decide_step(row("running", effect="external"), other, rerunnable=True) == Refuse("inputs")
    assert decide_step(row("running"), other, rerunnable=False) == Begin(1, again=True)
    assert decide_step(row("stale"), INPUTS, rerunnable=True) == Begin(2, again=True, rerun=True)


def test_recorded_steps_must_be_asked_for() -> None:
    """Goal: a renamed step is noticed while its old name is still missing."""
    rows = [row("completed", step_id="a"), row("running", step_id="b"), row("pending", step_id="c")]
    expected = Expected(rows)
    assert expected.missing == ("a", "b")
    expected.asked("a")
    expected.asked("b")
    assert expected.missing == ()


def test_behind_a_step_that_runs_again_nothing_is_expected() -> None:
    """Goal: a new output may lead elsewhere; that is no changed body."""
    rows = [row("completed", step_id="a"), row("invalid", step_id="b"), row("completed", step_id="c")]
    assert Expected(rows).missing == ("a",)
    rows[1] = row("completed", step_id="b", attempt=2)
    expected = Expected(rows)
    assert expected.missing == ("a",)
    expected.let_go()
    assert expected.missing == ()


def test_a_failed_body_is_not_expected_to_be_asked_for() -> None:
    failed = StepRow("@body", "@body", "failed", 1)
    assert Expected([failed]).missing == ()


# --- what is read ----------------------------------------------------------------------------------------


def test_a_handle_is_replaced_by_its_value_and_recorded_as_read() -> None:
    """Goal: reads are observed at any depth, once each, and plain values have digests of their own."""
    outline = StepResult("outline", {"parts": ["a"]}, "d-outline")
    made = given(["source", "more"], [outline, {"of": [outline, 1]}])
    assert made.values == ({"parts": ["a"]}, {"of": [{"parts": ["a"]}, 1]})
    assert made.reads == (("outline", "d-outline"),)
    assert made.inputs[0] == ("source", digest(encode({"parts": ["a"]}, "x")))
    assert made.named()["source"] == {"parts": ["a"]}
    assert plain([outline]) == [{"parts": ["a"]}]


def test_two_outputs_of_one_step_among_the_inputs_are_refused() -> None:
    with pytest.raises(UsageError, match="two outputs of step 'a'"):
        given(["x", "y"], [StepResult("a", 1, "d1"), StepResult("a", 2, "d2")])


def test_more_than_the_fold_takes_is_refused_before_the_step_runs() -> None:
    """Goal: nothing runs whose record would be refused afterwards."""
    with pytest.raises(UsageError, match="at most 16 inputs, not 17"):
        given([str(n) for n in range(17)], list(range(17)))
    with pytest.raises(UsageError, match="reads at most 32 other steps, not 33"):
        given(["all"], [[StepResult(f"s{n}", n, "d") for n in range(33)]])


def test_values_are_canonical_and_read_back_as_recorded() -> None:
    """Goal: equal values have equal digests, whatever their keys' order; what is no JSON is named."""
    assert digest(encode({"b": 1, "a": (1, 2)}, "x")) == digest(encode({"a": [1, 2], "b": 1}, "x"))
    assert decode(encode({"a": (1,)}, "x")) == {"a": [1]}
    with pytest.raises(UsageError, match="the output of step 'x' is not JSON"):
        encode({1, 2}, "the output of step 'x'")


def test_texts_are_cut_at_whole_characters() -> None:
    assert short("aé" * 10, 10).encode()
    assert len(short("é" * 50, 11).encode()) <= 11
    assert len(summary_of({"text": "x" * 1000})) == 160
    assert summary_of("two\nlines") == "two lines"


# --- functions -------------------------------------------------------------------------------------------


def test_a_function_is_given_its_step_by_annotation() -> None:
    def plain_one(outline: str, step: Step) -> None: ...
    def none(outline: str) -> None: ...

    assert wants_step(plain_one) == "step"
    assert wants_step(none) is None
    assert input_names(plain_one, 1, "step") == ["outline"]
    assert input_names(none, 2, None) == ["outline", "2"]
    assert input_names(print, 1, None) == ["1"]


# --- the brief -------------------------------------------------------------------------------------------


def test_a_brief_holds_what_is_valid_and_nothing_else() -> None:
    """Goal (N6): invalid, stale, failed and planned steps are in no brief."""
    rows = [
        row("completed", step_id="research", summary="three sources"),
        row("invalid", step_id="outline", summary="old outline"),
        row("stale", step_id="publish", summary="old page"),
        row("pending", step_id="later"),
    ]
    current = CurrentStep("outline", 2, {"sources": ["a", "b"]})
    brief = make_brief("reporter", {"topic": "tides"}, rows, current)
    assert [step.step_id for step in brief.steps] == ["research"]
    assert brief.text == (
        'Task of reporter: {"topic":"tides"}\nDone so far:\n- research: three sources\n'
        'Now: outline (attempt 2)\n  sources: ["a","b"]'
    )
    assert "old" not in str(brief)


def test_a_brief_is_bounded() -> None:
    rows = [row("completed", step_id=f"s{n}", summary="é" * 250) for n in range(64)]
    text = make_brief("a", "t", rows, CurrentStep("x", 1, {"big": "y" * 100_000})).text
    assert len(text.encode()) <= BRIEF_BYTES_MAX


def test_a_plan_is_sent_once() -> None:
    rows = {"a": row("completed", step_id="a"), "b": row("pending", step_id="b")}
    assert fits(rows, ["a", "b"])
    assert not fits(rows, ["a", "c"])
    assert not fits(rows, ["a"])


# --- operations of steps with effects ---------------------------------------------------------------------


def past(completions: int, *ends: str) -> int:
    made = StepPast(completions)
    for number, end in enumerate(ends, 1):
        made.ends[body_operation("r", "publish", number)] = end
    return made.number("r", "publish")


def test_a_step_with_an_effect_keeps_its_operation_until_the_effect_is_to_happen_again() -> None:
    """Goal: a result nobody was completed with is taken, not made a second time; a failure known to have had
    no effect, and an invalidated result, lead to a new operation."""
    assert past(0) == 1
    assert past(0, "done") == 1
    assert past(1, "done") == 2
    assert past(1, "done", "done") == 2
    assert past(0, "failed") == 2
    assert past(0, "failed", "done") == 2
    assert past(1, "failed", "done") == 3
    assert past(0, "denied") == 1


# --- work ------------------------------------------------------------------------------------------------


def item(run: str = "r1", **more: Any) -> WorkItem:
    fields: dict[str, Any] = {
        "kind": "run",
        "tenant": "t",
        "session": "s",
        "run": run,
        "agent": "reporter",
        "state": "ready",
        "reason": "new",
        "pin": None,
        "avoid": None,
        "epoch": 0,
        "holder": None,
        "lease_until_ms": None,
        "notices": 0,
        "since_ms": 1,
        "seq": 1,
    }
    return WorkItem(**{**fields, **more})


def key(run: str = "r1") -> bytes:
    return f"t/s#{run}".encode()


def chosen(table: WorkTable, now: float = 0.0, busy: frozenset[bytes] = frozenset()) -> str | None:
    found = table.choose(busy.__contains__, now, lambda count: 0)
    return None if found is None else found.run


def table(**more: Any) -> WorkTable:
    return WorkTable("reporter", ("3", "2"), "me", **more)


@pytest.mark.parametrize(
    ("heard", "fits_us"),
    [
        (item(), True),
        (item(pin="3"), True),
        (item(pin="2"), True),
        (item(pin="1"), False),
        (item(agent="other"), False),
        (item(state="leased"), False),
        (item(state="waiting"), False),
        (item(kind="summary"), False),
    ],
)
def test_only_ready_runs_that_fit_are_work(heard: WorkItem, fits_us: bool) -> None:
    """Goal: a process asks for nothing that its version could not run."""
    made = table()
    made.hear(key(), heard, 0.0)
    assert (chosen(made) == "r1") is fits_us


def test_a_run_taken_meanwhile_is_not_asked_for() -> None:
    """Goal: contention ends with hearing of it."""
    made = table()
    made.hear(key(), item(), 0.0)
    assert made.still(key(), 0)
    made.hear(key(), item(state="leased", epoch=1, holder="other/1"), 0.0)
    assert not made.still(key(), 0)
    assert chosen(made) is None
    made.hear(key(), item(reason="timed_out", epoch=1), 0.0)
    assert made.still(key(), 1)
    assert chosen(made) == "r1"
    made.hear(key(), None, 0.0)
    assert len(made) == 0


def test_who_is_to_be_avoided_waits() -> None:
    """Goal (N7): the process whose step was silent leaves the run to others, for a while."""
    made = table()
    made.hear(key(), item(avoid="me/abc", epoch=1), 100.0)
    assert chosen(made, 100.0) is None
    assert made.next_due(100.0) == pytest.approx(AVOID_S)
    assert chosen(made, 100.0 + AVOID_S) == "r1"
    made.hear(key(), item(avoid="you/abc", epoch=1), 100.0)
    other = table()
    other.hear(key(), item(avoid="you/abc", epoch=1), 100.0)
    assert chosen(other, 100.0) == "r1"


def test_busy_and_refused_runs_are_passed_over_and_memory_is_bounded() -> None:
    made = table(items_max=2)
    for run in ("r1", "r2", "r3"):
        made.hear(key(run), item(run), 0.0)
    assert len(made) == 2
    assert chosen(made, busy=frozenset({key("r1")})) == "r2"
    made.later(key("r1"), 0.0, 5.0)
    assert chosen(made) == "r2"
    assert chosen(made, 5.0) == "r1"
    made.forget(key("r1"))
    assert chosen(made, 5.0) == "r2"


def test_jitter_adapts_to_refusals() -> None:
    """Goal: alone nobody waits; among many the window grows to its bound, and shrinks again."""
    made = Contention()
    assert made.jitter(0.99) == 0.0
    made.refused()
    assert made.window_s == JITTER_S_MIN
    for _ in range(20):
        made.refused()
    assert made.window_s == JITTER_S_MAX
    assert made.jitter(0.5) == JITTER_S_MAX / 2
    for _ in range(60):
        made.granted()
    assert made.window_s == 0.0


# --- the lease -------------------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(clock: Time, answer: Ruling | Exception, lost: list[str]) -> RunLease:
    async def renew(_: float) -> Ruling:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return RunLease(10.0, 100.0, renew, lost.append, clock=clock)


async def test_a_lease_counts_from_before_it_was_asked_for_less_a_tenth() -> None:
    """Goal: who believes to hold it does; one that is over is over for good, and is told once."""
    clock, lost = Time(), []  # type: ignore[var-annotated]
    made = lease(clock, Ruling("accepted", 1), lost)
    assert made.left() == pytest.approx(9.0)
    clock.now = 108.9
    made.check()
    clock.now = 109.0
    with pytest.raises(RunLeft, match="stopped or cut off"):
        made.check()
    await made.renew()
    with pytest.raises(RunLeft):
        made.check()
    assert len(lost) == 1


async def test_a_renewal_lengthens_it_a_refusal_ends_it_and_silence_does_neither() -> None:
    clock, lost = Time(), []  # type: ignore[var-annotated]
    made = lease(clock, Ruling("accepted", 1), lost)
    clock.now = 105.0
    await made.renew()
    assert made.left() == pytest.approx(9.0)
    silent = lease(clock, TransientError("nothing answers"), lost)
    await silent.renew()
    assert silent.left() == pytest.approx(4.0)
    assert not lost
    refused = lease(clock, Ruling("rejected", None, "stale_holder", "another's"), lost)
    await refused.renew()
    assert refused.left() == 0.0
    assert lost == ["stale_holder: another's"]


async def test_the_clock_is_watched_while_nothing_is_asked() -> None:
    """Goal: a body is told the moment its lease is over, also when it begins no step."""
    told = asyncio.Event()

    async def renew(_: float) -> Ruling:
        await asyncio.Event().wait()
        raise AssertionError

    made = RunLease(0.1, 0.0, renew, lambda _: told.set(), clock=asyncio.get_running_loop().time)
    made._until = asyncio.get_running_loop().time() + 0.02
    made.start()
    async with asyncio.timeout(10):
        await told.wait()
    await made.stop()
    assert made.left() == 0.0


# --- points ----------------------------------------------------------------------------------------------


def test_points_of_a_run_are_named_and_watched() -> None:
    seen: list[tuple[str, str, str]] = []
    points = AgentPoints("before_step:raise:2:draft")
    points.watch = lambda *what: seen.append(what)
    points.reach("before_step", "r1", "draft")
    points.reach("before_step", "r1", "outline")
    with pytest.raises(Exception, match="before_step was reached"):
        points.reach("before_step", "r1", "draft")
    assert [step for _, _, step in seen] == ["draft", "outline", "draft"]
    with pytest.raises(ConfigError, match="REFOLD_AGENT_POINT='before_effect:kill'"):
        AgentPoints("before_effect:kill")
