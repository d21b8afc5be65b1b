"""What has been folded and not committed: one overlay is filled (k + 1) while another is committed (k).

Kept per partition, so that a revoked partition is dropped whole (rule R). Everything in it carries the
assignment epoch under which it was folded; committing an entry of another epoch is a bug, not a case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from refold.core.notes import Note
from refold.core.rulings import Accepted, Duplicate, Rejected
from refold.engine.cache import Entry
from refold.engine.chunks import Record
from refold.engine.warming.beyond import Beyond

if TYPE_CHECKING:
    from refold.engine.side import SideRow
    from refold.engine.step import Effects

Headers = Sequence[tuple[str, bytes]]

#: What a touched session keeps in memory beyond its encoded size: it cannot be evicted before the commit
#: (``cache.ENTRY_BYTES``), and there is this overlay's note about it. Without it an overlay of 12 MiB held
#: 15 000 new sessions of one message, and `bench.memory` peaked at 366 to 407 MiB instead of 323 to 325.
TOUCHED_BYTES: Final = 1_700


class Journal(NamedTuple):
    """One accepted event, in the order of its partition."""

    key: bytes
    value: bytes
    headers: Headers


class Output(NamedTuple):
    """A record for another topic (rejected, a marker, a review item) or another partition of a source (a
    forward).

    ``session``: key of the session whose accepted event it belongs to; taken back together with that event.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    session: bytes | None = None


class Touched:
    """A session changed by this overlay.

    ``events``: places of its events in the partition's journal list, since its last deletion in this overlay
    (``deleted``). ``outputs``: how many outputs are about it, ``settled`` of them from before that deletion.
    ``encoded`` is set by the seal: the framed snapshot, or ``None`` for a tombstone.
    """

    __slots__ = ("deleted", "encoded", "entry", "events", "outputs", "seq", "settled")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.events: list[int] = []
        self.deleted = False
        self.outputs = 0
        self.settled = 0
        self.encoded: bytes | None = None
        self.seq = 0


class Noted(NamedTuple):
    """Accepted as ``seq``, with something to tell (:mod:`refold.core.notes`)."""

    seq: int
    note: Note


#: A ruling and the stamp of the producer it is for. The common one, accepted, is only its seq, and the pair a
#: plain tuple: thousands of these are kept, and the cycle collector soon lets go of what holds no objects.
Ruled: TypeAlias = tuple[int | Noted | Duplicate | Rejected, str | None]


class PartitionOverlay:
    __slots__ = (
        "batches_next",
        "beyond",
        "claim",
        "epoch",
        "journal",
        "next_offset",
        "outputs",
        "partition",
        "rulings",
        "side",
        "state_end",
        "touched",
    )

    def __init__(self, partition: int, epoch: int, next_offset: int, batches_next: int = 0) -> None:
        self.partition = partition
        self.epoch = epoch
        #: One past the last inbox record folded: what is committed for this partition (rule F: always),
        #: unless records before it wait.
        self.next_offset = next_offset
        #: What is committed instead where records wait, or were handled by a predecessor (rule H5); set when
        #: the overlay is taken for a commit.
        self.beyond: Beyond | None = None
        #: End of the state changelog after its commit; set by the commit thread before RocksDB is written.
        self.state_end = -1
        #: The same for batches: both go with every commit.
        self.batches_next = batches_next
        #: Side rows that changed, by the key of their changelog.
        self.side: dict[bytes, SideRow] = {}
        self.journal: list[Journal] = []
        self.outputs: list[Output] = []
        self.touched: dict[bytes, Touched] = {}
        self.rulings: dict[int, Ruled] = {}
        #: The first commit of a new owner: nothing but the unchanged offset with our name in the metadata, so
        #: that whoever takes over from us knows whom to fence (rule D).
        self.claim = False

    @property
    def offset(self) -> int:
        """What is committed for the inbox: every record before it was handled."""
        return self.next_offset if self.beyond is None else self.beyond.low


class Overlay:
    __slots__ = (
        "batches",
        "bytes",
        "duplicates",
        "first_event",
        "forwards",
        "ignored",
        "opaque",
        "parts",
        "records",
        "refused",
        "rejected",
    )

    def __init__(self) -> None:
        self.parts: dict[int, PartitionOverlay] = {}
        self._start_counting()

    def _start_counting(self) -> None:
        #: Encoded bytes that its commit will send, estimated: the journal exactly, state records by their
        #: last size; and what the touched sessions hold besides.
        self.bytes = 0
        self.records = 0
        self.duplicates = 0
        self.forwards = 0
        self.opaque = 0
        self.rejected: dict[str, int] = {}
        #: Records of batches: all; ignored by reason; refused by code.
        self.batches = 0
        self.ignored: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        #: Monotonic time at which the oldest event in it was folded.
        self.first_event = 0.0

    def __bool__(self) -> bool:
        return bool(self.parts)

    def part(self, partition: int, epoch: int, next_offset: int, batches_next: int = 0) -> PartitionOverlay:
        found = self.parts.get(partition)
        if found is None:
            found = self.parts[partition] = PartitionOverlay(partition, epoch, next_offset, batches_next)
        return found

    def drop(self, partition: int) -> PartitionOverlay | None:
        dropped = self.parts.pop(partition, None)
        if not self.parts:
            # No commit would follow that makes room: an empty overlay that counts as full stops the fold.
            self._start_counting()
        return dropped

    def touched(self) -> Iterator[Touched]:
        for part in self.parts.values():
            yield from part.touched.values()

    def keys(self) -> list[bytes]:
        return [key for part in self.parts.values() for key in part.touched]

    def side_rows(self) -> Iterator[tuple[bytes, SideRow]]:
        for part in self.parts.values():
            yield from part.side.items()


def touch(part: PartitionOverlay, entry: Entry) -> Touched:
    """The overlay's note about ``entry``; the entry becomes unconfirmed on first touch."""
    found = part.touched.get(entry.key)
    if found is None:
        found = part.touched[entry.key] = Touched(entry)
        entry.unconfirmed += 1
    return found


def apply(overlay: Overlay, part: PartitionOverlay, record: Record, effects: Effects) -> None:
    """Take in what one record caused. The partition's frontier moves past it."""
    entry = effects.entry
    if entry is not None:
        touched = part.touched.get(entry.key)
        if touched is None:
            touched = touch(part, entry)
            overlay.bytes += entry.encoded_bytes + TOUCHED_BYTES
        journal = part.journal
        for item in effects.journal:
            touched.events.append(len(journal))
            journal.append(item)
            overlay.bytes += len(item.value)
        for out in effects.outputs:
            touched.outputs += out.session is not None
        if effects.deleted:
            touched.deleted = True
            touched.settled = touched.outputs
            touched.events.clear()
        elif effects.opaque:
            overlay.opaque += 1
    for out in effects.outputs:
        part.outputs.append(out)
        overlay.bytes += len(out.value or b"")
    for change in effects.side:
        change.into(overlay, part, record.offset)
    ruling = effects.ruling
    if ruling is None:
        overlay.forwards += 1
    else:
        if isinstance(ruling, Accepted):
            seq, note = ruling.seq, effects.note
            part.rulings[record.offset] = (seq if note is None else Noted(seq, note), effects.producer_id)
        else:
            part.rulings[record.offset] = (ruling, effects.producer_id)
            if isinstance(ruling, Rejected):
                overlay.rejected[ruling.code] = overlay.rejected.get(ruling.code, 0) + 1
            else:
                overlay.duplicates += 1
    overlay.records += 1
    part.next_offset = record.offset + 1


def journal_of(part: PartitionOverlay, key: bytes) -> list[Journal]:
    """The accepted events of one session in this overlay (for rebuilding a session: rare, so a scan)."""
    return [item for item in part.journal if item.key == key]
