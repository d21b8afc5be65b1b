"""Ways to die, and what each did.

A death at a *named point* is armed through the worker's point file (``REFOLD_POINT_FILE``): the worker
reads it at the next commit, does what it says when it reaches that point, and leaves a line in
``<file>.hit`` saying where it was and how many folded events its open commit held. So "in flight" is what
the worker saw at that very step, not a guess from outside. A death from outside (random moment) never
counts as in flight.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from refold.ops.fleet.journalwatch import JournalWatch
from refold.ops.fleet.worker import POLL_S, Fleet, WorkerProcess

#: Commit steps at which folded events are not yet committed.
IN_FLIGHT_POINTS: Final = ("after_begin", "after_send_offsets", "after_produce", "in_commit")
#: An armed point is reached with the next commit; with traffic in milliseconds. After that: from outside.
POINT_S_MAX: Final = 10.0
#: Restore by the others, and up to 10 s of the broker's scan for transactions that timed out (rule D): 15 s.
#: Three times that on a busy machine.
ZOMBIE_EXTRA_S_MAX: Final = 45.0
#: A worker that was fenced must notice within its next request to Kafka.
FENCED_S_MAX: Final = 30.0
#: A killed process ends at once; one that drains takes up to 20 s.
END_S_MAX: Final = 60.0


class DeathKind(StrEnum):
    KILL = "kill"  # SIGKILL
    TERM = "term"  # SIGTERM: a graceful stop that drains
    ZOMBIE = "zombie"  # SIGSTOP past the session timeout, then SIGCONT


@dataclass(slots=True)
class Death:
    """One death. ``events``: folded events the open commit held, as the worker wrote it down at the point."""

    worker: str
    kind: DeathKind
    point: str | None = None
    takeover: bool = False
    at_s: float = 0.0
    partitions: tuple[int, ...] = ()
    events: int = 0
    exit_code: int | None = None
    fenced: bool = False
    ticket: int = -1
    recovered_ms: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        return self.point in IN_FLIGHT_POINTS and self.events > 0

    @property
    def lines(self) -> list[str]:
        """For a person who watches the run: what happened, and what is noted of it."""
        step = f" at {self.point} holding {self.events} events" if self.point else ""
        happened = f"  {self.at_s:6.1f} s  {self.kind} {self.worker}{step}{'; fenced' * self.fenced}"
        return [happened, *(f"            {note}" for note in self.notes)]


#: Exit status of FencedError (refold.errors).
EXIT_FENCED: Final = 76


class Reaper:
    """Carries deaths out. ``owned(worker)`` says which partitions the worker holds right now."""

    def __init__(
        self,
        watch: JournalWatch,
        owned: Callable[[str], tuple[int, ...]],
        fleet: Fleet,
        *,
        session_timeout_s: float,
        started: float,
    ) -> None:
        self._watch = watch
        self._owned = owned
        self._fleet = fleet
        self._session_timeout_s = session_timeout_s
        self._started = started
        self.deaths: list[Death] = []

    async def carry_out(self, worker: WorkerProcess, death: Death) -> Death:
        """Kill, wait as the kind demands, start the worker again. Returns when it has been started again."""
        death.partitions = await asyncio.to_thread(self._owned, worker.name)
        wanted, death.point = death.point, None
        if wanted is not None:
            action = "stop" if death.kind is DeathKind.ZOMBIE else "kill"
            await self._at_point(worker, death, wanted, action)
        else:
            worker.signal(_SIGNALS[death.kind])
        death.at_s = round(time.monotonic() - self._started, 2)
        death.ticket = self._watch.died(death.partitions)
        self.deaths.append(death)
        if death.kind is DeathKind.ZOMBIE:
            await self._haunt(worker, death)
        else:
            death.exit_code = await asyncio.to_thread(worker.wait_end, END_S_MAX)
            if death.takeover:
                # Stay away until somebody else had to take over; static members leave by timeout only.
                await asyncio.sleep(self._session_timeout_s + 1.0)
        if worker.alive:
            worker.kill()
        worker.start()
        return death

    async def _others_ready(self, worker: WorkerProcess) -> bool:
        return any([await other.ready() for other in self._fleet.workers if other is not worker])

    def settle(self) -> None:
        """Fill in the recovery times known by now."""
        for death in self.deaths:
            death.recovered_ms = self._watch.recovered_ms(death.ticket)

    async def _at_point(self, worker: WorkerProcess, death: Death, point: str, action: str) -> None:
        hits = worker.point_path.with_name(f"{worker.point_path.name}.hit")
        hits.unlink(missing_ok=True)
        armed = worker.point_path.with_suffix(".tmp")
        armed.write_text(f"{point}:{action}")
        armed.replace(worker.point_path)
        deadline = time.monotonic() + POINT_S_MAX
        while not (hit := _first_line(hits)) and worker.alive and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S / 10)
        if hit := hit or _first_line(hits):
            row = json.loads(hit)
            death.point, death.events = row["point"], row["events"]
            return
        worker.point_path.unlink(missing_ok=True)
        death.notes.append(f"{point} was not reached within {POINT_S_MAX:.0f} s; killed from outside")
        worker.signal(_SIGNALS[death.kind])

    async def _haunt(self, worker: WorkerProcess, death: Death) -> None:
        """Wait until others own its partitions and serve them, wake it, see that it finds itself fenced."""
        deadline = time.monotonic() + self._session_timeout_s * 2 + ZOMBIE_EXTRA_S_MAX
        while time.monotonic() < deadline:
            if not await asyncio.to_thread(self._owned, worker.name) and await self._others_ready(worker):
                break
            await asyncio.sleep(POLL_S)
        before = _size(worker)
        worker.signal(signal.SIGCONT)
        deadline = time.monotonic() + FENCED_S_MAX
        while worker.alive and time.monotonic() < deadline:
            if _log_says_fenced(worker, before):
                break
            await asyncio.sleep(POLL_S)
        if not worker.alive:
            death.exit_code = await asyncio.to_thread(worker.wait_end, 5.0)
        death.fenced = death.exit_code == EXIT_FENCED or _log_says_fenced(worker, before)


def _first_line(path: Path) -> str:
    """The first line once it is complete: the file exists a moment before its content does."""
    try:
        line, end, _ = path.read_text().partition("\n")
    except OSError:
        return ""
    return line if end else ""


_SIGNALS: Final = {
    DeathKind.KILL: signal.SIGKILL,
    DeathKind.TERM: signal.SIGTERM,
    DeathKind.ZOMBIE: signal.SIGSTOP,
}


def _size(worker: WorkerProcess) -> int:
    return worker.log_path.stat().st_size


def _log_says_fenced(worker: WorkerProcess, offset: int) -> bool:
    """Whether the worker itself wrote, after ``offset``, that a commit of its was fenced."""
    with worker.log_path.open("rb") as log:
        log.seek(offset)
        return b"fenced" in log.read()
