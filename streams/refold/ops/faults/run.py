"""Play scenarios one after the other, and say what came of each."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from refold.broker import EmbeddedBroker
from refold.errors import UsageError
from refold.ops.faults.catalog import BY_NAME
from refold.ops.faults.deaths import ROLLING_SESSION_MS
from refold.ops.faults.scenario import Scenario, Scene
from refold.ops.verify.chaos import SABOTAGES
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.stage import Say
from refold.settings import Settings

#: Plays of a scenario whose fault did not strike: timing on the machine decides, so the next one may differ.
PLAYS_MAX: Final = 3
#: While it goes on; all of them, up to their own limit, are told at the end.
DIFFERENCES_SAID_MAX: Final = 5
#: Scenarios in which a worker must keep its session through what is done to it.
SESSION_MS: Final = {
    "rolling-restart": ROLLING_SESSION_MS,
    "slow-consumer": 10_000,
    "state-leader-at-marker": 20_000,
}


@dataclass(slots=True)
class Played:
    """``skipped``: why it was not played. ``plays``: how many it took until the fault struck."""

    scenario: Scenario
    scene: Scene | None = None
    skipped: str | None = None
    seconds: float = 0.0
    plays: int = 0

    @property
    def clean(self) -> bool:
        scene = self.scene
        if scene is None or scene.compared is None:
            return self.skipped is not None
        return scene.compared.verdict.clean and not scene.not_shown

    @property
    def status(self) -> str:
        if self.skipped is not None:
            return "skipped"
        scene = self.scene
        if scene is None or scene.compared is None or not scene.compared.verdict.clean:
            return "different"
        return "not shown" if scene.not_shown else "clean"

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"name": self.scenario.name, "status": self.status}
        if self.skipped is not None:
            return {**row, "skipped": self.skipped}
        scene = self.scene
        if scene is None or scene.compared is None:
            return row
        verdict = scene.compared.verdict
        return {
            **row,
            "seconds": round(self.seconds, 1),
            "plays": self.plays,
            "seen": scene.seen,
            "not_shown": scene.not_shown,
            "events": scene.compared.events,
            "aborted_commits": scene.compared.aborted_commits,
            "pause_ms_max": scene.compared.pause_ms_max,
            "mismatches": verdict.mismatches,
            "regressions": verdict.regressions,
            "rpo_events": verdict.rpo_events,
            "differences": verdict.differences,
        }


def chosen(names: Sequence[str]) -> list[Scenario]:
    """All without names. Raises UsageError for one that is not there."""
    if unknown := [name for name in names if name not in BY_NAME]:
        raise UsageError(f"unknown scenario {', '.join(unknown)}; there are: {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names] if names else list(BY_NAME.values())


def play(
    scenarios: Sequence[Scenario],
    plan: ChaosPlan,
    settings: Settings | None,
    say: Say,
    *,
    keep: bool = False,
) -> list[Played]:
    """Blocks for about half a minute each. ``settings``: of the user's cluster; without, one broker is
    started for all that can share it. Raises UsageError for an unknown sabotage, and what a cluster refuses.
    """
    if plan.sabotage is not None and plan.sabotage not in SABOTAGES:
        raise UsageError(f"unknown sabotage {plan.sabotage!r}; there are: {', '.join(SABOTAGES)}")
    played = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refold-faults-")))
        shared = settings
        for scenario in scenarios:
            reason = scenario.unavailable()
            if reason is None and scenario.own_brokers and settings is not None:
                reason = "starts brokers of its own: run it without --bootstrap"
            if reason is not None:
                say(f"{scenario.name}: skipped, {reason}")
                played.append(Played(scenario, skipped=reason))
                continue
            if shared is None and not scenario.own_brokers:
                say("no --bootstrap: starting a Kafka for this run")
                broker = stack.enter_context(EmbeddedBroker(directory / "shared"))
                shared = Settings(kafka={"bootstrap": broker.bootstrap})
            mine = replace(plan, session_timeout_ms=SESSION_MS.get(scenario.name, plan.session_timeout_ms))
            played.append(_play(scenario, mine, None if scenario.own_brokers else shared, say, keep))
    return played


def _play(scenario: Scenario, plan: ChaosPlan, settings: Settings | None, say: Say, keep: bool) -> Played:
    found = Played(scenario)
    while found.plays < PLAYS_MAX:
        found.plays += 1
        say(f"{scenario.name}: {scenario.injected}")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="refold-fault-", ignore_cleanup_errors=True) as directory:
            scene = Scene(plan, say, Path(directory), keep, settings)
            asyncio.run(_awaited(scenario, scene))
        found.scene, found.seconds = scene, time.monotonic() - began
        say(f"{scenario.name}: {found.status} in {found.seconds:.0f} s; seen: {scene.seen}")
        for text in scene.not_shown:
            say(f"    not shown: {text}")
        if scene.compared is not None:
            for text in scene.compared.verdict.differences[:DIFFERENCES_SAID_MAX]:
                say(f"    {text}")
        if found.status != "not shown":
            break
    return found


async def _awaited(scenario: Scenario, scene: Scene) -> None:
    await scenario.play(scene)
