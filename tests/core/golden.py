"""Makes tests/golden/session_history.json: ``python -m core.golden`` in tests/."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from refold.core import Accepted, Session, initial
from refold.core.envelope import Actor, InboxOrigin, SessionLink
from refold.core.forkbase import strip
from refold.errors import InvalidRecord
from refold.wire.codec import encode_body
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import event_payload
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import (
    SESSION,
    TENANT,
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

GOLDEN = Path(__file__).parents[1] / "golden" / "session_history.json"

Item = tuple[tuple[str, dict[str, Any]], dict[str, Any]]


def play(inbox: Inbox, value: bytes, append_ms: int) -> tuple[str, str, str]:
    """One record: its ruling, and digests of the journal so far and of the state."""
    ruling = inbox.put(value, append_ms)
    journal = hashlib.sha256(b"".join(inbox.journal)).hexdigest()
    state = encode_snapshot(inbox.session) if inbox.session.exists else b""
    shown = (
        repr(ruling)
        if isinstance(ruling, Accepted)
        else repr(ruling).split(":")[0] + ")" * (":" in repr(ruling))
    )
    return shown, journal, hashlib.sha256(state).hexdigest()


def base_of(session: Session) -> bytes:
    """What a fork of the session begins with."""
    base = decode_session(encode_snapshot(session))
    strip(base)
    return encode_snapshot(base)


def script() -> Iterator[Item]:
    """Every implemented type, every kind of ruling, branches, a summary, trimming, elision, a quarantine."""

    def plain(item: tuple[str, dict[str, Any]], **fields: Any) -> Item:
        return item, fields

    def stamped(counter: int, item: tuple[str, dict[str, Any]], **fields: Any) -> Item:
        stamp = {"producer_id": "chat-backend-1", "producer_epoch": 7, "producer_counter": counter}
        return item, {**stamp, **fields}

    link = SessionLink("child", "parent-1", 42, "run1/step2/c3/1")
    yield plain(
        event(
            "SessionOpened", agent="support", config_json='{"model":"m-1","temperature":0}', window_messages=8
        ),
        link=link,
    )
    yield plain(event("SessionConfigured", window_bytes=65_536))
    yield stamped(1, message("s1", "system", "Be brief. 短く。"))
    yield stamped(
        2,
        message("u1", content="Refund order 17, please"),
        actor=Actor("user", "anna", "Anna"),
        subject="anna",
    )
    yield stamped(2, message("u1", content="Refund order 17, please"))
    yield stamped(
        3,
        message(
            "a1",
            "assistant",
            [
                text("Looking."),
                call("call_0", "find_order", '{"id":17}', "op-1"),
                call("call_1", "policy", '{"cut": '),
            ],
            model="m-1",
            provider="local",
            finish_reason="tool_calls",
            usage={"input": 12, "output": 9, "cached": 0, "reasoning": 3},
        ),
    )
    yield stamped(4, intended("op-1", "call_0", "find_order", arguments='{"id":17}', effect="read"))
    yield stamped(5, step("ToolCallStarted", "op-1"))
    yield stamped(6, outcome("op-1", "call_0", '{"total": 30}', summary="30 EUR"))
    yield stamped(7, message("t1", "tool", [result("call_1", "No policy found", is_error=True)]))
    yield stamped(8, message("a2", "assistant", "Refund 30 EUR?", parent_id="t1"))
    yield plain(message("u2", content="yes"))
    yield plain(message("u2", content="no"))
    yield plain(
        intended("op-2", None, "refund", arguments='{"total":30}', effect="write", approval_required=True)
    )
    yield plain(step("ToolCallStarted", "op-2"))
    yield plain(step("ToolCallApprovalRequested", "op-2"))
    yield plain(step("ToolCallApproved", "op-2", by="boss"))
    yield plain(step("ToolCallStarted", "op-2", attempt=1, fencing=5))
    yield plain(step("ToolCallOutcomeUnknown", "op-2", reason="timeout"))
    yield plain(outcome("op-2", failed=True))
    yield plain(outcome("op-2", failed=True, reconciled=True, error="never arrived"))
    yield plain(intended("op-3", None, "refund"))
    yield plain(step("ToolCallDenied", "op-3", reason="limit"))
    yield plain(outcome("op-9", None, "early bird"))
    yield plain(event("FactSet", name="order", value='{"id":17,"total":30}'))
    yield plain(event("FactSet", name="gone", value="1"))
    yield plain(event("FactRemoved", name="gone"))
    yield plain(message("a3", "assistant", "It failed."))
    yield plain(message("a3'", "assistant", "It did not go through.", parent_id="u2"))
    yield plain(message("u3", content="x" * 40_000))
    yield plain(event("BranchSwitched", head_message_id="a3"))
    yield plain(event("BranchSwitched", head_message_id="u3"))
    yield plain(message("a4", "assistant", "Too long."))
    for turn in range(5, 9):
        yield plain(message(f"u{turn}"))
        yield plain(message(f"a{turn}", "assistant"))
    yield plain(
        event("ContextSummarized", text="Order 17: refund failed.", through_message_id="a6", model="m-1")
    )
    yield plain(event("SourceRecordKept", source="test", index=1, record=b"{}"))
    yield plain(("TokensCounted", {}), payload=b"\x00 not for us")
    yield plain(event("SessionClosed", reason="done"))
    yield plain(message("u9"))
    yield plain(event("SessionReopened"))
    yield plain(message("u9"), event_id="u9 again", expected_seq=3)
    yield plain(event("SessionQuarantined", code="InvariantViolation", reason="S2", partition=3, offset=1))
    yield stamped(9, message("u10"))
    yield plain(event("SessionReleased", by="sre"))
    yield stamped(9, message("u10"), origin=InboxOrigin("refold.rejected", 3, 9, 1_760_000_000_000, 0, True))
    yield plain(event("SessionReleaseFinished", accepted=1))
    yield plain(message("u11", content=""))
    yield plain(event("SessionDeleted"))
    yield plain(message("u1", content="a new beginning"))
    yield plain(started("g1", "a1", params='{"style":"brief"}', config_digest="d" * 64, context_seq=1))
    yield plain(started("g1", "a1", params='{"style":"brief"}', holder="h9"))
    yield plain(started("g2", "b1", reply_to="u1", durability="relaxed"))
    yield plain(event("GenerationLeaseRenewed", **_held("g1"), provider_response_id="resp_1"))
    yield plain(attempted("g1", 2, reason="too early"))
    yield plain(attempted("g2", 2, mode="restart", holder="h1"))
    yield plain(event("GenerationStopped", generation_id="g2", reason="the user left"))
    yield plain(finished("g1", "", 0, message_id="a1", content="Hello again.", finish_reason="stop"))
    yield plain(finished("g2", "", 1, message_id="b1", parent_id="u1", attempt=2))
    yield plain(event("GenerationFailed", generation_id="g2", attempt=2, code="provider", error="503"))
    yield plain(intended("op-4", None, "refund", effect="external"))
    yield plain(step("ToolCallStarted", "op-4"))
    yield plain(event("ToolCallReconciled", **_looked_after("op-4", 1), outcome="claimed", lease_ms=1_000))
    yield plain(event("ToolCallReconciled", **_looked_after("op-4", 1), outcome="not_done"))
    yield plain(step("ToolCallStarted", "op-4", attempt=2))
    yield plain(event("ReducerReleased", name="orders", version=1, at_seq=2, state=b"{}"))
    yield plain(event("UsageRecorded", model="m-1", subject="anna", input=12, output=9))
    yield plain(event("UsageAdmitted", lease_id="l1", model="m-1", subject="anna", lease_ms=1_000))
    yield plain(event("UsageReleased", lease_id="l1", model="m-1", subject="anna"))
    yield from _runs(plain)
    yield from _family(plain)
    yield from _operations(plain)


def _operations(plain: Callable[..., Item]) -> Iterator[Item]:
    """A fork with a policy, double texting, a path brought back, pruning."""
    source = Inbox(initial(TENANT, "source-1"))
    source.ok(event("SessionOpened", window_messages=4), message("fu1", content="once"))
    for turn in range(2, 5):
        source.ok(message(f"fa{turn}", "assistant"), message(f"fu{turn}"))
    source.ok(message("fu5", parent_id="fa4"), event("FactSet", name="city", value='"Oslo"'))
    yield plain(event("SessionDeleted"))
    base = encode_snapshot(source.session)
    yield plain(event("SessionForked", source="source-1", source_seq=source.session.seq + 1, base=base))
    yield plain(event("SessionForked", source="source-1", source_seq=source.session.seq, base=base))
    stripped = base_of(source.session)
    forked = event("SessionForked", source="source-1", source_seq=source.session.seq, base=stripped)
    yield plain(forked)
    yield plain(forked)
    yield plain(event("SessionConfigured", policy={"on_busy": "branch"}))
    yield plain(started("g5", "fa6", lease_ms=90_000))
    yield plain(message("fu6"))
    yield plain(finished("g5", "", 0, message_id="fa6", content="Late."))
    yield plain(event("SessionPruned", branches=["fa6"], by="anna"))
    yield plain(event("SessionPruned", all_branches=True, ended=True, facts=["city"]))
    yield plain(event("SessionPruned", ended=True))
    restored = {
        "message_id": "fu1",
        "parent": "",
        "seq": 2 - (source.session.seq + 1),
        "time_ms": 1_760_000_001_000,
        "turn_start": True,
        "role": "user",
        "body": event_payload(*message("fu1", content="once")),
    }
    yield plain(event("ContextRestored", head_message_id="fu1", messages=[{**restored, "seq": -1}]))
    yield plain(event("ContextRestored", head_message_id="fu1", messages=[restored]))


def _runs(plain: Callable[..., Item]) -> Iterator[Item]:
    """Every event of runs and steps, and the timer twice: early, and when something is due."""

    def held(type_name: str, epoch: int, **fields: Any) -> Item:
        return plain(event(type_name, run_id="r1", holder=f"agent-{epoch}", epoch=epoch, **fields))

    def of_step(type_name: str, epoch: int, step_id: str, attempt: int = 1, **fields: Any) -> Item:
        return held(type_name, epoch, step_id=step_id, attempt=attempt, **fields)

    yield plain(event("RunStarted", run_id="r1", agent="report", input=b'{"topic":"tea"}', title="Tea"))
    yield plain(event("RunStarted", run_id="r1", agent="report", input=b'{"topic":"coffee"}'))
    yield held("RunLeased", 1, lease_ms=9_000, version="v1")
    yield held("PlanSet", 1, steps=[{"step_id": s, "name": s, "summary": f"do {s}"} for s in ("a", "b")])
    yield of_step("StepStarted", 1, "a", name="a", inputs=[{"name": "topic", "digest": "1" * 64}])
    yield of_step("StepHeartbeat", 1, "a")
    yield of_step("StepCompleted", 1, "a", output=b"1", summary="one")
    read = {"step_id": "a", "digest": hashlib.sha256(b"1").hexdigest()}
    yield of_step("StepStarted", 1, "b", name="b", effect="external", heartbeat_ms=3_000)
    yield of_step("StepCompleted", 1, "b", output=b"2" * 2_000, reads=[read])
    yield plain(event("StepInvalidated", run_id="r1", steps=["a"], mode="all", by="anna"))
    yield of_step("StepStarted", 1, "a", attempt=2, name="a", heartbeat_ms=2_000)
    yield of_step("StepFailed", 1, "a", attempt=2, code="timeout", error="no answer")
    yield held("RunLeased", 1, lease_ms=5_000, version="v1")
    yield plain(event("TimerFired", deadline_ms=0))
    yield plain(message("u20"))
    yield plain(message("u21"))
    yield plain(message("u22"))
    yield plain(message("u23"))
    yield plain(event("TimerFired", deadline_ms=0))
    yield held("RunReleased", 1, reason="too late")
    yield plain(event("RunPinMoved", run_id="r1", pin="v2", by="anna"))
    yield held("RunLeased", 2, lease_ms=60_000, version="v1")
    yield held("RunLeased", 2, lease_ms=60_000, version="v2")
    yield plain(intended("op-5", None, "publish"))
    yield plain(step("ToolCallApprovalRequested", "op-5"))
    yield held("RunSuspended", 2, waiting_for=["op-5"])
    yield plain(step("ToolCallApproved", "op-5"))
    yield held("RunLeased", 3, lease_ms=60_000, version="v3", accepts=["v2"])
    yield of_step("StepStarted", 3, "a", attempt=3, name="a")
    yield of_step("StepFailed", 3, "a", attempt=3, code="gone", retryable=False)
    yield plain(event("RunResolved", run_id="r1", action="retry", by="anna"))
    yield held("RunLeased", 4, lease_ms=60_000, version="v2")
    yield held("RunReleased", 4, reason="drained")
    yield held("RunLeased", 5, lease_ms=60_000, version="v2")
    yield held("RunCompleted", 5, output=b'"done"', summary="done")
    yield plain(event("RunStarted", run_id="r2", agent="report", retries_max=0))
    yield plain(event("RunStopped", run_id="r2", reason="changed my mind"))
    yield plain(event("RunStarted", run_id="r3", agent="report"))
    yield plain(event("RunLeased", run_id="r3", holder="h", epoch=1, lease_ms=1, version="v1"))
    yield plain(event("RunFailed", run_id="r3", holder="h", epoch=1, code="model", error="refused"))


def _family(plain: Callable[..., Item]) -> Iterator[Item]:
    """A policy, and the sessions that belong to this one."""
    policy = {"summary_messages": 6, "summary_bytes": 4_096, "ttl_ms": 60_000}
    yield plain(event("SessionConfigured", policy=policy))
    yield plain(event("SessionConfigured", policy={"on_busy": "now"}))
    yield plain(event("ChildLinked", session="child-1", kind="child", call="op-4"))
    yield plain(event("ChildLinked", session="child-1", kind="child", call="op-4"))
    yield plain(event("ChildLinked", session="child-1", kind="fork"))
    yield plain(event("ChildLinked", session="fork-1", kind="fork"))
    yield plain(event("SessionConfigured", policy={"summary_messages": 0, "summary_bytes": 0, "ttl_ms": 0}))


def _held(generation_id: str) -> dict[str, Any]:
    return {"generation_id": generation_id, "attempt": 1, "holder": "h1", "lease_ms": 60_000}


def _looked_after(operation_id: str, attempt: int) -> dict[str, Any]:
    return {"operation_id": operation_id, "attempt": attempt, "holder": "w1"}


def write(path: Path) -> None:
    inbox = Inbox(initial(TENANT, SESSION))
    inbox.check = False
    records = []
    known = [bytes.fromhex(r["value"]) for r in json.loads(GOLDEN.read_text(encoding="utf-8"))["records"]]
    for number, ((type_name, fields), extra) in enumerate(script()):
        payload = extra.pop("payload", None)
        env = inbox.envelope(
            type_name,
            fields,
            payload=event_payload(type_name, fields) if payload is None else payload,
            event_id=extra.pop("event_id", f"golden-{number}"),
            **extra,
        )
        value = encode_envelope(env)
        if number < len(known) and _meaning(known[number]) == _meaning(value):
            # As its version wrote it: the states that older versions wrote are of these bytes.
            value = known[number]
        assert decode_envelope(value).raw == encode_body("refold.Envelope", _record(value))
        append_ms = inbox.clock
        ruling, journal, state = play(inbox, value, append_ms)
        records.append(
            {
                "value": value.hex(),
                "append_ms": append_ms,
                "ruling": ruling,
                "journal": journal,
                "state": state,
            }
        )
    path.parent.mkdir(exist_ok=True)
    body = ",\n".join(json.dumps(r) for r in records)
    path.write_text(f'{{"format": 1, "records": [\n{body}\n]}}\n', encoding="utf-8")


def _record(value: bytes) -> dict[str, Any]:
    from refold.wire.codec import decode

    return decode(value).record


def _meaning(value: bytes) -> dict[str, Any]:
    """What a record says, in the newest shape of its payload."""
    record = _record(value)
    with contextlib.suppress(InvalidRecord):
        record["payload"] = _record(record["payload"])
    return record


if __name__ == "__main__":
    write(GOLDEN)
    sys.stdout.write(f"{GOLDEN.name} written\n")
