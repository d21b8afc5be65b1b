"""Usage rows counted a second time, the slow and obvious way: every event is kept, every sum made anew.

Written from docs/concepts/usage.md. It shares nothing with :mod:`refold.core.usage` but the events' fields
and, to be compared with, the row; it is what a row is compared with in tests and by `refold verify usage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from refold.core.usage import UsageRow, leases_at, window_sum

#: Seconds per hop; twelve hops are a window.
HOP_S: Final = {"minute": 5, "hour": 5 * 60, "day": 2 * 60 * 60}
COUNTS: Final = ("requests", "input", "output", "cached", "reasoning")
TWO_DAYS_MS: Final = 172_800_000
FIVE_MINUTES_MS: Final = 300_000


class Recount:
    """One row. :meth:`add` in the order of the journal."""

    def __init__(self) -> None:
        self.newest = 0
        #: (journal time, when it was used, counts)
        self.used: list[tuple[int, int, tuple[int, ...]]] = []
        #: (session, lease) -> until, as long as it was not released.
        self.leases: dict[tuple[str, str], int] = {}

    def add(self, session: str, event: Any, time_ms: int) -> None:
        if time_ms > self.newest + TWO_DAYS_MS:
            self.used, self.leases = [], {}
        self.newest = max(self.newest, time_ms)
        kind = type(event).__name__
        if kind == "UsageRecorded":
            counts = tuple(getattr(event, name) for name in COUNTS)
            self.used.append((time_ms, event.at_ms, counts))
        elif kind == "UsageAdmitted":
            self.leases[session, event.lease_id] = time_ms + event.lease_ms
        elif kind == "UsageReleased":
            self.leases.pop((session, event.lease_id), None)

    def window(self, window: str, now_ms: int) -> tuple[int, ...]:
        """What is in a hop that the window touches, and was not late for it."""
        first = _hop_of(now_ms, window) - 12
        return _total(
            counts
            for time_ms, at_ms, counts in self.used
            if not _late(time_ms, at_ms, window) and _hop_of(min(at_ms, time_ms), window) >= first
        )

    def late(self, window: str) -> int:
        return sum(_late(time_ms, at_ms, window) for time_ms, at_ms, _ in self.used)

    def future(self) -> int:
        return sum(at_ms > time_ms + FIVE_MINUTES_MS for time_ms, at_ms, _ in self.used)

    def totals(self) -> tuple[int, ...]:
        return _total(counts for _, _, counts in self.used)

    def facts(self, now_ms: int) -> dict[str, Any]:
        """Everything that can be asked of a row; ``now_ms`` not before its newest journal time."""
        return {
            "updated": self.newest,
            "records": len(self.used),
            "future": self.future(),
            "totals": self.totals(),
            "leases": {key: until for key, until in self.leases.items() if until > now_ms},
            **{f"late_{window}": self.late(window) for window in HOP_S},
            **{window: self.window(window, now_ms) for window in HOP_S},
        }


def facts_of(row: UsageRow, now_ms: int) -> dict[str, Any]:
    """The same of a row."""
    return {
        "updated": row.time_ms,
        "records": row.records,
        "future": row.future,
        "totals": tuple(row.totals),
        "leases": {(held.session, held.lease_id): held.until_ms for held in leases_at(row, now_ms)},
        **{f"late_{window}": late for window, late in zip(HOP_S, row.late, strict=True)},
        **{window: tuple(window_sum(row, window, now_ms)) for window in HOP_S},
    }


def differences(got: Mapping[str, Any], counted: Mapping[str, Any]) -> list[str]:
    """Which facts are not the same, with both."""
    return [f"{name}: {got[name]}, counted {counted[name]}" for name in counted if got[name] != counted[name]]


def _hop_of(at_ms: int, window: str) -> int:
    return at_ms // (HOP_S[window] * 1000)


def _late(time_ms: int, at_ms: int, window: str) -> bool:
    return _hop_of(at_ms, window) < _hop_of(time_ms, window) - 12


def _total(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    total = [0] * len(COUNTS)
    for one in counts:
        for place, value in enumerate(one):
            total[place] += value
    return tuple(total)
