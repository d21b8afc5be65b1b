"""Reads what is unread, a step at a time: state from its end in ranges, then history forward.

A step blocks and runs on a restore thread; between two of them others get their turn. After each one the DB
is consistent and says how far it is (rule H6). History comes last: no ruling needs it (a session's open block
travels in its state record), and a reader is told to scan the journal instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from confluent_kafka import Message

from refold.engine import rows
from refold.engine.changelogs import StoodStill
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.store import Batch, Store
from refold.engine.takeover import Cancelled
from refold.engine.warming import interval, scan
from refold.engine.warming.arriving import Arriving
from refold.engine.warming.interval import Ranges
from refold.engine.warming.keyset import Allowance, Keys
from refold.engine.warming.piece import Piece
from refold.engine.warming.reader import RangeReader, Run
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
        anew: bool,
        points: Points,
        now_ms: Callable[[], int],
        reading_ms_max: int,
        allowance: Allowance,
    ) -> None:
        """``anew``: nothing above the hole was read yet. ``reading_ms_max``: for how long after the age of
        what lies below the hole what is read is kept."""
        self._topics = topics
        self.written = written
        self._store: Store = written.store
        self._reader = reader
        self._points = points
        self._now_ms = now_ms
        self._reading_ms_max = reading_ms_max
        self._allowance = allowance
        self._held: list[Keys] = []
        self._scan: scan.Scan | None = None
        self._ranges = Ranges()
        #: A checkpoint that is fetched meanwhile (rule H10).
        self.arriving: Arriving | None = None
        self._total = max(1, unread.high - unread.low)
        self.unread = unread
        #: Offsets of inbox and batches from which the partition is fed.
        self.start = start
        self.records = 0
        self.bytes = 0
        if anew and unread.reading_state:
            unread.seen = self._keys(unread.high - unread.low)

    @property
    def progress(self) -> float:
        """Fraction of the state's unread part that is read, 0 … 1."""
        return 1.0 - max(0, self.unread.high - self.unread.low) / self._total

    @property
    def waits(self) -> bool:
        """Whether the next step is to wait. Any thread."""
        return self.arriving is not None and self.arriving.waits

    def step(self) -> bool:
        """True when everything is read. Raises :class:`Cancelled`, also when a commit could not be written,
        :class:`Arrived`, :class:`StoodStill`, StorageError, UnavailableError, PermissionDenied."""
        unread = self.unread
        if self.arriving is not None and not self.arriving.look():
            self.arriving.close()
            self.arriving = None
        if unread.reading_state:
            looked = self._scan or self._begun_scan()
            if looked is not None:
                self._scan_on(looked)
            else:
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
        self._keep(run.last, run.size, start)

    def _keep(self, last: Mapping[bytes, Message], size: int, high: int) -> None:
        """The last record of each of these sessions below the hole's end, which is to be ``high``; but not of
        those of whom the DB has a newer one. ``size``: of ``last`` in memory."""
        unread = self.unread
        self._watch()
        found = {key: message for key, message in last.items() if not unread.newer(key)}
        if found:
            size = size * len(found) // len(last)
        piece = Piece(rows.STATE, found, marked=unread.marked)
        built = self._built(piece, size)
        with unread.gate:
            fresh = unread.watched()
            if not fresh.isdisjoint(found):
                # Proved absent, and made anew while we compared.
                found = {key: message for key, message in found.items() if key not in fresh}
                piece = Piece(rows.STATE, found, marked=unread.marked)
                built = built and self._built(piece, size)
            unread.writes(found)
            hole = rows.Hole(unread.low, high, unread.marked)
            self._write_piece(piece, built, replace(unread.holed(unread.frontier), hole=hole))
            unread.high = high

    def _built(self, piece: Piece, size: int) -> bool:
        """Whether the piece is a file beside the DB now; else it is worth a batch."""
        if size < interval.FILE_BYTES_MIN or not len(piece):
            return False
        self._store.build(piece.changes())
        self._points.reach("run_built")
        return True

    def _write_piece(self, piece: Piece, built: bool, frontier: rows.Frontier) -> None:
        """With the gate held. A file is in the DB before the row that says so (rule H2): until then its rows
        are newer than a hole that still holds them, which is what rows above a hole are."""
        self._allowed()
        batch = Batch()
        if built:
            self._store.ingest()
            self._points.reach("run_ingested")
        else:
            piece.fill(batch)
        self._write(batch, frontier)

    # --- sessions that are waited for (rule H3) ----------------------------------------------------------

    def _begun_scan(self) -> scan.Scan | None:
        """Where it is worth it."""
        unread = self.unread
        offsets = unread.high - unread.low
        if (
            unread.scanned is not None
            or not unread.wanted
            or offsets < scan.OFFSETS_MIN
            # Everything is read twice: where bytes are what is short, reading on is as soon at its end.
            or self._reader.paced
            or unread.proves
        ):
            return None
        keys = self._keys(offsets)
        if keys is not None:
            self._scan = scan.Scan(keys, unread.wanted, unread.low, unread.high)
        return self._scan

    def _scan_on(self, looked: scan.Scan) -> None:
        """A piece of it; at its end every session that was waited for is known."""
        unread = self.unread
        before = looked.count, looked.bytes
        end = min(looked.end, looked.next + scan.TURN_OFFSETS)
        try:
            self._reader.read_into(looked, self._topics.state, end)
        finally:
            self.records += looked.count - before[0]
            self.bytes += looked.bytes - before[1]
        if looked.next < looked.end:
            return
        self._keep(looked.found, 0, unread.high)
        looked.ended()
        unread.scanned, self._scan = looked, None

    def _keys(self, offsets: int) -> Keys | None:
        keys = self._allowance.keys(offsets)
        if keys is not None:
            self._held.append(keys)
        return keys

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
            piece = Piece(rows.SIDE, run.last)
            built = self._built(piece, run.size)
            with unread.gate:
                frontier = replace(unread.holed(unread.frontier), generations_next=run.next)
                self._write_piece(piece, built, frontier)
            start = run.next

    def read_tail(self, start: int, end: int) -> None:
        """What is newer than the hole of a copy that was found: forward, before anything is served."""
        unread = self.unread
        while start < end:
            run = self._reader.read(self._topics.state, start, end)
            self._count(run)
            piece = Piece(rows.STATE, run.last, marked=unread.marked)
            built = self._built(piece, run.size)
            with unread.gate:
                frontier = replace(unread.holed(unread.frontier), state_next=run.next)
                self._write_piece(piece, built, frontier)
            start = run.next

    def _read_history(self) -> None:
        unread = self.unread
        run = self._reader.read(self._topics.history, unread.history_next, unread.history_end)
        self._count(run)
        self._watch()
        found = {key: last for key, last in run.last.items() if not self._store.known_block(key)}
        piece = Piece(rows.BLOCK, found)
        built = self._built(piece, run.size)
        with unread.gate:
            fresh = unread.watched()
            if not fresh.isdisjoint(found):
                piece = Piece(rows.BLOCK, {key: last for key, last in found.items() if key not in fresh})
                built = built and self._built(piece, run.size)
            frontier = replace(unread.holed(unread.frontier), history_next=run.next)
            self._write_piece(piece, built, frontier)
            unread.history_next = run.next

    def _finish(self) -> None:
        """No hole any more: the DB is like any other."""
        unread, written = self.unread, self.written
        with unread.gate:
            self._allowed()
            batch = Batch()
            batch.forget_known()
            self._write(
                batch,
                replace(
                    unread.frontier,
                    hole=None,
                    history_next=max(unread.history_end, written.history_next),
                    # All there was then, and not now: this process may have stood still since.
                    applied_ms=unread.asked_ms,
                ),
            )
            unread.done = True
            written.unread = None

    def _watch(self) -> None:
        with self.unread.gate:
            self.unread.watch()

    def _write(self, batch: Batch, frontier: rows.Frontier) -> None:
        batch.frontier(frontier)
        self._store.write(batch)
        self.unread.frontier = frontier

    def _allowed(self) -> None:
        """Before anything that was read is kept."""
        if self.unread.broken:
            raise Cancelled
        if self._now_ms() - self.unread.since_ms > self._reading_ms_max:
            # Deletions that were to come after what was read may have gone meanwhile (rule Z).
            raise StoodStill

    def _count(self, run: Run) -> None:
        self.records += run.count
        self.bytes += run.bytes

    def close(self) -> None:
        """Of the reader; the DB stays open. Blocks."""
        if self.arriving is not None:
            self.arriving.close()
        self._reader.close()
        # The event loop may still ask what they hold; the memory goes with it.
        for keys in self._held:
            self._allowance.back(keys)
        self._held.clear()
