"""One partition of the simulated broker: records and markers at offsets, as Kafka keeps them.

Measured on a real broker and modelled here: markers occupy offsets, the last stable offset is the first
offset of the oldest open transaction, end-of-partition for a ``read_committed`` reader is the last stable
offset, aborted records are invisible to it, and compaction keeps offsets and markers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

Headers = list[tuple[str, bytes]]


class Stored(NamedTuple):
    """A record, or a marker when ``control`` is set (``"commit"`` or ``"abort"``). ``pid`` -1: no
    transaction."""

    offset: int
    time_ms: int
    pid: int
    control: str | None
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers | None = None
    #: How wrong the broker's clock was when it stamped ``time_ms``: what it deletes by its own clock runs on
    #: true time.
    skew_ms: int = 0


class PartitionLog:
    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = 0
        #: High watermark: the offset of the next record. One replica, so it is the log end too.
        self.end = 0
        self._entries: list[Stored] = []
        self._offsets: list[int] = []
        #: pid -> first offset of its open transaction here.
        self.open: dict[int, int] = {}
        #: (pid, first, marker offset): records of the pid between the two are aborted.
        self._aborted: list[tuple[int, int, int]] = []
        self.compactions = 0
        #: The broker's clock minus true time.
        self.skew_ms = 0

    def append(
        self, time_ms: int, key: bytes | None, value: bytes | None, headers: Headers | None, pid: int = -1
    ) -> int:
        skew = self.skew_ms
        offset = self._put(Stored(self.end, time_ms + skew, pid, None, key, value, headers, skew))
        if pid >= 0:
            self.open.setdefault(pid, offset)
        return offset

    def mark(self, time_ms: int, pid: int, control: str) -> int:
        """Write a transaction marker. Without records of the pid it occupies an offset all the same."""
        first = self.open.pop(pid, None)
        offset = self._put(Stored(self.end, time_ms, pid, control))
        if control == "abort" and first is not None:
            self._aborted.append((pid, first, offset))
        return offset

    def _put(self, entry: Stored) -> int:
        self._entries.append(entry)
        self._offsets.append(entry.offset)
        self.end = entry.offset + 1
        return entry.offset

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values()) if self.open else self.end

    def is_aborted(self, entry: Stored) -> bool:
        return (
            bool(self._aborted)
            and entry.pid >= 0
            and any(
                pid == entry.pid and first <= entry.offset < marker for pid, first, marker in self._aborted
            )
        )

    def read(self, position: int, count: int) -> tuple[list[Stored], int]:
        """``read_committed``: up to ``count`` records from ``position``, and the position after them (past
        markers and aborted records, never past the last stable offset)."""
        found: list[Stored] = []
        stable = self.stable
        at = bisect_left(self._offsets, position)
        while at < len(self._entries):
            entry = self._entries[at]
            if entry.offset >= stable:
                break
            if entry.control is None and not self.is_aborted(entry):
                if len(found) == count:
                    return found, entry.offset
                found.append(entry)
            at += 1
        return found, max(position, stable)

    def committed(self) -> Iterator[Stored]:
        """All visible records, for checkers."""
        stable = self.stable
        for entry in self._entries:
            if entry.offset < stable and entry.control is None and not self.is_aborted(entry):
                yield entry

    def since(self, offset: int) -> list[Stored]:
        """Everything from ``offset`` on, markers and open transactions too."""
        return self._entries[bisect_left(self._offsets, offset) :]

    def compact(self, *, up_to: int, drop_tombstones_before_ms: int) -> int:
        """Clean what lies below ``up_to`` and the last stable offset: superseded and aborted records go,
        offsets stay. Returns how many went. The newest record of a key stays, a tombstone until it is old
        enough."""
        limit = min(up_to, self.stable)
        newest: dict[bytes, int] = {}
        for entry in self._entries:
            if (
                entry.offset < self.stable
                and entry.control is None
                and entry.key is not None
                and not self.is_aborted(entry)
            ):
                newest[entry.key] = entry.offset
        kept: list[Stored] = []
        for entry in self._entries:
            if entry.offset < limit and entry.control is None:
                if self.is_aborted(entry):
                    continue
                if entry.key is not None and newest[entry.key] != entry.offset:
                    continue
                if entry.value is None and entry.time_ms - entry.skew_ms < drop_tombstones_before_ms:
                    continue
            kept.append(entry)
        gone = len(self._entries) - len(kept)
        self._entries = kept
        self._offsets = [entry.offset for entry in kept]
        self.compactions += 1
        return gone
