"""The ownership table: which partitions this process owns, since when, and how far each is.

*Assignment epoch*: a number never used twice in this process, given to a partition each time it is assigned.
Chunks, overlay entries and offset lists carry it: a stale chunk is dropped, a stale commit entry is a bug.
*Fetch epoch*: raised each time the sources of a kept partition are rewound (rule A), always both; chunks
polled before are dropped.

Changed on the event loop only; the commit thread and the restore threads read it (dict reads are atomic).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator

from refold.engine.admission import Rank, Ticket
from refold.engine.chunks import Chunk
from refold.engine.lifecycle import State, move
from refold.engine.plan import Written
from refold.engine.warming.beyond import Beyond
from refold.engine.warming.parking import Parking
from refold.engine.warming.unread import Unread
from refold.errors import InvariantViolation


class Partition:
    __slots__ = (
        "assigned_at",
        "batches_committed",
        "batches_moved",
        "batches_position",
        "beyond",
        "cancelled",
        "caught_up",
        "committed",
        "epoch",
        "fetch_epoch",
        "full",
        "held",
        "lag",
        "moved_at",
        "number",
        "parked",
        "parking",
        "position",
        "progress",
        "restoring_since",
        "ruled_ms",
        "state",
        "task",
        "ticket",
        "warming",
        "written",
    )

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number
        self.epoch = epoch
        self.fetch_epoch = 0
        self.state = State.ASSIGNED
        #: Next inbox offset to be folded / next offset as committed.
        self.position = -1
        self.committed = -1
        #: The same for batches.
        self.batches_position = -1
        self.batches_committed = -1
        #: Who waits for batches to be folded (rule G10): done when the position moves, or nothing will move
        #: it.
        self.batches_moved: asyncio.Future[None] | None = None
        #: Inbox records before this one were here when `batches` was read to its end last (rule G10): what it
        #: says of them stands. -1: of none, and again after every rewind.
        self.caught_up = -1
        #: Chunks of the inbox that wait while it does, the one it stopped in first.
        self.held: deque[Chunk] | None = None
        #: Fetch epoch of the chunks that are dropped instead, because the wait is a long one; -1: none are.
        self.parked = -1
        #: Served while the rest of its state is read (rule H2): what is unread, ``None`` in every other case.
        self.warming: Unread | None = None
        #: Records that wait for their session, and what a predecessor handled beyond the committed offset
        #: (rules H4 and H5); ``None`` where there is neither, which is nearly always.
        self.parking: Parking | None = None
        #: As committed last with the offset.
        self.beyond: Beyond | None = None
        #: Fetch epoch of the chunks that are dropped because no more can be parked; -1: none are.
        self.full = -1
        self.written: Written | None = None
        self.cancelled = threading.Event()
        self.task: asyncio.Task[None] | None = None
        self.assigned_at = self.moved_at = time.monotonic()
        #: Its place in the order of restores, until one is drawn (`admission.plan`).
        self.ticket = Ticket(Rank(True, 0, number), 0.0)
        #: Inbox records not ruled on, as last looked for; ``None`` before.
        self.lag: int | None = None
        self.restoring_since = 0.0
        #: Append time of the newest record ruled on here, 0 before the first.
        self.ruled_ms = 0
        #: Fraction of the restore done, 0 … 1; set by the restore thread.
        self.progress = 0.0

    @property
    def fed(self) -> bool:
        """Whether records of its sources are folded: live, or served while it is restored (rule H2)."""
        return self.state is State.LIVE or (self.warming is not None and self.state is State.RESTORING)

    def knows(self, key: bytes) -> bool:
        """Whether the store has the session as it is (rule H3)."""
        return self.warming is None or self.warming.knows(key)

    def begin(self, offset: int, beyond: Beyond | None) -> None:
        """What is handled is what this offset and metadata say: restored, or rewound to it."""
        self.position = self.committed = offset
        self.beyond = beyond
        self.full = -1
        self.parking = None if self.warming is None and beyond is None else Parking(beyond)

    def wake(self) -> None:
        """The position of batches has moved, or the partition is another one now: look again."""
        moved, self.batches_moved = self.batches_moved, None
        if moved is not None and not moved.done():
            moved.set_result(None)

    def move(self, to: State) -> None:
        self.state = move(self.number, self.state, to)
        self.moved_at = time.monotonic()


class Assignment:
    def __init__(self) -> None:
        self._parts: dict[int, Partition] = {}
        self._epochs = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._parts.values()))

    def __contains__(self, number: int) -> bool:
        return number in self._parts

    def next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    def add(self, number: int, epoch: int) -> Partition:
        part = self._parts[number] = Partition(number, epoch)
        return part

    def get(self, number: int) -> Partition | None:
        return self._parts.get(number)

    def live(self, number: int, epoch: int, fetch_epoch: int) -> Partition | None:
        """The partition if a chunk polled under these epochs is still to be folded."""
        part = self._parts.get(number)
        if part is None or part.epoch != epoch or part.fetch_epoch != fetch_epoch or not part.fed:
            return None
        return part

    def forget(self, part: Partition) -> None:
        """The partition was given up: moved to an end state and closed."""
        if self._parts.get(part.number) is part:
            del self._parts[part.number]

    # What the commit thread reads (``commit.Ownership``).

    def epoch(self, number: int) -> int | None:
        part = self._parts.get(number)
        return None if part is None else part.epoch

    def written(self, number: int) -> Written:
        part = self._parts.get(number)
        if part is None or part.written is None:
            raise InvariantViolation(f"partition {number} is to be committed but is not open here")
        return part.written

    def counts(self) -> dict[str, int]:
        counts = {state.value: 0 for state in State}
        for part in self._parts.values():
            counts[part.state.value] += 1
        return counts
