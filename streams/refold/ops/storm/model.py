"""A fleet as numbers: what :mod:`simulate` plays. Costs are parameters, their defaults are measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from refold.errors import UsageError

MB: Final = 1_000_000

#: Partitions differ in size by up to this fraction of the mean: a hash spreads sessions, not their lengths.
SIZE_SPREAD: Final = 0.3
#: Processes of one fleet need up to this much more or less time until they have joined.
START_SPREAD: Final = 0.2
#: Memory of a simulation: about 1 KB per partition and 100 bytes per hot session.
PARTITIONS_MAX: Final = 100_000
HOT_SESSIONS_MAX: Final = 1_000_000
#: Records that a restore takes at once (`warming.reader.CHUNK_RECORDS`; `changelogs` takes fewer).
CHUNK_RECORDS: Final = 2_000
#: With a limit a chunk is at least this large, so this many bytes take a minute or two: 25 us per chunk.
CHUNK_BYTES_MIN: Final = 768 * 1024
CHUNKS_MAX: Final = 2_000_000
#: Fields that may be 0.
FREE: Final = frozenset({"seed", "hot_first", "hot_partitions", "core_partitions"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """Bytes are those of keys and values, uncompressed, as the cap counts them.

    - ``records_per_s_core``: of one restore on one core. ``start_s``: from the process' start to its
      assignment. ``takeover_s``: what is not reading: offsets, marks, opening, claim.
    - ``broker_bytes_per_s``: what one broker can send; partitions' leaders are spread evenly.
    - ``hot_sessions``: sessions that get events during the restart, on ``hot_partitions`` of the partitions
      (0: all). ``hot_tail``: how far from the end of its changelog the last record of a hot session lies, on
      average, as a fraction of the changelog (exponentially distributed).
    - ``core_partitions``: how many are named in `worker.restore_first`.
    """

    seed: int = 1
    workers: int = 500
    partitions: int = 1_000
    bytes_per_partition: float = 64 * MB
    record_bytes: int = 1_600
    records_per_s_core: float = 130_000
    cores: int = 2
    brokers: int = 6
    broker_bytes_per_s: float = 1_000 * MB
    cap_bytes_per_s: int = 2 * MB
    start_s: float = 3.0
    takeover_s: float = 0.15
    hot_sessions: int = 20_000
    hot_partitions: int = 0
    hot_tail: float = 0.02
    core_partitions: int = 0
    hot_first: bool = True

    def check(self) -> None:
        """Raises UsageError for what cannot be, or would not end."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in FREE and value <= 0:
                raise UsageError(f"{field.name.replace('_', '-')} must be above 0, not {value}")
        if self.hot_partitions > self.partitions or self.hot_tail > 1:
            raise UsageError("hot-partitions is at most the number of partitions, hot-tail at most 1")
        if self.partitions > PARTITIONS_MAX or self.hot_sessions > HOT_SESSIONS_MAX:
            raise UsageError(
                f"at most {PARTITIONS_MAX} partitions and {HOT_SESSIONS_MAX} hot sessions: more would not fit"
                " into memory"
            )
        chunks = self.partitions * self.bytes_per_partition / CHUNK_BYTES_MIN
        if chunks > CHUNKS_MAX:
            raise UsageError(
                f"{chunks:.0f} reads would have to be simulated, at most {CHUNKS_MAX}: simulate fewer"
                " partitions, with brokers and workers in proportion"
            )

    @property
    def brokers_bytes_per_s(self) -> float:
        return self.brokers * self.broker_bytes_per_s

    def random(self, purpose: str) -> random.Random:
        """One source per purpose: a draw more in one does not change another."""
        return random.Random(f"{self.seed}/{purpose}")

    def draw(self) -> Sequence[Partition]:
        """The partitions of this seed, the same in every arm."""
        sizes, places = self.random("sizes"), self.random("hot")
        numbers = list(range(self.partitions))
        warm = sorted(places.sample(numbers, self.hot_partitions or self.partitions))
        hot: dict[int, list[float]] = {number: [] for number in numbers}
        for _ in range(self.hot_sessions):
            number = warm[places.randrange(len(warm))]
            hot[number].append(min(1.0, places.expovariate(1 / self.hot_tail)))
        return [
            Partition(
                number,
                self.bytes_per_partition * sizes.uniform(1 - SIZE_SPREAD, 1 + SIZE_SPREAD),
                tuple(sorted(hot[number])),
            )
            for number in numbers
        ]

    def as_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Partition:
    """``hot``: of each hot session, how far from the end its last record is, as a fraction, ascending."""

    number: int
    size: float
    hot: tuple[float, ...]
