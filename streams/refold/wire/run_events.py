"""Payloads of runs, steps and the timer as the values the fold understands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from refold.core import run_events as ev
from refold.core.runstate import BlobRef, InputRef, StepRead

Record = dict[str, Any]


def _ref(record: Record | None) -> BlobRef | None:
    return None if record is None else BlobRef(**record)


def _step(r: Record) -> tuple[str, str, int, str, int]:
    return r["run_id"], r["step_id"], r["attempt"], r["holder"], r["epoch"]


DECODERS: Final[Mapping[str, Callable[[Record, Any], ev.RunEvent | ev.TimerFired]]] = {
    "RunStarted": lambda r, _: ev.RunStarted(
        r["run_id"], r["agent"], r["pin"], r["input"], _ref(r["input_ref"]), r["retries_max"]
    ),
    "RunLeased": lambda r, _: ev.RunLeased(
        r["run_id"], r["holder"], r["lease_ms"], r["epoch"], r["version"], tuple(r["accepts"])
    ),
    "RunReleased": lambda r, _: ev.RunReleased(r["run_id"], r["holder"], r["epoch"]),
    "RunSuspended": lambda r, _: ev.RunSuspended(
        r["run_id"], r["holder"], r["epoch"], tuple(r["waiting_for"])
    ),
    "RunCompleted": lambda r, _: ev.RunCompleted(
        r["run_id"], r["holder"], r["epoch"], r["output"], _ref(r["output_ref"]), r["summary"]
    ),
    "RunFailed": lambda r, _: ev.RunFailed(r["run_id"], r["holder"], r["epoch"], r["code"], r["error"]),
    "RunStopped": lambda r, _: ev.RunStopped(r["run_id"], r["reason"]),
    "RunResolved": lambda r, _: ev.RunResolved(r["run_id"], r["action"], r["reason"]),
    "RunPinMoved": lambda r, _: ev.RunPinMoved(r["run_id"], r["pin"]),
    "PlanSet": lambda r, _: ev.PlanSet(
        r["run_id"], r["holder"], r["epoch"], tuple([ev.PlannedStep(**item) for item in r["steps"]])
    ),
    "StepStarted": lambda r, _: ev.StepStarted(
        r["run_id"],
        r["step_id"],
        r["name"],
        r["attempt"],
        r["holder"],
        r["epoch"],
        tuple([InputRef(**item) for item in r["inputs"]]),
        r["effect"],
        r["rerunnable"],
        r["heartbeat_ms"],
    ),
    "StepCompleted": lambda r, _: ev.StepCompleted(
        *_step(r),
        r["output"],
        _ref(r["output_ref"]),
        r["output_digest"],
        r["summary"],
        tuple([StepRead(**item) for item in r["reads"]]),
    ),
    "StepFailed": lambda r, _: ev.StepFailed(*_step(r), r["code"], r["error"], r["retryable"]),
    "StepHeartbeat": lambda r, _: ev.StepHeartbeat(*_step(r)),
    "StepInvalidated": lambda r, _: ev.StepInvalidated(
        r["run_id"], tuple(r["steps"]), r["mode"], r["approved"]
    ),
    "TimerFired": lambda r, _: ev.TimerFired(r["deadline_ms"]),
}
