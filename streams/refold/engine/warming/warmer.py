"""Reads what is unread, a step at a time: state from its end in ranges, then history forward.

A step blocks and runs on a restore thread; between two of them others get their turn. After each one the DB
is consistent and says how far it is (rule H6). History comes last: no ruling needs it (a session's open block
travels in its state record), and a reader is told to scan the journal instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from refold.engine import rows
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.store import Batch, Store
from refold.engine.takeover import Cancelled
from refold.engine.warming.interval import Ranges
from refold.engine.warming.reader import Last, RangeReader, Run
from refold.engine.warming.unread import Unread
from refold.topology.names import TopicNames


class Warmer:
    """Of one partition. ``written.unread`` is what is left to do; it is gone when all is done."""

    def __init__(
        self,
        topics: TopicNames,
        written: Written,
        unread: Unread,
        reader: RangeReader,
        start: tuple[int, int],
        *,
        points: Points,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics = topics
        self.written = written
        self._store: Store = written.store
        self._reader = reader
        self._points = points
        self._now_ms = now_ms
        self._ranges = Ranges()
        self._total = max(1, unread.high - unread.low)
        self.unread = unread
        #: Offsets of inbox and batches from which the partition is fed.
        self.start = start
        self.records = 0
        self.bytes = 0

    @property
    def progress(self) -> float:
        """Fraction of the state's unread part that is read, 0 … 1."""
        return 1.0 - max(0, self.unread.high - self.unread.low) / self._total

    def step(self) -> bool:
        """True when everything is read. Raises :class:`Cancelled`, also when a commit could not be written,
        StorageError, UnavailableError, PermissionDenied."""
        unread = self.unread
        if unread.reading_state:
            self._read_range()
        elif unread.reading_history:
            self._read_history()
        else:
            self._finish()
            return True
        self._points.reach("after_range")
        return False

    def _read_range(self) -> None:
        unread, ranges = self.unread, self._ranges
        start, end = ranges.last_of(unread.low, unread.high)
        run = self._reader.read(self._topics.state, start, end)
        self._count(run)
        if run.next < end and end - start > 1:
            ranges.too_long(start, end, run.next)
            return
        ranges.learned(end - start, len(run.last), run.size)
        self._watch()
        found = {key: last for key, last in run.last.items() if not unread.newer(key)}
        batch = self._state_batch(found)
        with unread.gate:
            fresh = unread.watched()
            if not fresh.isdisjoint(found):
                # Proved absent, and made anew while we compared.
                batch = self._state_batch({key: last for key, last in found.items() if key not in fresh})
            frontier = unread.frontier
            hole = rows.Hole(unread.low, start, unread.marked)
            self._write(batch, replace(unread.holed(frontier), hole=hole))
            unread.high = start

    def _state_batch(self, found: Mapping[bytes, Last]) -> Batch:
        batch, marked = Batch(), self.unread.marked
        for key, (value, header) in found.items():
            if value is None:
                batch.delete_state(key)
                batch.known(key)
                continue
            batch.put_state(key, rows.pack(rows.snapshot_seq(value), header, value))
            if marked:
                batch.known(key)
        return batch

    def begin(self) -> None:
        """The offsets from which the partition will be fed: in the DB with the next write."""
        unread = self.unread
        unread.frontier = replace(unread.frontier, inbox_next=self.start[0], batches_next=self.start[1])

    def read_generations(self, start: int, end: int) -> None:
        """Whole, before anything is served (rule H1): batches are folded on top of it."""
        unread = self.unread
        while start < end:
            run = self._reader.read(self._topics.generations, start, end)
            self._count(run)
            batch = Batch()
            for key, (value, _) in run.last.items():
                if value is None:
                    batch.delete_side(key)
                else:
                    batch.put_side(key, value)
            with unread.gate:
                self._write(batch, replace(unread.holed(unread.frontier), generations_next=run.next))
            start = run.next

    def read_tail(self, start: int, end: int) -> None:
        """What is newer than the hole of a copy that was found: forward, before anything is served."""
        unread = self.unread
        while start < end:
            run = self._reader.read(self._topics.state, start, end)
            self._count(run)
            with unread.gate:
                frontier = replace(unread.holed(unread.frontier), state_next=run.next)
                self._write(self._state_batch(run.last), frontier)
            start = run.next

    def _read_history(self) -> None:
        unread = self.unread
        run = self._reader.read(self._topics.history, unread.history_next, unread.history_end)
        self._count(run)
        self._watch()
        found = {key: last for key, last in run.last.items() if not self._store.known_block(key)}
        with unread.gate:
            fresh = unread.watched()
            batch = Batch()
            for key, (value, _) in found.items():
                if key in fresh:
                    continue
                if value is None:
                    batch.delete_block(key)
                else:
                    batch.put_block(key, value)
            self._write(batch, replace(unread.holed(unread.frontier), history_next=run.next))
            unread.history_next = run.next

    def _finish(self) -> None:
        """No hole any more: the DB is like any other."""
        unread, written = self.unread, self.written
        with unread.gate:
            batch = Batch()
            batch.forget_known()
            self._write(
                batch,
                replace(
                    unread.frontier,
                    hole=None,
                    history_next=max(unread.history_end, written.history_next),
                    applied_ms=self._now_ms(),
                ),
            )
            unread.done = True
            written.unread = None

    def _watch(self) -> None:
        with self.unread.gate:
            self.unread.watch()

    def _write(self, batch: Batch, frontier: rows.Frontier) -> None:
        unread = self.unread
        if unread.broken:
            raise Cancelled
        batch.frontier(frontier)
        self._store.write(batch)
        unread.frontier = frontier

    def _count(self, run: Run) -> None:
        self.records += run.count
        self.bytes += run.bytes

    def close(self) -> None:
        """Of the reader; the DB stays open. Blocks."""
        self._reader.close()
