"""Runs for the command line: open ones from the work topic, one of them from its session's state."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from refold.client import Refold
from refold.client.agents.rows import RunRow
from refold.client.agents.worksource import ClientSource
from refold.core.work import WorkItem


async def open_runs(rf: Refold) -> list[WorkItem]:
    """All that are open, oldest first. Memory: the items, about 500 bytes each."""
    found: dict[bytes, WorkItem] = {}
    async with aclosing(ClientSource(rf).work(follow=False)) as source:
        async for told in source:
            for key, item in told.items():
                if item is None:
                    found.pop(key, None)
                elif item.kind == "run":
                    found[key] = item
    return sorted(found.values(), key=lambda item: (item.since_ms, item.tenant, item.session, item.seq))


def told_run(row: RunRow, payload: bool) -> dict[str, Any]:
    """A run and its steps, without what went in and came out. ``payload``: with the summaries, which are the
    beginning of what came out where the agent says nothing else."""
    data = row.data
    return {
        "run": row.run_id,
        "agent": data["agent"],
        "state": row.state,
        "reason": data["reason"],
        "pin": data["pin"],
        "version": data["version"],
        "epoch": row.epoch,
        "holder": data["holder"],
        "waiting_for": list(data["waiting_for"]),
        "summary": data["summary"] if payload else None,
        "error_code": data["error_code"],
        "error": data["error"],
        "started_seq": data["started_seq"],
        "steps": [
            {
                "step": step.step_id,
                "state": step.state,
                "attempt": step.attempt,
                "effect": step.effect,
                "reads": [name for name, _ in step.reads],
                "summary": step.summary if payload else None,
                "error": step.error and f"{step.error_code}: {step.error}",
            }
            for step in row.steps.values()
        ],
    }
