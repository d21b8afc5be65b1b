"""Sessions as the fold sees them: cache over RocksDB, and a way to make one anew.

The reading side of :mod:`refold.engine.step`. Runs on the event loop; RocksDB point reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from refold.core.evolve import evolve
from refold.core.progress import Progress
from refold.core.session import initial
from refold.core.slots import SlotMap
from refold.engine import history, rows
from refold.engine.assignment import Assignment
from refold.engine.cache import Entry, SessionCache
from refold.engine.chunks import Record
from refold.engine.overlay import Overlay, PartitionOverlay, journal_of
from refold.engine.reducers import unwatched
from refold.engine.sabotage import Sabotage
from refold.engine.step import Limits
from refold.engine.store import Store
from refold.engine.usage import Usages
from refold.errors import InvariantViolation
from refold.topology.names import TopicNames
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import decode_session


class Sessions:
    """A :class:`refold.engine.step.StepView`. ``overlays``: what is folded and not committed, oldest
    first."""

    def __init__(
        self,
        topics: TopicNames,
        limits: Limits,
        slots: SlotMap,
        assignment: Assignment,
        cache: SessionCache,
        overlays: Callable[[], Sequence[Overlay]],
        sabotage: Sabotage,
        progress: Callable[[bytes, int, str], Progress | None],
        usages: Usages,
    ) -> None:
        self.topics = topics
        self.limits = limits
        self.sabotage = sabotage
        self.cache = cache
        self._slots = slots
        self._assignment = assignment
        self._overlays = overlays
        self.cached = cache.get
        self.partition_of = slots.partition
        self.progress = progress
        self.usages = usages

    @property
    def map_epoch(self) -> int:
        return self._slots.epoch

    def caught_up(self, record: Record) -> bool:
        owner = self._assignment.get(record.partition)
        return owner is not None and record.offset < owner.caught_up

    def load(self, key: bytes, partition: int, tenant: str, session: str) -> Entry:
        entry = self._read(key, partition, tenant, session)
        self.cache.put(entry)
        return entry

    def rebuild(self, entry: Entry) -> Entry:
        """From the committed row and the accepted events of both overlays; ``entry`` is what the cache has of
        it then, also where the partition was found bad and discarded in the middle of a seal."""
        session = entry.session
        with unwatched():
            fresh = self._committed_and_folded(entry.key, entry.partition, session.tenant, session.session)
        entry.session = fresh
        if self.cache.peek(entry.key) is not entry:
            self.cache.put(entry)
        return entry

    def _store(self, partition: int) -> Store:
        return self._assignment.written(partition).store

    def _read(self, key: bytes, partition: int, tenant: str, session: str) -> Entry:
        row = self._store(partition).row(key)
        if row is None:
            return Entry(key, partition, initial(tenant, session), history.EMPTY, 0)
        snapshot = rows.snapshot_of(row)
        tail = history.decode_tail(rows.tail_of(row))
        entry = Entry(key, partition, decode_session(snapshot), tail, len(snapshot))
        entry.armed = entry.session.timer_ms
        return entry

    def _committed_and_folded(self, key: bytes, partition: int, tenant: str, session_id: str) -> Any:
        store = self._store(partition)
        # The commit thread may write overlay k between two reads: a row belongs to the frontier read before
        # and after it only when both are equal.
        for _ in range(3):
            frontier, row, after = store.frontier(), store.row(key), store.frontier()
            if frontier == after:
                break
        else:
            raise InvariantViolation(f"the frontier of partition {partition} does not stand still")
        session = initial(tenant, session_id) if row is None else decode_session(rows.snapshot_of(row))
        done, state_next = (0, 0) if frontier is None else (frontier.inbox_next, frontier.state_next)
        overlays = self._overlays()
        for overlay in overlays:
            part = overlay.parts.get(partition)
            # Overlay k may be in the row already; k + 1, the last one, never is.
            if part is None or (overlay is not overlays[-1] and _stored(part, done, state_next)):
                continue
            for item in journal_of(part, key):
                entry = decode_journal(item.value)
                evolve(
                    session,
                    entry.seq,
                    entry.time_ms,
                    entry.partition,
                    entry.offset,
                    entry.env,
                    decode_event(entry.env),
                )
        return session


def _stored(part: PartitionOverlay, inbox_next: int, state_next: int) -> bool:
    """Whether a DB that is this far holds what was folded here."""
    if part.beyond is None:
        return part.next_offset <= inbox_next
    # The committed offset may stand still while records after it are handled; the changelog never does where
    # a session was changed.
    return 0 <= part.state_end <= state_next
