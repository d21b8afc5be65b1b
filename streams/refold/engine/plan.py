"""What one attempt at a commit produces for one partition, and what it learns from the acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Message

from refold.engine import rows
from refold.engine.history import Tail, filled
from refold.engine.overlay import PartitionOverlay
from refold.engine.rows import Frontier
from refold.engine.store import Batch, Store
from refold.errors import StorageError

if TYPE_CHECKING:
    from refold.engine.warming.unread import Unread


@dataclass(slots=True)
class Written:
    """What the owner of a partition knows about its changelogs; changed by the commit thread only."""

    store: Store
    state_topic: str
    history_topic: str
    generations_topic: str
    state_next: int
    history_next: int
    generations_next: int
    #: Where our next journal record will be, if nobody else writes; ``None`` when that is not known.
    journal_next: int | None = None
    #: The copy was on this disk before and was never compared with its changelogs (rule V2).
    unproved: bool = False
    #: What the store still misses while it is restored hot first; set to ``None`` by the restore thread, with
    #: its gate held.
    unread: Unread | None = None


class Acks:
    """Delivery reports of the first and last journal record, and of the last changelog records, of a
    partition."""

    __slots__ = ("first", "generations", "history", "journal", "state")

    def __init__(self) -> None:
        self.first = -1
        self.journal = -1
        self.state = -1
        self.history = -1
        self.generations = -1

    def on_first(self, error: Any, message: Message) -> None:
        self.first = -1 if error is not None else message.offset()

    def on_journal(self, error: Any, message: Message) -> None:
        self.journal = -1 if error is not None else message.offset()

    def on_state(self, error: Any, message: Message) -> None:
        self.state = -1 if error is not None else message.offset()

    def on_history(self, error: Any, message: Message) -> None:
        self.history = -1 if error is not None else message.offset()

    def on_generations(self, error: Any, message: Message) -> None:
        self.generations = -1 if error is not None else message.offset()


@dataclass(slots=True)
class Plan:
    """What one attempt produced for one partition."""

    part: PartitionOverlay
    #: Ends of the changelogs before this transaction, as far as we have written them.
    state_base: int
    history_base: int
    generations_base: int
    #: Journal offset of the first event, foretold or known; ``None`` before that.
    first: int | None = None
    acks: Acks = field(default_factory=Acks)
    #: key -> (row or None for a deletion)
    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    #: full block key -> value or None
    blocks: dict[bytes, bytes | None] = field(default_factory=dict)
    tails: dict[bytes, Tail] = field(default_factory=dict)
    #: As :meth:`batch` has written it.
    frontier: Frontier | None = None

    def blocks_due(self) -> int:
        """How many history records this attempt will produce; which journal offsets they hold is not known
        yet."""
        due = 0
        for touched in self.part.touched.values():
            tail, events = touched.entry.tail, len(touched.events)
            # A deleted session's blocks are removed, and those it fills anew have the same keys.
            due += max(tail.blocks, filled(0, events)) if touched.deleted else filled(tail.listed, events)
        return due

    def learn(self, written: Written) -> None:
        """What the acknowledgements say of where the changelogs and the journal are now."""
        acks = self.acks
        if acks.state >= 0:
            written.state_next = acks.state + 1
        if acks.history >= 0:
            written.history_next = acks.history + 1
        if acks.generations >= 0:
            written.generations_next = acks.generations + 1
        if acks.journal >= 0:
            # After our last record comes the marker of this transaction.
            written.journal_next = acks.journal + 2

    def write(self, written: Written, now_ms: int) -> None:
        """To RocksDB, after the commit. Raises :class:`StorageError`: the partition must be restored."""
        unread = written.unread
        if unread is None:
            self.learn(written)
            self.part.state_end = written.state_next
            written.store.write(self.batch(written, now_ms))
            return
        with unread.gate:
            self.learn(written)
            self.part.state_end = written.state_next
            unread.writes(self.rows)
            try:
                written.store.write(self.batch(written, now_ms))
            except StorageError:
                unread.broken = True
                raise
            if self.frontier is not None:
                unread.committed(self.frontier, (*self.rows, *self.blocks))

    def batch(self, written: Written, now_ms: int) -> Batch:
        """The writes to RocksDB, after :meth:`learn`; with the gate of ``written.unread`` held, if there is
        one."""
        part, batch = self.part, Batch()
        for key, row in self.rows.items():
            if row is None:
                batch.delete_state(key)
            else:
                batch.put_state(key, row)
        for full_key, block in self.blocks.items():
            if block is None:
                batch.delete_block(full_key)
            else:
                batch.put_block(full_key, block)
        for key, side in part.side.items():
            record = side.encoded
            if record is None:
                batch.delete_side(key)
            else:
                batch.put_side(key, record)
        frontier = rows.Frontier(
            state_topic=written.state_topic,
            history_topic=written.history_topic,
            generations_topic=written.generations_topic,
            inbox_next=part.offset,
            batches_next=part.batches_next,
            state_next=written.state_next,
            history_next=written.history_next,
            generations_next=written.generations_next,
            applied_ms=now_ms,
        )
        unread = written.unread
        if unread is not None:
            frontier = unread.holed(frontier)
            for key, row in self.rows.items():
                if unread.marked or row is None:
                    batch.known(key)
            for full_key in self.blocks:
                batch.known_block(full_key)
        self.frontier = frontier
        batch.frontier(frontier)
        return batch
