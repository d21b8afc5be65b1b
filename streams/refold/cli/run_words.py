"""Runs in words: whom or what one waits for. Its row says so in codes (docs/concepts/runs.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from refold.core.runstate import STEP_STATES, RunReason

#: Why a run that nobody holds became ready.
READY_BECAUSE: Final[Mapping[RunReason, str]] = {
    "new": "nobody has had it yet",
    "timed_out": "the last holder's lease ran out",
    "released": "the last holder gave it back",
    "approval": "the calls it waited for are ruled on",
    "review": "a person said retry",
    "heartbeat": "a step of the last holder fell silent",
}


def waits_for(
    state: str, reason: str, holder: str | None, calls: Iterable[str] = (), error: str | None = None
) -> str:
    """One phrase; empty for a run that is over. ``reason`` counts while it is ready: later it is what made it
    ready last. ``calls``: those that wait for a person, where they are known."""
    if state == "ready":
        because = next((words for code, words in READY_BECAUSE.items() if code == reason), reason)
        return f"a process of its agent ({because})"
    if state == "leased":
        return f"{holder}, which executes it"
    if state == "waiting":
        named = ", ".join(calls)
        return f"a person's ruling on {named or 'its calls'} (`refold review list`)"
    if state == "review":
        failed = f"; {error}" if error else ""
        return f"a person: `refold run retry` or `refold run fail`{failed}"
    return ""


def row_waits_for(row: Mapping[str, Any]) -> str:
    """:func:`waits_for` of a run's row as a snapshot has it."""
    return waits_for(row["state"], row["reason"], row["holder"], row["waiting_for"], row["error"])


def steps_counted(steps: Iterable[Mapping[str, Any]]) -> str:
    """``2 completed, 1 running``."""
    states = Counter(step["state"] for step in steps)
    return ", ".join(f"{states[state]} {state}" for state in STEP_STATES if states[state])
