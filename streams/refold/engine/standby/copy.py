"""One partition's copy: an open DB, how far it is, and how old what it says may be (rules S2 and Z).

One thread writes (the tail's); the event loop reads rows and keeps count of freshness. A copy is *complete as
of* a moment when it has reached the stable ends that were asked for at that moment: everything that was
committed before it is in the copy. Before it was complete once it is not read from: a session that it does
not hold may exist.

Rule Z: a tombstone that the copy has not read was appended after ``safe_ms``, the wall clock at which it was
complete last, or began from nothing; so none is gone before ``safe_ms`` + ``delete.retention.ms``. That is
also what the frontier row says (``applied_ms``), for whoever opens the directory next.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import Message, TopicPartition

from refold.engine import rows
from refold.engine.bulk import Run
from refold.engine.points import Points
from refold.engine.store import Batch, Store
from refold.engine.takeover import Marks
from refold.errors import StorageError
from refold.topology.names import TopicNames

#: Looks at the stable ends that the copy has not reached yet: at one a second, a copy that is less than a
#: minute behind knows its age to the second. Beyond it the oldest stay, and the age is coarser.
LOOKS_MAX: Final = 64

Ends = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Look:
    """Stable ends of state, history and generations, and when they were asked for."""

    at: float
    wall_ms: int
    ends: Ends


@dataclass(frozen=True, slots=True)
class Freshness:
    """``position``: next offset of the state topic. ``behind``: offsets of the three changelogs below their
    stable ends and not in the copy, markers among them. ``age_s``: everything that was committed so many
    seconds ago is in it; ``None`` before that is known once."""

    position: int
    behind: int
    age_s: float | None


class Copy:
    """Opened by the tail; see the module for what is called where."""

    def __init__(
        self,
        partition: int,
        store: Store,
        frontier: rows.Frontier,
        marks: Marks,
        topics: TopicNames,
        *,
        run: Run,
        lifetime_ms: int,
        marked_ms: int,
    ) -> None:
        """``marked_ms``: wall clock before the marks were asked for. ``lifetime_ms``: for how long tombstones
        are sure to stay (rule Z)."""
        self.partition = partition
        self.opened_at = time.monotonic()
        self._store = store
        self._frontier = frontier
        self._run = run
        self._lifetime_ms = lifetime_ms
        self._kinds = {
            topics.state: rows.STATE,
            topics.history: rows.BLOCK,
            topics.generations: rows.SIDE,
        }
        self._next = {
            topics.state: max(frontier.state_next, marks.state_start),
            topics.history: max(frontier.history_next, marks.history_start),
            topics.generations: max(frontier.generations_next, marks.generations_start),
        }
        self._start = marks.state_start
        #: As in the DB: what a read sees. Replaced as a whole.
        self.written = self._position
        ends = (marks.state_end, marks.history_end, marks.generations_end)
        anew = not frontier.applied_ms
        #: Only ever raised, by the event loop.
        self.safe_ms = marked_ms if anew or _reached(self.written, ends) else frontier.applied_ms
        #: Held while a row is read and while the DB is declared closed, never while it is being closed.
        self._reading = threading.Lock()
        self._closed = False
        self._looks: deque[Look] = deque()
        self._last: Look | None = None
        self._complete_at: float | None = None

    @property
    def _position(self) -> Ends:
        state, history, generations = self._next.values()
        return state, history, generations

    # --- the tail's thread ---------------------------------------------------------------------------

    def wanted(self) -> list[TopicPartition]:
        """Where reading goes on."""
        return [TopicPartition(topic, self.partition, offset) for topic, offset in self._next.items()]

    def expired(self, now_ms: int) -> bool:
        """Rule Z: a tombstone may be gone that was not read. Asked before what was read is kept."""
        return now_ms - self.safe_ms > self._lifetime_ms

    def take(self, message: Message) -> int:
        """Keep a record for the next :meth:`write`; its bytes."""
        topic, offset, key = message.topic(), message.offset(), message.key()
        if offset < self._next[topic]:
            return 0
        self._next[topic] = offset + 1
        if key is None:
            return 0
        self._run.put(self._kinds[topic] + key, message)
        return len(message) + len(key)

    def passed(self, topic: str, position: int) -> None:
        """The end of what is stable was reached: markers and aborted records lie before it."""
        self._next[topic] = max(self._next[topic], position)

    def write(self, points: Points) -> None:
        """Put into the DB what was taken. Raises :class:`StorageError`; blocks."""
        position = self._position
        if self._run:
            self._run.write(self._store, self._now(position), points)
        # Where markers alone were passed the row in the DB stays behind by them: they are read again.
        self.written = position

    def _now(self, position: Ends) -> rows.Frontier:
        state, history, generations = position
        return replace(
            self._frontier,
            inbox_next=-1,
            batches_next=-1,
            state_next=state,
            history_next=history,
            generations_next=generations,
            applied_ms=self.safe_ms,
        )

    def keep(self, points: Points) -> None:
        """Make it outlive the process, and say until when it may be trusted. Raises StorageError; blocks."""
        self.write(points)
        batch = Batch()
        batch.frontier(self._now(self.written))
        self._store.write(batch)
        self._store.flush()

    def close(self, points: Points, *, keep: bool = True) -> None:
        """No read after it. ``keep``: what was taken is written, if it can be. Blocks."""
        with self._reading:
            self._closed = True
        try:
            if keep:
                with contextlib.suppress(StorageError):
                    self.keep(points)
        finally:
            self._store.close(flush=keep)

    # --- the event loop ------------------------------------------------------------------------------

    def row(self, key: bytes) -> tuple[bytes | None, Freshness] | None:
        """A session's row, ``None`` for none, and how fresh that is; ``None`` where nothing can be said.

        Raises :class:`refold.engine.store.UnreadableStore`.
        """
        with self._reading:
            if self._closed:
                return None
            # In this order: the row is at least as new as what is said of it.
            fresh = self.freshness()
            return None if fresh.age_s is None else (self._store.row(key), fresh)

    def looked(self, look: Look) -> None:
        """Told of the stable ends, in the order asked."""
        self._last = look
        if len(self._looks) < LOOKS_MAX:
            self._looks.append(look)
        self._settle()

    def _settle(self) -> None:
        written = self.written
        while self._looks and _reached(written, self._looks[0].ends):
            look = self._looks.popleft()
            self._complete_at = look.at
            self.safe_ms = max(self.safe_ms, look.wall_ms)

    def freshness(self) -> Freshness:
        self._settle()
        behind = 0
        if self._last is not None:
            behind = sum(max(0, end - at) for at, end in zip(self.written, self._last.ends, strict=True))
        age = None if self._complete_at is None else time.monotonic() - self._complete_at
        return Freshness(self.written[0], behind, age)

    @property
    def progress(self) -> float:
        """Of the state topic, 0 … 1."""
        if self._last is None:
            return 0.0
        total = self._last.ends[0] - self._start
        return 1.0 if total <= 0 else min(1.0, max(0.0, (self.written[0] - self._start) / total))


def _reached(position: Ends, ends: Ends) -> bool:
    return all(at >= end for at, end in zip(position, ends, strict=True))
