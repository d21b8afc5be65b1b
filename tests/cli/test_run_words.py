"""What a run waits for, in words: every state and every reason has its own, and none shows a code."""

from __future__ import annotations

from itertools import product

import pytest

from refold.cli.run_words import READY_BECAUSE, row_waits_for, steps_counted, waits_for
from refold.core.runstate import RUN_REASONS, RUN_STATES

OVER = ("completed", "failed", "stopped")


def test_every_reason_has_words() -> None:
    assert set(READY_BECAUSE) == set(RUN_REASONS)
    said = [waits_for("ready", reason, None) for reason in RUN_REASONS]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize(("state", "reason"), product(RUN_STATES, RUN_REASONS))
def test_what_is_open_waits_for_somebody_and_what_is_over_for_nobody(state: str, reason: str) -> None:
    said = waits_for(state, reason, "agent-7", ["pay-1"], "step draft: no answer")
    assert (said == "") == (state in OVER)


def test_whom_it_waits_for_is_named() -> None:
    row = {"state": "waiting", "reason": "new", "holder": None, "waiting_for": ["p-1", "p-2"], "error": None}
    assert "p-1, p-2" in row_waits_for(row)
    assert "agent-7" in row_waits_for({**row, "state": "leased", "holder": "agent-7"})
    assert "no answer" in row_waits_for({**row, "state": "review", "error": "no answer"})


def test_steps_are_counted_by_state() -> None:
    states = ["pending", "completed", "completed", "running"]
    assert steps_counted({"state": state} for state in states) == "1 pending, 1 running, 2 completed"
    assert steps_counted([]) == ""
