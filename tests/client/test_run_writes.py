"""The events of runs as the SDK's methods write them: each is folded, and the envelope says whose it is."""

from __future__ import annotations

import inspect
from typing import Any

from core.build import Inbox, intended, step
from refold.client.receipts import Receipt
from refold.client.run_writes import RunWrites
from refold.client.writes import SessionWrites
from refold.core import Accepted
from refold.core.types import RUN_TYPES


class Writes(RunWrites):
    """Appends to an inbox in memory; keeps what was asked for."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.made: list[tuple[str, dict[str, Any]]] = []

    async def publish(self, event_type: str, payload: Any, **options: Any) -> Receipt:
        ruling = self.inbox.send((event_type, dict(payload)))
        assert isinstance(ruling, Accepted), (event_type, ruling)
        self.made.append((event_type, options))
        return Receipt.__new__(Receipt)


async def test_every_event_of_runs_has_a_method_and_is_folded() -> None:
    w = Writes()
    first: dict[str, Any] = {"holder": "h", "epoch": 1}
    await w.run_started("r", "report", input=b'{"n":1}', pin="v1", title="T")
    await w.run_leased("r", **first, version="v1")
    await w.plan_set("r", [{"step_id": "a", "name": "a"}, {"step_id": "b", "name": "b"}], **first)
    await w.step_started("r", "a", **first, inputs={"topic": "d" * 64}, effect="external")
    await w.step_heartbeat("r", "a", **first)
    await w.step_completed("r", "a", b"1", **first, summary="one", reads={"x": "d"})
    await w.steps_invalidated("r", ["a"], approved=True)
    await w.step_started("r", "a", step_attempt=2, **first)
    await w.step_failed("r", "a", "boom", step_attempt=2, **first, retryable=False)
    await w.run_resolved("r", "retry", by="anna")
    await w.run_pin_moved("r", "v2", by="anna")
    second: dict[str, Any] = {"holder": "h", "epoch": 2}
    await w.run_leased("r", **second, version="v3", accepts=["v2"])
    w.inbox.ok(intended("op"), step("ToolCallApprovalRequested", "op"))
    await w.run_suspended("r", ["op"], **second)
    w.inbox.ok(step("ToolCallApproved", "op"))
    third: dict[str, Any] = {"holder": "h", "epoch": 3}
    await w.run_leased("r", **third, version="v2")
    await w.run_released("r", **third)
    await w.run_leased("r", holder="h", epoch=4, version="v2")
    await w.run_completed("r", holder="h", epoch=4, output=b"1", summary="done")
    await w.run_started("q", "report")
    await w.run_leased("q", **first, version="v1")
    await w.run_failed("q", "model", **first, error="refused")
    await w.run_started("p", "report")
    await w.run_stopped("p", reason="changed my mind")
    assert {name for name, _ in w.made} == set(RUN_TYPES)
    assert {run.state for run in w.inbox.session.runs.values()} == {"completed", "failed", "stopped"}


async def test_the_envelope_says_run_step_and_attempt() -> None:
    w = Writes()
    await w.run_started("r", "report")
    await w.run_leased("r", holder="h", epoch=1, version="v1")
    await w.step_started("r", "a", holder="h", epoch=1)
    await w.step_completed("r", "a", None, holder="h", epoch=1, step="other")
    assert [options for _, options in w.made] == [
        {"run": "r"},
        {"run": "r"},
        {"run": "r", "step": "a", "attempt": 1},
        {"run": "r", "step": "other", "attempt": 1},
    ]


def test_no_method_hides_one_of_the_other_writes() -> None:
    own = {name for name, _ in inspect.getmembers(RunWrites, inspect.isfunction) if name in vars(RunWrites)}
    assert not own & set(vars(SessionWrites))
    assert len([name for name in own if not name.startswith("_")]) == len(RUN_TYPES)
