"""What a worker puts around the application's reducers: a watch that finds slow and erratic ones (X3), and a
list of the parts that were quarantined, for the step to journal (X5).

The clock is looked at here and not in the core: what it says becomes a journalled event, so that a fold of
the journal comes to the same state. Where the worker itself folds journalled events again, nobody watches.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from refold.core import reducers
from refold.core.policystate import Reduced
from refold.core.reducers import Unfit
from refold.errors import ConfigError
from refold.reducers import load

#: Processor time of one event. The fold of everything else takes 0.05 ms, and all partitions of a worker wait
#: meanwhile.
SLOW_CPU_S: Final = 0.050
#: Wall time, for a reducer that waits: for a file, a lock, a sleep.
SLOW_WALL_S: Final = 1.0
#: Slow events in a row, over all sessions, before a part is quarantined. A collection of garbage, or a
#: machine that was suspended, makes one event slow.
SLOW_IN_A_ROW: Final = 3

#: One in so many events is folded twice.
TWICE_EVERY: Final = 16


class Guard:
    """A :class:`refold.core.reducers.Guard`. ``told(name, reason)``: of each part to be journalled."""

    def __init__(
        self,
        told: Callable[[str, str], None],
        cpu: Callable[[], float] = time.thread_time,
        wall: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._told = told
        self._cpu = cpu
        self._wall = wall
        self._slow: dict[str, int] = {}
        self._found: list[Reduced] = []

    def run(self, key: str, seq: int, name: str, step: Callable[[], bytes]) -> bytes:
        cpu, wall = self._cpu(), self._wall()
        made = step()
        if self._cpu() - cpu > SLOW_CPU_S or self._wall() - wall > SLOW_WALL_S:
            self._slow[name] = self._slow.get(name, 0) + 1
            if self._slow[name] >= SLOW_IN_A_ROW:
                raise Unfit("slow")
        else:
            self._slow.pop(name, None)
        if zlib.crc32(f"{key}/{seq}".encode()) % TWICE_EVERY == 0 and _again(step) != made:
            raise Unfit("non_deterministic")
        return made

    def quarantined(self, part: Reduced) -> None:
        self._found.append(part)

    def forget(self) -> None:
        """Of an event whose fold raised after its parts: nothing of it stands."""
        self._found.clear()

    def take(self) -> list[Reduced]:
        """The parts that the last event has quarantined, once."""
        found, self._found = self._found, []
        for part in found:
            self._told(part.name, (part.error or "").split(":")[0])
        return found


def _again(step: Callable[[], bytes]) -> bytes | None:
    try:
        return step()
    except Unfit:
        return None


def set_up(modules: Iterable[str], metrics: Any, log: Any) -> dict[str, int]:
    """Load the modules and watch what they declare; the versions by name. Raises ConfigError."""
    registry = load(modules)
    if registry is None:
        return {}

    def told(name: str, reason: str) -> None:
        metrics.count("refold_reducer_quarantined_total", reducer=name, reason=reason)
        log.error("reducer_quarantined", reducer=name, reason=reason, release="refold reducer release")

    registry.guard = Guard(told)
    log.info("reducers_loaded", versions=registry.versions)
    return registry.versions


def folded_with() -> Mapping[str, int]:
    """The versions of this process's reducers, for the metadata of what it commits (rule M)."""
    return {} if reducers.active is None else reducers.active.versions


def check_versions(partition: int, before: Mapping[str, int], removed: Iterable[str]) -> None:
    """Rule X4: whether this process may fold what a former owner has folded with these reducers.

    Raises ConfigError where it has an older version, or none: its events would be missing in the parts.
    """
    mine = folded_with()
    for name, version in sorted(before.items()):
        if name in removed:
            continue
        if name not in mine:
            raise ConfigError(
                f"partition {partition} was folded with the reducer {name}, which this worker does not have."
                " Name its module in worker.reducers, or, if it is no more, its name in"
                " worker.reducers_removed"
            )
        if mine[name] < version:
            raise ConfigError(
                f"partition {partition} was folded with version {version} of the reducer {name}; this worker"
                f" has version {mine[name]}. Start the code that has version {version}. To go back, give the"
                f" old code version {version + 1} and an upcast from {version}"
            )


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """While journalled events are folded again: what was found then stands in the journal behind them."""
    registry = reducers.active
    if registry is None:
        yield
        return
    guard, registry.guard = registry.guard, None
    try:
        yield
    finally:
        registry.guard = guard


def watching() -> Guard | None:
    """The guard of this process; ``None`` without reducers, and where nobody journals."""
    guard = None if reducers.active is None else reducers.active.guard
    return guard if isinstance(guard, Guard) else None
