"""Runs for the command line: open ones from the work topic, one of them from its session's state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from refold.cli.run_words import row_waits_for
from refold.client import Refold
from refold.client.agents.rows import RunRow, StepRow
from refold.client.agents.worksource import ClientSource
from refold.client.snapshots import ENDED_RUN_STATES
from refold.core.work import WorkItem
from refold.errors import NotFound


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


async def look_at(rf: Refold, session: str, run: str, payload: bool) -> dict[str, Any]:
    """The run as it is; the steps of one that is over as they were before it ended: the state has none then,
    so the session is folded up to there. Raises NotFound."""
    handle = rf.run(session, run)
    row = await handle.row()
    if row.state not in ENDED_RUN_STATES:
        return told_run(row, payload)
    seq = int(row.data["updated_seq"]) - 1
    before = None
    # A journal without its beginning cannot tell.
    with contextlib.suppress(NotFound):
        before = (await handle.session.at(seq)).run(run)
    if before is None:
        return told_run(row, payload)
    return told_run(row, payload, steps=RunRow.of(before).steps.values(), as_of=seq)


def told_run(
    row: RunRow, payload: bool, *, steps: Iterable[StepRow] | None = None, as_of: int | None = None
) -> dict[str, Any]:
    """A run and its steps, without what went in and came out. ``payload``: with the summaries, which are the
    beginning of what came out where the agent says nothing else. ``steps``: as of seq ``as_of``, where not
    the row's."""
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
        "updated_seq": data["updated_seq"],
        "steps_as_of": as_of,
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
            for step in (row.steps.values() if steps is None else steps)
        ],
    }


def in_words(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields and values of :func:`told_run` for a person: what it waits for in words and not in two codes."""
    for name, value in told.items():
        if name == "reason":
            yield "waits for", row_waits_for(told)
        elif name == "waiting_for":
            continue
        elif name != "steps":
            yield name, value
