"""Read rate over time and what share is live: the two curves of an arm, and the figures read off them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Width of the bins in which bytes are counted.
BIN_S: Final = 0.1
#: The peak is that of the mean over this long: brokers, links and disks smooth what is shorter, and a
#: worker's own bucket lends a quarter of a second (`admission.BURST_S`).
PEAK_WINDOW_S: Final = 1.0


class ReadRate:
    """Bytes by bin of time; ``add`` spreads a read evenly over the time it took."""

    def __init__(self) -> None:
        self.bins: list[float] = []

    def add(self, start: float, end: float, size: float) -> None:
        """``size`` bytes were read between ``start`` and ``end``, in seconds since the restart began."""
        first, last = int(start / BIN_S), int(end / BIN_S)
        if last >= len(self.bins):
            self.bins.extend([0.0] * (last + 1 - len(self.bins)))
        if first == last:
            self.bins[first] += size
            return
        for number in range(first, last + 1):
            low, high = max(start, number * BIN_S), min(end, (number + 1) * BIN_S)
            self.bins[number] += size * max(0.0, high - low) / (end - start)

    @property
    def total(self) -> float:
        return sum(self.bins)

    @property
    def peak(self) -> float:
        """Bytes per second in the busiest ``PEAK_WINDOW_S``."""
        width = round(PEAK_WINDOW_S / BIN_S)
        inside = best = 0.0
        for number, size in enumerate(self.bins):
            inside += size - (self.bins[number - width] if number >= width else 0.0)
            best = max(best, inside)
        return best / PEAK_WINDOW_S

    @property
    def mean(self) -> float:
        """Bytes per second from the first byte to the last; over ``PEAK_WINDOW_S`` where that is less."""
        busy = [number for number, size in enumerate(self.bins) if size > 0]
        return self.total / max(PEAK_WINDOW_S, (busy[-1] - busy[0] + 1) * BIN_S) if busy else 0.0

    def seconds_above(self, bytes_per_s: float) -> float:
        return round(sum(size / BIN_S > bytes_per_s for size in self.bins) * BIN_S, 1)

    def points(self, most: int) -> list[tuple[float, float]]:
        """(seconds, bytes per second), at most ``most`` of them, each the mean over its stretch."""
        step = max(1, -(-len(self.bins) // most))
        return [
            (at * BIN_S, sum(part := self.bins[at : at + step]) / (len(part) * BIN_S))
            for at in range(0, len(self.bins), step)
        ]


@dataclass(frozen=True, slots=True)
class Live:
    """``times``: seconds from the restart's beginning until each was live, ascending; ``of``: how many should
    be."""

    times: Sequence[float]
    of: int

    def at(self, share: float) -> float | None:
        """When ``share`` of all of them were live; ``None`` if they never were."""
        rank = max(1, -(-round(self.of * share * 1e9) // 1_000_000_000))
        return round(self.times[rank - 1], 3) if self.of and rank <= len(self.times) else None

    def as_json(self) -> dict[str, Any]:
        return {
            "of": self.of,
            "first_s": self.at(0.0),
            "p50_s": self.at(0.5),
            "p99_s": self.at(0.99),
            "all_s": self.at(1.0),
        }

    def points(self, most: int) -> list[tuple[float, float]]:
        """(seconds, share live), at most about ``most`` of them, the first and the last one among them."""
        count = len(self.times)
        step = max(1, count // most)
        ranks = sorted({*range(0, count, step), count - 1}) if count else []
        return [(self.times[rank], (rank + 1) / self.of) for rank in ranks]
