"""Random histories: one composite strategy, ids from tiny pools so that everything collides."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from refold.core.progress import Batch, Delta

from .build import (
    Inbox,
    attempted,
    call,
    event,
    finished,
    intended,
    message,
    outcome,
    result,
    started,
    step,
    text,
)

CALL_IDS = st.sampled_from(["c0", "c1", "c2"])
OPERATIONS = st.sampled_from(["op0", "op1", "op2"])
GENERATIONS = st.sampled_from(["g0", "g1", "g2"])
PRODUCERS = st.sampled_from(["p0", "p1"])


@st.composite
def items(draw: st.DrawFn, number: int) -> tuple[str, dict[str, Any]]:
    """One event. ``number`` makes new message ids; old ones are drawn now and then."""
    kind = draw(st.integers(0, 22))
    message_id = f"m{number}" if draw(st.integers(0, 7)) else f"m{draw(st.integers(0, max(0, number - 1)))}"
    old = f"m{draw(st.integers(0, max(0, number)))}"
    parent = draw(st.sampled_from([None] * 8 + ["", old, old, "nowhere"]))
    if kind < 5:
        return message(
            message_id, "user", draw(st.sampled_from(["hi", "x" * 300, "y" * 40_000])), parent_id=parent
        )
    if kind < 7:
        return message(message_id, "assistant", "well", parent_id=parent)
    if kind < 10:
        calls = [
            call(draw(CALL_IDS), operation_id=draw(st.none() | OPERATIONS))
            for _ in range(draw(st.integers(1, 3)))
        ]
        return message(message_id, "assistant", [text("t"), *calls], parent_id=parent)
    if kind < 13:
        results = [result(draw(CALL_IDS), "r", draw(st.booleans())) for _ in range(draw(st.integers(1, 2)))]
        role = draw(st.sampled_from(["tool", "tool", "user"]))
        extra = [text("and")] if draw(st.integers(0, 5)) == 0 else []
        return message(message_id, role, [*results, *extra], parent_id=parent)
    if kind == 13:
        return message(message_id, "system", "s", replaces=draw(st.sampled_from([None, old])))
    if kind == 14:
        return intended(draw(OPERATIONS), draw(st.none() | CALL_IDS), approval_required=draw(st.booleans()))
    if kind == 15:
        name = draw(
            st.sampled_from(
                [
                    "ToolCallStarted",
                    "ToolCallApprovalRequested",
                    "ToolCallApproved",
                    "ToolCallDenied",
                    "ToolCallOutcomeUnknown",
                    "ToolCallReconciled",
                ]
            )
        )
        if name == "ToolCallReconciled":
            return event(
                name,
                operation_id=draw(OPERATIONS),
                attempt=draw(st.integers(1, 2)),
                holder=draw(st.sampled_from(["w1", "w2"])),
                outcome=draw(st.sampled_from(["claimed", "not_done"])),
            )
        if name == "ToolCallStarted":
            attempt = draw(st.sampled_from([1, 1, 1, 2]))
            return step(name, draw(OPERATIONS), attempt=attempt, lease_ms=draw(st.sampled_from([0, 60_000])))
        return step(name, draw(OPERATIONS))
    if kind == 16:
        return outcome(
            draw(st.none() | OPERATIONS),
            draw(CALL_IDS),
            failed=draw(st.booleans()),
            is_error=draw(st.booleans()),
            reconciled=draw(st.booleans()),
        )
    if kind == 17:
        return draw(
            st.sampled_from(
                [
                    event("ContextSummarized", text="so", through_message_id=old),
                    event("BranchSwitched", head_message_id=old),
                    event("FactSet", name="f", value="1"),
                    event("FactRemoved", name="f"),
                ]
            )
        )
    if kind == 18:
        return draw(
            st.sampled_from(
                [
                    *[event("SessionConfigured", window_messages=count) for count in (1, 2, 5, 20)],
                    event("SessionConfigured", hold_for_summary=True),
                    event("SessionConfigured", policy={"summary_messages": 2, "ttl_ms": 90_000}),
                    event("SessionConfigured", policy={"summary_messages": 0}, hold_for_summary=False),
                    event("ChildLinked", session="c1", kind="child", call="o1"),
                    event("ChildLinked", session="f1", kind="fork"),
                ]
            )
        )
    if kind == 19:
        return started(
            draw(GENERATIONS),
            draw(st.sampled_from([None, f"m{number}", old])),
            reply_to=parent,
            lease_ms=draw(st.sampled_from([0, 60_000])),
        )
    if kind == 20:
        generation_id, attempt = draw(GENERATIONS), draw(st.integers(1, 2))
        return draw(
            st.sampled_from(
                [
                    attempted(generation_id, attempt, holder="h1"),
                    attempted(generation_id, attempt, mode="restart"),
                    event(
                        "GenerationLeaseRenewed",
                        generation_id=generation_id,
                        attempt=attempt,
                        holder="h1",
                        lease_ms=1_000,
                    ),
                    event("GenerationStopped", generation_id=generation_id),
                    event("GenerationFailed", generation_id=generation_id, attempt=attempt, code="x"),
                ]
            )
        )
    return draw(
        st.sampled_from(
            [
                event("SessionClosed"),
                event("SessionReopened"),
                event("SessionReopened"),
                event("SessionDeleted"),
            ]
        )
    )


@st.composite
def histories(draw: st.DrawFn, longest: int = 40) -> Inbox:
    """A played inbox: every record was ruled and folded, with the invariants checked after each."""
    inbox = Inbox()
    counters: dict[str, int] = {}
    for number in range(draw(st.integers(1, longest))):
        if inbox.records and draw(st.integers(0, 9)) == 0:
            inbox.put(*draw(st.sampled_from(inbox.records)))
            continue
        fields: dict[str, Any] = {}
        if draw(st.booleans()):
            producer = draw(PRODUCERS)
            counters[producer] = counters.get(producer, 0) + 1
            fields = {"producer_id": producer, "producer_epoch": 1, "producer_counter": counters[producer]}
        if inbox.session.generations and draw(st.integers(0, 4)) == 0:
            generating(draw, inbox)
            continue
        inbox.send(draw(items(number)), **fields)
    return inbox


def generating(draw: st.DrawFn, inbox: Inbox) -> None:
    """A batch of one of the session's generations, or its finish, mostly as it should be."""
    row = inbox.session.generations[draw(st.sampled_from(sorted(inbox.session.generations)))]
    progress = inbox.progress[row.generation_id]
    if draw(st.booleans()):
        seq = progress.produced + draw(st.sampled_from([1, 1, 1, 0, 2]))
        attempt = row.attempt + draw(st.sampled_from([0, 0, 0, -1]))
        inbox.batch(Batch(row.generation_id, attempt, seq, (Delta("text", 0, b"ab"),)))
        return
    last_seq = progress.produced + draw(st.sampled_from([0, 0, 0, 1]))
    content = [text("t"), call(draw(CALL_IDS))] if draw(st.integers(0, 3)) == 0 else None
    inbox.send(
        finished(
            row.generation_id,
            "ab" * last_seq,
            last_seq,
            attempt=row.attempt,
            message_id=row.message_id,
            parent_id=row.reply_to,
            content=content,
        )
    )


#: What two holders, a person and a client do to one call and to three generations.
BUSY = (
    "start",
    "attempt",
    "renew",
    "stop",
    "fail",
    "batch",
    "batch",
    "finish",
    "finish",
    "message",
    "intend",
    "begin call",
    "reconcile",
    "reconcile",
    "unknown",
    "outcome",
    "close",
    "delete",
    "redeliver",
)


@st.composite
def busy_histories(draw: st.DrawFn) -> Inbox:
    """Generations and a call only, so that most events meet something: taken over, finished, looked after."""
    inbox = Inbox()
    steps = st.tuples(st.sampled_from(BUSY), st.sampled_from(["g0", "g1", "g2"]), st.integers(0, 5))
    for number, (name, generation_id, chance) in enumerate(
        draw(st.lists(steps, min_size=8, max_size=40)), start=1
    ):
        if name == "redeliver":
            if inbox.records:
                inbox.put(*inbox.records[chance % len(inbox.records)])
            continue
        if name in ("batch", "finish") and inbox.session.generations:
            generating(draw, inbox)
            continue
        item = _busy(inbox, name, generation_id, chance, number)
        if item is not None:
            inbox.send(item)
    return inbox


def _busy(
    inbox: Inbox, name: str, generation_id: str, chance: int, number: int
) -> tuple[str, dict[str, Any]] | None:
    holder = ("h1", "h2")[chance % 2]
    row = inbox.session.generations.get(generation_id)
    call_row = inbox.session.calls.get("op")
    attempt = 1 if row is None else row.attempt
    tried = 0 if call_row is None else call_row.attempt
    named = {"generation_id": generation_id, "attempt": attempt}
    match name:
        case "start" | "batch" | "finish":
            return started(generation_id, f"m{number}", holder=holder, lease_ms=0, reply_to=None)
        case "attempt":
            mode = ("continue", "restart")[chance % 2]
            return attempted(generation_id, attempt + 1, mode=mode, holder=holder, lease_ms=chance % 3)
        case "renew":
            return event("GenerationLeaseRenewed", **named, holder=holder, lease_ms=5_000 * (chance % 2))
        case "stop":
            return event("GenerationStopped", generation_id=generation_id)
        case "fail":
            return event("GenerationFailed", **named, code="x")
        case "message":
            return message(f"m{number - chance}", ("user", "assistant")[chance % 2])
        case "intend":
            return intended("op", "c")
        case "begin call":
            return step("ToolCallStarted", "op", attempt=tried + 1, holder=holder, lease_ms=0)
        case "reconcile":
            outcome_name = ("claimed", "not_done")[chance % 3 == 0]
            return event(
                "ToolCallReconciled",
                operation_id="op",
                attempt=tried,
                holder=holder,
                lease_ms=chance,
                outcome=outcome_name,
            )
        case "unknown":
            return step("ToolCallOutcomeUnknown", "op", attempt=tried)
        case "outcome":
            return outcome("op", "c", failed=chance == 0, attempt=tried) if chance < 3 else None
        case "close":
            return event(("SessionClosed", "SessionReopened")[chance % 2])
    return event("SessionDeleted") if chance == 0 else None
