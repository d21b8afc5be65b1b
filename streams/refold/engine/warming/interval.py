"""Rule H2: the part of the state changelog that is not read yet, taken in ranges from its end.

A range is a run of offsets; how many records it holds is only known once it was read, because compaction
leaves gaps and transactions leave markers. So the next range is as long as the last ones say, and one that
holds more than memory allows is read again, shorter. Pure.
"""

from __future__ import annotations

from typing import Final

from refold.engine import bulk

#: The first range: what is hot. 5 000 snapshots of 1.6 KB are 8 MB, a tenth of a second.
FIRST_OFFSETS: Final = 5_000

#: Last records of keys in one range, as in a run of ``bulk``: one is in memory at a time.
RUN_BYTES_MAX: Final = bulk.RUN_BYTES_MAX
RUN_RECORDS_MAX: Final = bulk.RUN_RECORDS_MAX

#: From here on a range is worth a file.
FILE_BYTES_MIN: Final = bulk.FILE_BYTES_MIN

#: Offsets in one range, where compaction has left next to nothing: seeking over more gains nothing.
RANGE_OFFSETS_MAX: Final = 2_000_000


class Ranges:
    """How long the next range is to be."""

    def __init__(self) -> None:
        self.offsets = FIRST_OFFSETS

    def last_of(self, low: int, high: int) -> tuple[int, int]:
        """The last range of [low, high), which is not empty."""
        return max(low, high - self.offsets), high

    def learned(self, offsets: int, records: int, size: int) -> None:
        """A range of so many offsets was read whole: three quarters of what is allowed, growing slowly."""
        room = min(
            RUN_RECORDS_MAX * 0.75 / max(records, 1),
            RUN_BYTES_MAX * 0.75 / max(size, 1),
            2.0,
        )
        self.offsets = min(max(1, int(offsets * room)), RANGE_OFFSETS_MAX)

    def too_long(self, start: int, end: int, reached: int) -> None:
        """[start, end) held too much: memory was full at ``reached``. The next try is shorter, always."""
        self.offsets = max(1, min((reached - start) // 2, (end - start) // 2))
