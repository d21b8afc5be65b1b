"""Events of runs, short: each is about run ``r`` and step ``a``, from ``h<epoch>``, unless it says so."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from refold.core import Accepted, limits
from refold.core.runstate import Run, Step

from .build import Inbox, event

Item = tuple[str, dict[str, Any]]

MINUTE_MS = 60_000

#: As long as a name may be, less what makes it another one.
ID = "é" * (limits.RUN_NAME_BYTES_MAX // 2 - 4)


def run_started(run_id: str = "r", **fields: Any) -> Item:
    return event("RunStarted", run_id=run_id, agent=fields.pop("agent", "report"), **fields)


def leased(epoch: int = 1, run_id: str = "r", **fields: Any) -> Item:
    """Taken by ``h<epoch>``, or renewed."""
    fields = {"holder": f"h{epoch}", "lease_ms": MINUTE_MS, "version": "v1", **fields}
    return event("RunLeased", run_id=run_id, epoch=epoch, **fields)


def held(type_name: str, epoch: int = 1, run_id: str = "r", **fields: Any) -> Item:
    fields = {"holder": f"h{epoch}", **fields}
    return event(type_name, run_id=run_id, epoch=epoch, **fields)


def begun(step_id: str = "a", attempt: int = 1, epoch: int = 1, **fields: Any) -> Item:
    return held(
        "StepStarted", epoch, step_id=step_id, attempt=attempt, name=fields.pop("name", step_id), **fields
    )


def done(
    step_id: str = "a", output: bytes | None = b"1", attempt: int = 1, epoch: int = 1, **fields: Any
) -> Item:
    """``reads``: step id → the output that was read."""
    reads = [{"step_id": s, "digest": digest(o)} for s, o in fields.pop("reads", {}).items()]
    return held(
        "StepCompleted", epoch, step_id=step_id, attempt=attempt, output=output, reads=reads, **fields
    )


def step_failed(step_id: str = "a", attempt: int = 1, epoch: int = 1, **fields: Any) -> Item:
    fields = {"code": "boom", **fields}
    return held("StepFailed", epoch, step_id=step_id, attempt=attempt, **fields)


def invalidated(*steps: str, run_id: str = "r", **fields: Any) -> Item:
    return event("StepInvalidated", run_id=run_id, steps=list(steps), **fields)


def fired() -> Item:
    return event("TimerFired", deadline_ms=0)


def digest(output: bytes) -> str:
    return sha256(output).hexdigest()


def run_of(inbox: Inbox, run_id: str = "r") -> Run:
    return inbox.session.runs[run_id]


def step_of(inbox: Inbox, step_id: str = "a", run_id: str = "r") -> Step:
    return inbox.session.runs[run_id].steps[step_id]


def later(inbox: Inbox, ms: int) -> Inbox:
    """Time goes by: the next record is appended ``ms`` later."""
    inbox.clock += ms
    return inbox


def running(step_id: str = "a", **fields: Any) -> Inbox:
    """A leased run with one running step."""
    return Inbox().ok(run_started(), leased(), begun(step_id, **fields))


def fill_runs(inbox: Inbox) -> int:
    """The longest of everything until nothing more is taken. Returns how many steps were refused."""
    refused = 0
    for n in range(limits.OPEN_RUNS_MAX):
        by = {"run_id": f"{ID}{n}", "holder": f"{ID}h"}
        inbox.send(run_started(f"{ID}{n}", agent=f"{ID}a", pin=f"{ID}p", input=b"i" * 1_000))
        if f"{ID}{n}" not in inbox.session.runs:
            break
        inbox.ok(leased(1, **by, version=f"{ID}p"))
        for number in range(12):
            step_id = f"{ID}{number:02}"
            inputs = [{"name": f"{ID}{k}", "digest": "d" * 64} for k in range(16 if number % 3 else 1)]
            ruling = inbox.send(begun(step_id, 1, 1, **by, name=f"{ID}n", inputs=inputs, heartbeat_ms=10**9))
            if not isinstance(ruling, Accepted):
                refused += 1
            elif number % 2:
                inbox.ok(done(step_id, b"o" * 1_000, 1, 1, **by, summary="s" * 900))
            elif number % 4:
                inbox.ok(step_failed(step_id, 1, 1, **by, code="c" * 99, error="e" * 999))
    return refused
