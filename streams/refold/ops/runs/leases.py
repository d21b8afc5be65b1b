"""Who held which run when, read off the journal: what hand-overs took, and that no two held one at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from refold.core.events import Event
from refold.core.run_events import (
    RunCompleted,
    RunFailed,
    RunLeased,
    RunReleased,
    RunStopped,
    RunSuspended,
    StepStarted,
)
from refold.wire.journal import JournalEntry


@dataclass(slots=True)
class Hold:
    """One lease: from its grant to the event that ended it (``None``: it ran out, or the run goes on)."""

    run: str
    holder: str
    epoch: int
    from_ms: int
    to_ms: int | None = None
    renewed_ms: int = 0

    @property
    def process(self) -> str:
        """What the holder's name begins with: the producer id the process was given."""
        return self.holder.split("-", 1)[0]


@dataclass(slots=True)
class Leases:
    """Fed the journal in order."""

    holds: dict[str, list[Hold]] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)
    ended_otherwise: dict[str, str] = field(default_factory=dict)
    #: run/step → starts accepted.
    steps: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def feed(self, entry: JournalEntry, event: Event) -> None:
        if isinstance(event, RunLeased):
            self._leased(entry.time_ms, event)
        elif isinstance(event, RunCompleted):
            self.completed[event.run_id] = self.completed.get(event.run_id, 0) + 1
            self._ended(entry.time_ms, event.run_id)
        elif isinstance(event, RunReleased | RunSuspended):
            self._ended(entry.time_ms, event.run_id)
        elif isinstance(event, RunFailed | RunStopped):
            self.ended_otherwise[event.run_id] = type(event).__name__
            self._ended(entry.time_ms, event.run_id)
        elif isinstance(event, StepStarted):
            name = f"{event.run_id}/{event.step_id}"
            self.steps[name] = self.steps.get(name, 0) + 1
            now = self.holds.get(event.run_id, [])
            if not now or (now[-1].holder, now[-1].epoch) != (event.holder, event.epoch):
                self.differences.append(f"{name} was started by {event.holder}, who did not hold the run")

    def _leased(self, time_ms: int, event: RunLeased) -> None:
        held = self.holds.setdefault(event.run_id, [])
        if held and (held[-1].holder, held[-1].epoch) == (event.holder, event.epoch):
            held[-1].renewed_ms = time_ms
            return
        if event.epoch != (held[-1].epoch if held else 0) + 1:
            self.differences.append(
                f"{event.run_id}: epoch {event.epoch} follows {held[-1].epoch if held else 0}"
            )
        held.append(Hold(event.run_id, event.holder, event.epoch, time_ms, renewed_ms=time_ms))

    def _ended(self, time_ms: int, run: str) -> None:
        if held := self.holds.get(run):
            held[-1].to_ms = time_ms

    def hand_overs_ms(self, process: str, died_ms: int) -> list[int]:
        """From a death of ``process`` to the next grant of each run it held then."""
        found = []
        for held in self.holds.values():
            for hold, after in itertools.pairwise(held):
                over = hold.to_ms is not None and hold.to_ms <= died_ms
                if hold.process == process and hold.from_ms <= died_ms < after.from_ms and not over:
                    found.append(after.from_ms - died_ms)
        return found


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that at least ``q`` of them do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-len(ordered) * int(q * 100) // 100) - 1))]


def all_hand_overs(leases: Leases, deaths: Iterable[tuple[str, int]]) -> list[int]:
    return sorted(ms for process, died_ms in deaths for ms in leases.hand_overs_ms(process, died_ms))
