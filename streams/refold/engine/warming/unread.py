"""What of a partition's changelogs is not in its DB yet, and which of its sessions are known all the same.

Shared by three threads: a restore thread reads on (``reader.py``, ``warmer.py``), the commit thread writes
what is newer (``commit.py``), the event loop asks whether a session is known (rule H3).

Invariants: rows are written and the hole shrinks in one batch, and only then :attr:`high` is lowered, so the
loop never takes a session for known before its row is there; who writes holds :attr:`gate` and writes the
frontier that the other one wrote last, with its own part moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Protocol

from refold.engine.rows import Frontier, Hole
from refold.engine.store import Store
from refold.engine.warming.gate import Gate
from refold.engine.warming.keyset import Keys
from refold.engine.warming.scan import Scan


class KeyFilter(Protocol):
    """Of a checkpoint: the sessions there were at ``state_next`` of the state changelog, and some more."""

    @property
    def state_next(self) -> int: ...

    def holds(self, key: bytes) -> bool:
        """False: there was no such session."""


class Unread:
    """Of state the hole; of history from :attr:`history_next` to its end. ``frontier``: as stored."""

    __slots__ = (
        "_filter",
        "_fresh",
        "_store",
        "asked_ms",
        "broken",
        "done",
        "frontier",
        "gate",
        "high",
        "history_end",
        "history_next",
        "low",
        "marked",
        "scanned",
        "seen",
        "since_ms",
        "wanted",
    )

    def __init__(
        self,
        store: Store,
        frontier: Frontier,
        hole: Hole,
        history_end: int,
        since_ms: int,
        asked_ms: int,
        key_filter: KeyFilter | None = None,
    ) -> None:
        self._store = store
        self._filter = key_filter
        #: Rows written by commits while the other thread compares: not to be overwritten.
        self._fresh: set[bytes] | None = None
        self.gate = Gate()
        self.frontier = frontier
        self.low, self.high, self.marked = hole.low, hole.high, hole.marked
        self.history_next = frontier.history_next
        self.history_end = history_end
        #: Age of what lies below the hole: what rule Z judges a copy with a hole by.
        self.since_ms = since_ms
        #: Wall clock before the changelogs' ends were asked for: when all is read, of then it is all.
        self.asked_ms = asked_ms
        #: Every key of what the DB has above the hole, and a few more; ``None``: not known.
        self.seen: Keys | None = None
        #: Sessions that records wait for. Set by the event loop.
        self.wanted: Set[bytes] = frozenset()
        #: When all keys of the hole were looked at: those that are in it.
        self.scanned: Scan | None = None
        #: A commit could not be written: its rows are missing, and nobody may write a frontier past them.
        self.broken = False
        #: Everything is read.
        self.done = False

    @property
    def reading_state(self) -> bool:
        return self.low < self.high

    @property
    def reading_history(self) -> bool:
        return self.history_next < self.history_end

    def knows(self, key: bytes) -> bool:
        """Rule H3: whether the DB has the session as it is. Event loop."""
        if self.done or not self.reading_state:
            return True
        scanned = self.scanned
        if scanned is not None and not scanned.met(key):
            # The DB has what there is of it, newer than the hole or older.
            return True
        if self.newer(key):
            return True
        proof = self._filter
        return proof is not None and self.proves and not proof.holds(key) and self._store.row(key) is None

    @property
    def proves(self) -> bool:
        """Whether a checkpoint speaks of all that is unread."""
        return self._filter is not None and self.high <= self._filter.state_next

    def told(self, proof: KeyFilter) -> None:
        """A checkpoint's filter has come while its partition is served. Any thread."""
        if self._filter is None and proof.state_next > self.low:
            self._filter = proof

    def newer(self, key: bytes) -> bool:
        """Whether what the DB has of the session is newer than the hole."""
        seen = self.seen
        if seen is not None and key not in seen:
            return False
        return self._store.known(key) or (not self.marked and self._store.row(key) is not None)

    def holed(self, frontier: Frontier) -> Frontier:
        """The frontier row of a DB that still misses this."""
        return replace(
            frontier,
            hole=Hole(self.low, self.high, self.marked),
            history_next=self.history_next,
            applied_ms=self.since_ms,
        )

    # With the gate held.

    def watch(self) -> None:
        """From here to :meth:`watched`, what commits write is noted."""
        self._fresh = set()

    def watched(self) -> set[bytes]:
        fresh, self._fresh = self._fresh, None
        return fresh or set()

    def writes(self, keys: Iterable[bytes]) -> None:
        """Before rows of these sessions are written, that they are not overwritten by older ones."""
        seen = self.seen
        if seen is not None:
            seen.add_all(keys)

    def committed(self, frontier: Frontier, keys: Iterable[bytes]) -> None:
        """Commit thread: written, with this frontier. ``keys``: of rows and of history blocks."""
        self.frontier = frontier
        if self._fresh is not None:
            self._fresh.update(keys)
