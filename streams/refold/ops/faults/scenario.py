"""What a fault scenario is, and what it is given.

A scenario injects one fault under traffic and has everything compared afterwards. It must also *see* that the
fault struck (:meth:`Scene.gate`): one that met nothing proves nothing, and is played again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from refold.broker import EmbeddedBroker
from refold.errors import UnavailableError, UsageError
from refold.ops.fleet import WorkerProcess
from refold.ops.verify.plan import ChaosPlan
from refold.ops.verify.stage import Compared, Say, Stage
from refold.settings import Settings

POLL_S: Final = 0.1
#: Of one condition; a take-over, a restart and a restore on a machine with too much to do.
CONDITION_S_MAX: Final = 60.0
#: As a supervisor looks.
SUPERVISE_S: Final = 0.5


class NotMet(Exception):
    """A condition of the scenario did not come about: it is told as not shown, and everything is compared all
    the same."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``own_brokers``: it starts its brokers itself, and cannot be played on a user's cluster."""

    name: str
    injected: str
    expected: str
    play: Callable[[Scene], Awaitable[None]]
    own_brokers: bool = False
    #: Why it cannot be played here; ``None`` where it can.
    unavailable: Callable[[], str | None] = lambda: None


@dataclass(slots=True)
class Scene:
    """One play of one scenario. ``settings``: of a running cluster; not for those with ``own_brokers``."""

    plan: ChaosPlan
    say: Say
    directory: Path
    keep: bool
    settings: Settings | None = None
    seen: dict[str, Any] = field(default_factory=dict)
    not_shown: list[str] = field(default_factory=list)
    compared: Compared | None = None
    #: Workers that are down or stand still on purpose.
    held: set[str] = field(default_factory=set)
    #: What ends the fault. Called where a condition was not met; may be called twice.
    undo: list[Callable[[], object]] = field(default_factory=list)

    def gate(self, met: bool, what: str) -> None:
        """``what`` must have been seen, or the play was in vain."""
        if not met:
            self.not_shown.append(what)

    def stage(self, settings: Settings | None = None, **options: Any) -> Stage:
        """Not entered yet: workers may be configured before they start."""
        chosen = settings or self.settings
        if chosen is None:
            raise UsageError("this scenario starts brokers of its own")
        return Stage(self.plan, chosen, self.say, keep=self.keep, **options)

    @contextlib.contextmanager
    def broker(self, **options: Any) -> Iterator[EmbeddedBroker]:
        with EmbeddedBroker(self.directory / "broker", **options) as broker:
            yield broker

    @contextlib.asynccontextmanager
    async def acting(self, stage: Stage) -> AsyncIterator[None]:
        """Traffic and a supervisor during the block, the comparison after it. What the block waits for in
        vain is not shown."""
        stage.traffic.start()
        supervisor = asyncio.create_task(self._supervise(stage))
        try:
            try:
                yield
            except NotMet as missing:
                self.not_shown.append(str(missing))
                await asyncio.to_thread(self._relieve, stage)
            self.compared = await stage.compare()
        finally:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)

    async def until(
        self, what: str, condition: Callable[[], Any], seconds_max: float = CONDITION_S_MAX
    ) -> Any:
        """The condition's first true answer; it runs on a thread. Raises NotMet."""
        deadline = time.monotonic() + seconds_max
        while not (found := await asyncio.to_thread(condition)):
            if time.monotonic() > deadline:
                raise NotMet(what)
            await asyncio.sleep(POLL_S)
        return found

    async def until_ready(self, stage: Stage) -> None:
        """Every worker serves what it owns. Raises NotMet."""
        try:
            await stage.fleet.wait_ready()
        except UnavailableError as error:
            raise NotMet(f"the workers were not ready: {error}") from None

    def _relieve(self, stage: Stage) -> None:
        """A condition was not met: end the fault, so that what is there can be compared."""
        for undo in self.undo:
            undo()
        for worker in stage.fleet.workers:
            if worker.name in self.held:
                worker.kill()
                worker.start()
        self.held.clear()

    async def _supervise(self, stage: Stage) -> None:
        """Restart what a supervisor would; a worker that a scenario holds down says so by ``held``."""
        while True:
            await asyncio.sleep(SUPERVISE_S)
            for worker in stage.fleet.workers:
                if worker.name not in self.held and (code := worker.revive()) is not None:
                    self.say(f"    {worker.name} ended with exit code {code}; started again")
                    self.seen.setdefault("revived", []).append(code)


def log_rows(worker: WorkerProcess, since: int = 0) -> list[Mapping[str, Any]]:
    """The worker's log from byte ``since`` on, lines of JSON only."""
    rows: list[Mapping[str, Any]] = []
    with worker.log_path.open("rb") as log:
        log.seek(since)
        for line in log:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    rows.append(row)
    return rows


def log_size(worker: WorkerProcess) -> int:
    return worker.log_path.stat().st_size


def told(worker: WorkerProcess, event: str, since: int = 0, **fields: Any) -> Mapping[str, Any] | None:
    """The first line of this event (and these fields) after ``since``."""
    for row in log_rows(worker, since):
        if row.get("event") == event and all(row.get(name) == value for name, value in fields.items()):
            return row
    return None


def hits(worker: WorkerProcess) -> list[str]:
    """The points that this worker reached armed, in order (:mod:`refold.engine.points`)."""
    path = worker.point_path.with_name(f"{worker.point_path.name}.hit")
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(str(json.loads(line)["point"]))
    return found
