"""The schedule of deaths: each in the middle of a commit, at a step in turn, the control dying with it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Final

from refold.demo.controlled import Control
from refold.ops.fleet import Death, DeathKind, Fleet, Reaper, WorkerProcess

#: Quiet before the first death, so that its recovery restores something.
FIRST_S: Final = 5.0
#: From one death to the next. A restart takes about 3 s, a take-over the session time-out and 2 s more. The
#: control needs about 6 s (its dead member's session) and commits 5 s after it began: a shorter spacing would
#: never let it commit, which would be rigged.
SPACING_S: Final = 11.0
#: Every third worker stays away until the others have taken its partitions over.
TAKEOVER_EVERY: Final = 3
READY_S_MAX: Final = 25.0
POLL_S: Final = 0.1


async def kill_workers(
    fleet: Fleet, reaper: Reaper, control: Control, playing: asyncio.Event, say: Callable[[str], None]
) -> None:
    """Kill one worker after the other while ``playing`` is set."""
    points = itertools.cycle(("after_produce", "in_commit", "after_send_offsets", "after_begin"))
    await asyncio.sleep(FIRST_S)
    for number in itertools.count():
        if not playing.is_set():
            return
        began = time.monotonic()
        worker = fleet.workers[number % len(fleet.workers)]
        takeover = number % TAKEOVER_EVERY == TAKEOVER_EVERY - 1
        death = Death(worker.name, DeathKind.KILL, point=next(points), takeover=takeover)
        control_down = asyncio.create_task(control.die())
        await reaper.carry_out(worker, death)
        await control_down
        say(describe(death))
        await _until_ready(worker)
        await asyncio.sleep(max(0.0, SPACING_S - (time.monotonic() - began)))


def describe(death: Death) -> str:
    where = f"at {death.point}" if death.point else "between commits"
    how = "stayed away: the other worker takes over" if death.takeover else "restarted"
    held = f"holding {death.events} folded, uncommitted events" if death.in_flight else "nothing in flight"
    return f"  {death.at_s:6.1f} s  SIGKILL {death.worker} {where}, {held}; {how}"


async def _until_ready(worker: WorkerProcess) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        if await worker.ready():
            return
        await asyncio.sleep(POLL_S)
