"""``refold worker drain``: find who runs in a data directory, tell it to stop, wait, say how it ended.
Blocks.

A worker's directory is ``<data dir>/<prefix>``; of one process of several ``<data dir>/<i>/<prefix>``, whose
supervisor is in the former (:mod:`refold.engine.supervisor`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from refold.engine.drain import Ended, Order, Place, Running
from refold.errors import NotFound, PermissionDenied, UnavailableError

POLL_S: Final = 0.05

#: Over the order's own limit: the supervisor's margin (5 s), Faust's stop (2 s), the exit.
MARGIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Drained:
    """``ended`` is ``None`` for a process that ended without saying how: it was killed, or it failed."""

    instance: str
    ended: Ended | None


@dataclass(frozen=True, slots=True)
class _Target:
    """Whom to signal, and the workers that end by it."""

    place: Place
    running: Running
    workers: tuple[tuple[Place, str], ...]


def drain(
    data_dir: Path, prefix: str, instance: str | None, order: Order, say: Callable[[str], None]
) -> list[Drained]:
    """Drain the workers of the directory, or the one named ``instance``, and wait until they have ended.

    Raises NotFound when none runs there, PermissionDenied when it is another user's, UnavailableError when it
    has not ended after the order's limit and a margin.
    """
    target = _find(data_dir, prefix, instance)
    for place, _ in target.workers:
        place.order(order)
    if target.running.processes:
        target.place.order(order)
    try:
        os.kill(target.running.pid, signal.SIGTERM)
    except PermissionError:
        raise PermissionDenied(
            f"process {target.running.pid} in {target.place.directory} belongs to another user; drain it as"
            " that user"
        ) from None
    except ProcessLookupError:
        # It ended since it was looked for.
        pass
    say(f"draining {', '.join(name for _, name in target.workers)}, {order.seconds_max:g} s at most")
    end = time.monotonic() + order.seconds_max + MARGIN_S
    while target.place.busy:
        if time.monotonic() > end:
            raise UnavailableError(
                f"process {target.running.pid} has not ended {MARGIN_S:.0f} s after its limit. It may be"
                f" stopped (SIGSTOP) or waiting for the disk; kill it with `kill -9 {target.running.pid}`:"
                " nothing is lost"
            )
        time.sleep(POLL_S)
    found = []
    for place, name in target.workers:
        with contextlib.suppress(OSError):
            place.take_order()  # of a process that was gone before it could take it
        found.append(Drained(name, place.last_end()))
    return found


def left_here(data_dir: Path, prefix: str) -> dict[str, float]:
    """Workers that have drained in the directory, single ones and processes of several, and do not run again:
    when each ended, in seconds since the epoch."""
    places = [data_dir / prefix, *sorted(data_dir.glob(f"*/{prefix}"))]
    return dict(filter(None, (Place(place).left() for place in places)))


def _find(data_dir: Path, prefix: str, instance: str | None) -> _Target:
    single = Place(data_dir / prefix)
    if (running := single.running()) is not None and instance in (None, running.instance):
        return _Target(single, running, ((single, running.instance),))
    names = [] if running is None else [running.instance]
    group = Place(data_dir / prefix, "supervisor")
    if (supervisor := group.running()) is not None:
        children: list[tuple[Place, Running]] = []
        for index in range(supervisor.processes):
            place = Place(data_dir / str(index) / prefix)
            if (child := place.running()) is not None:
                children.append((place, child))
        if instance in (None, supervisor.instance):
            return _Target(group, supervisor, tuple((place, child.instance) for place, child in children))
        for place, child in children:
            if child.instance == instance:
                return _Target(place, child, ((place, child.instance),))
        names += [supervisor.instance, *(child.instance for _, child in children)]
    there = f"{', '.join(names)} there" if names else "none runs there"
    who = "no worker runs" if instance is None else f"worker {instance!r} does not run"
    raise NotFound(
        f"{who} with the data directory {data_dir} and the prefix {prefix} on this machine ({there}). Name"
        " them with --data-dir, --instance and --prefix as the worker was started"
    )
