"""The fold of usage: rows of (tenant, subject, model) beside the sessions. The pure rule is
:mod:`refold.core.usage`; here are the cache over RocksDB's rows and what is not committed yet.

Invariants:

- W3: a row is a function of the accepted events of its partition, in the order of the journal: they are
  folded into it where they are folded into their session, and taken back with them.
- An entry with unconfirmed changes is never evicted; an abort drops every entry its overlays touched,
  because the mutable row inside has gone on.
- One record per touched row and commit, however many events it took.
- W4: a row is only removed when the next event that could come would begin it anew. The clock is that of the
  inbox (its append times, of what is folded), less ``SWEEP_MARGIN_MS`` for what is forwarded from another
  partition with an older time. So where nothing is folded, nothing is removed: nothing is added either.

Runs on the event loop; RocksDB point reads only, but for :meth:`Usages.over`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Sequence
from typing import Final, TypeAlias

from refold.core.usage import ANY_MODEL, UsageEvent, UsageRow, fold_usage, is_over
from refold.engine.assignment import Assignment
from refold.engine.overlay import Overlay, PartitionOverlay
from refold.engine.side import SEPARATOR, USAGE, side_key
from refold.engine.store import Store, UnreadableStore
from refold.errors import InvariantViolation
from refold.wire.usage import decode_usage, encode_usage

#: A row without hops and leases; a hop is a list of five numbers under a number; a lease two names and more.
ENTRY_BYTES: Final = 1_800
HOP_BYTES: Final = 250
LEASE_BYTES: Final = 350

#: 1 500 rows with all of their hops; the others are one point read away.
CACHE_BYTES_MAX: Final = 16 * 1024 * 1024

#: What is kept of an event until its commit, so that it can be taken back: a tuple, the change, the event.
CHANGE_BYTES: Final = 300

#: A forward keeps the append time of its first partition: older than what is folded here by as long as that
#: partition's owner was away. An hour is ten restores of the largest partition.
SWEEP_MARGIN_MS: Final = 3_600 * 1_000

#: Rows looked at in one go of a sweep: 500 x 30 us of decoding, on a thread of its own.
SWEEP_ROWS: Final = 500

#: Models of one subject that an answer sums up, in the order of their names.
MODELS_MAX: Final = 1_000

_FIRST: Final = USAGE + SEPARATOR
#: ``$`` follows ``#``.
_END: Final = USAGE + b"$"


def usage_key(tenant: str, subject: str, model: str) -> bytes:
    """The key of a row in its changelog."""
    return side_key(USAGE, tenant.encode(), subject.encode(), model.encode())


def usage_range(tenant: str, subject: str) -> tuple[bytes, bytes]:
    """First key and end of the rows of all models of a subject."""
    first = side_key(USAGE, tenant.encode(), subject.encode())
    return first + SEPARATOR, first + b"$"


#: Partition, tenant, subject, model.
Names: TypeAlias = tuple[int, str, str, str]


def read_usage(
    tenant: str, subject: str, model: str, stores: Sequence[tuple[int, Store]]
) -> dict[int, list[bytes]]:
    """Committed rows of a model, or of all of the subject's, by partition. Disk thread; blocks. Raises
    :class:`refold.engine.store.UnreadableStore`, after the store's owner was told."""
    found: dict[int, list[bytes]] = {}
    for number, store in stores:
        if model == ANY_MODEL:
            first, end = usage_range(tenant, subject)
            try:
                found[number] = [record for _, record in store.side_range(first, end, MODELS_MAX)]
            except UnreadableStore as error:
                store.on_unreadable(error)
                raise
        else:
            record = store.side(usage_key(tenant, subject, model))
            found[number] = [] if record is None else [record]
    return found


class Entry:
    """``row`` is mutable and owned by the engine; ``None``: nothing is known of the subject and model."""

    __slots__ = ("key", "names", "partition", "row", "size", "unconfirmed")

    def __init__(self, names: Names) -> None:
        self.names = names
        self.partition = names[0]
        self.key = usage_key(*names[1:])
        self.row: UsageRow | None = None
        self.size = ENTRY_BYTES
        #: Overlays that touched it and are not committed: 0, 1 or 2.
        self.unconfirmed = 0


def _size(row: UsageRow | None) -> int:
    if row is None:
        return ENTRY_BYTES
    return ENTRY_BYTES + HOP_BYTES * sum(map(len, row.hops)) + LEASE_BYTES * len(row.leases)


class UsageChange:
    """A :class:`refold.engine.side.SideChange`: one accepted event of usage."""

    __slots__ = ("_owner", "event", "session", "tenant", "time_ms")

    def __init__(self, owner: Usages, tenant: str, session: str, event: UsageEvent, time_ms: int) -> None:
        self._owner = owner
        self.tenant = tenant
        self.session = session
        self.event = event
        self.time_ms = time_ms

    def into(self, overlay: Overlay, part: PartitionOverlay, offset: int) -> None:
        touched = self._owner.touch(overlay, part, self.tenant, self.event.subject, self.event.model)
        touched.changes.append((offset, self))
        overlay.bytes += CHANGE_BYTES
        touched.entry.row = self.fold(touched.entry.row)

    def fold(self, row: UsageRow | None) -> UsageRow:
        return fold_usage(row, self.tenant, self.session, self.event, self.time_ms)


class TouchedUsage:
    """A :class:`refold.engine.side.SideRow`: a row that this overlay changed, and by what."""

    __slots__ = ("_owner", "_was", "changes", "encoded", "entry")

    def __init__(self, owner: Usages, entry: Entry) -> None:
        self._owner = owner
        self._was = _judged(entry.row)
        self.entry = entry
        self.changes: list[tuple[int, UsageChange]] = []
        self.encoded: bytes | None = None

    def take_back(self, offsets: Container[int]) -> None:
        kept = [change for change in self.changes if change[0] not in offsets]
        if len(kept) == len(self.changes):
            return
        self.changes = kept
        # The overlay before this one is on disk when this one is sealed: what is there is what this one
        # began with.
        row = self._owner.stored(self.entry)
        for _, change in kept:
            row = change.fold(row)
        self.entry.row = row

    def seal(self) -> None:
        entry = self.entry
        self.encoded = None if entry.row is None else encode_usage(entry.row, entry.partition)

    def confirm(self) -> None:
        counts = self._owner.counts
        for _, change in self.changes:
            counts[type(change.event).__name__] += 1
        future, late = _judged(self.entry.row)
        # A row that began anew meanwhile has fewer.
        counts["future"] += max(0, future - self._was[0])
        counts["late"] += max(0, late - self._was[1])
        self._owner.confirm(self.entry)

    def discard(self) -> None:
        self._owner.drop(self.entry)


def _judged(row: UsageRow | None) -> tuple[int, int]:
    """Records in the future; records late for at least the minute."""
    return (0, 0) if row is None else (row.future, row.late[0])


class Usages:
    """A :class:`refold.engine.side.SideCache`."""

    def __init__(self, assignment: Assignment, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._assignment = assignment
        self._bytes_max = bytes_max
        #: Above this an insertion walks the entries for some to let go.
        self._walk_above = bytes_max
        self._entries: OrderedDict[Names, Entry] = OrderedDict()
        self.bytes = 0
        #: Partitions in which usage was folded, since they were owned.
        self.folded: set[int] = set()
        #: Committed events by type, and verdicts (``late``, ``future``), since they were last taken.
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def take_counts(self) -> Counter[str]:
        taken, self.counts = self.counts, Counter()
        return taken

    # --- fold --------------------------------------------------------------------------------------

    def touch(
        self, overlay: Overlay, part: PartitionOverlay, tenant: str, subject: str, model: str
    ) -> TouchedUsage:
        """The overlay's note about a row."""
        entry = self._entry(part.partition, tenant, subject, model)
        touched = part.side.get(entry.key)
        if touched is None:
            touched = part.side[entry.key] = TouchedUsage(self, entry)
            entry.unconfirmed += 1
            overlay.bytes += entry.size
        if not isinstance(touched, TouchedUsage):
            raise InvariantViolation("another kind of side row has the key of a usage row")
        return touched

    def stored(self, entry: Entry) -> UsageRow | None:
        """The row as committed."""
        record = self._assignment.written(entry.partition).store.side(entry.key)
        return None if record is None else decode_usage(record)

    # --- W4 ----------------------------------------------------------------------------------------

    @staticmethod
    def over(store: Store, after: bytes, now_ms: int) -> tuple[list[UsageRow], bytes]:
        """Rows that are over at ``now_ms`` among the next ``SWEEP_ROWS`` after a key (empty: from the first
        on), and the key to go on after; empty at the end. Blocks: reads and decodes."""
        rows = store.side_range(after + b"\0" if after else _FIRST, _END, SWEEP_ROWS)
        found = [row for row in (decode_usage(record) for _, record in rows) if is_over(row, now_ms)]
        return found, rows[-1][0] if len(rows) == SWEEP_ROWS else b""

    def expire(self, overlay: Overlay, part: PartitionOverlay, stored: UsageRow, now_ms: int) -> bool:
        """Remove a row, if it is over by what has been folded since as well."""
        names = (stored.tenant, stored.subject, stored.model)
        entry = self._entry(part.partition, *names)
        if entry.unconfirmed or entry.row is None or not is_over(entry.row, now_ms):
            return False
        self.touch(overlay, part, *names)
        entry.row = None
        return True

    # --- entries -----------------------------------------------------------------------------------

    def _entry(self, partition: int, tenant: str, subject: str, model: str) -> Entry:
        names = (partition, tenant, subject, model)
        entry = self._entries.get(names)
        if entry is not None:
            self._entries.move_to_end(names)
            return entry
        self.folded.add(partition)
        entry = Entry(names)
        entry.row = self.stored(entry)
        entry.size = _size(entry.row)
        self._entries[names] = entry
        self.bytes += entry.size
        if self.bytes > self._walk_above:
            self._evict(entry)
        return entry

    def _evict(self, spared: Entry) -> None:
        """Down to 7/8, so that the walk is paid once per many insertions; where too much is unconfirmed, the
        next one is as many insertions away."""
        target = self._bytes_max - self._bytes_max // 8
        for entry in list(self._entries.values()):
            if self.bytes <= target:
                break
            if entry.unconfirmed == 0 and entry is not spared:
                self.drop(entry)
        self._walk_above = max(self._bytes_max, self.bytes + self._bytes_max // 8)

    def confirm(self, entry: Entry) -> None:
        entry.unconfirmed -= 1
        size = _size(entry.row)
        if self._entries.get(entry.names) is entry:
            self.bytes += size - entry.size
        entry.size = size
        self._walk_above = self._bytes_max

    def drop(self, entry: Entry) -> None:
        if self._entries.get(entry.names) is entry:
            del self._entries[entry.names]
            self.bytes -= entry.size

    def discard_partition(self, partition: int) -> None:
        self.folded.discard(partition)
        for entry in [entry for entry in self._entries.values() if entry.partition == partition]:
            self.drop(entry)
