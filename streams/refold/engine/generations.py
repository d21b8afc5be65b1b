"""The fold of `batches`: how far each generation is. The pure rule is :mod:`refold.core.progress`; here are
the records, the cache over RocksDB's generation rows, and what is not committed yet.

Invariants:

- A generation record is a function of its records on `batches` and nothing else (rules G1-G7, G12): neither
  of the inbox nor of how the two were interleaved, batched or interrupted.
- An entry with unconfirmed changes is never evicted; an abort drops every entry its overlays touched,
  because the mutable progress inside has gone on.
- One record per touched generation and commit, however many batches it took.

Runs on the event loop; RocksDB point reads only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from typing import Any, Final

from refold.core.limits import GENERATION_NAME_BYTES_MAX, GENERATION_NAME_CHARS_SHORT
from refold.core.progress import Ignored, Marker, Progress, Refused, advance
from refold.core.rulings import Rejected
from refold.core.slots import split_key
from refold.engine import recordheaders
from refold.engine.assignment import Assignment
from refold.engine.chunks import Record, record_of
from refold.engine.forwards import forward
from refold.engine.overlay import Output, Overlay, PartitionOverlay
from refold.engine.slips import read
from refold.engine.stepview import StepView
from refold.errors import InvalidRecord
from refold.topology.names import TopicNames
from refold.wire.batches import decode_item, decode_progress, encode_progress, generation_key

#: A progress without acks: 25 slots, strings, dict entries. Each ack is a tuple, two numbers and a name.
ENTRY_BYTES: Final = 2_000
ACK_BYTES: Final = 250

#: 8 000 generations without acks, 900 with 64 clients each; the others are one point read away.
CACHE_BYTES_MAX: Final = 16 * 1024 * 1024

#: Keys whose partition is remembered: 65 536 x 120 bytes are 8 MiB. Then it begins anew.
KEYS_MAX: Final = 65_536


class Entry:
    """``progress`` is mutable and owned by the engine; ``None``: nothing is known of the generation."""

    __slots__ = ("generation_id", "key", "partition", "progress", "size", "unconfirmed")

    def __init__(self, key: bytes, generation_id: str, partition: int, progress: Progress | None) -> None:
        self.key = key
        self.generation_id = generation_id
        self.partition = partition
        self.progress = progress
        self.size = ENTRY_BYTES + ACK_BYTES * (0 if progress is None else len(progress.acks))
        #: Overlays that touched it and are not committed: 0, 1 or 2.
        self.unconfirmed = 0


class TouchedGeneration:
    """A :class:`refold.engine.side.SideRow`: a generation whose progress this overlay changed."""

    __slots__ = ("_owner", "encoded", "entry")

    def __init__(self, owner: Generations, entry: Entry) -> None:
        self._owner = owner
        self.entry = entry
        self.encoded: bytes | None = None

    def take_back(self, offsets: Container[int]) -> None:
        """Progress follows from batches alone: no event of the inbox is in it."""

    def seal(self) -> None:
        progress = self.entry.progress
        self.encoded = None if progress is None else encode_progress(self.entry.generation_id, progress)

    def confirm(self) -> None:
        self._owner.confirm(self.entry)

    def discard(self) -> None:
        self._owner.discard(self.entry.key)


class Generations:
    def __init__(self, topics: TopicNames, assignment: Assignment, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._topics = topics
        self._assignment = assignment
        self._bytes_max = bytes_max
        #: Above this an insertion walks the entries for some to let go.
        self._walk_above = bytes_max
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._partitions: dict[bytes, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    # --- fold --------------------------------------------------------------------------------------

    def fold(self, view: StepView, overlay: Overlay, part: PartitionOverlay, message: Any) -> None:
        """One record of `batches`: into its generation's progress, to its right partition (rule P), to the
        rejected topic, or nothing. The partition's position moves past it."""
        overlay.batches += 1
        offset = message.offset()
        key = message.key()
        try:
            partition = self._partitions.get(key)
            if partition is None:
                partition = self._partition(view, key)
            if partition != part.partition:
                self._forward(view, overlay, part, record_of(message), partition)
            else:
                self._advance(view, overlay, part, message, key, read(decode_item, message.value()))
        except InvalidRecord as bad:
            ruling = Rejected(bad.code, bad.reason)  # type: ignore[arg-type]
            self._refuse(view, overlay, part, record_of(message), ruling)
        part.batches_next = offset + 1

    def _advance(
        self, view: StepView, overlay: Overlay, part: PartitionOverlay, message: Any, key: bytes, item: Any
    ) -> None:
        if "#" in item.generation:
            # It would be the key of another session's generation.
            raise InvalidRecord("bad_id", "a generation's id holds no '#'")
        if (
            len(item.generation) > GENERATION_NAME_CHARS_SHORT
            and len(item.generation.encode()) > GENERATION_NAME_BYTES_MAX
        ):
            # No session has it, and the cache counts entries with ids that a session may have.
            raise InvalidRecord("bad_id", f"a generation's id has at most {GENERATION_NAME_BYTES_MAX} bytes")
        full_key = generation_key(key, item.generation)
        entry = self._entry(full_key, item.generation, part.partition)
        before = entry.progress
        entry.progress, verdict = advance(before, item, message.offset(), message.timestamp()[1])
        if isinstance(verdict, Refused):
            if type(item) is Marker:
                # Only a worker writes them: a later version's, or not a worker's at all. Nobody could mend
                # it.
                overlay.ignored["marker"] = overlay.ignored.get("marker", 0) + 1
                return
            self._refuse(view, overlay, part, record_of(message), Rejected(verdict.code, verdict.reason))
            return
        if isinstance(verdict, Ignored):
            overlay.ignored[verdict.why] = overlay.ignored.get(verdict.why, 0) + 1
        if entry.progress is None and before is None:
            return
        # Counters of ignored records are part of the progress too.
        if full_key not in part.side:
            part.side[full_key] = TouchedGeneration(self, entry)
            entry.unconfirmed += 1
            overlay.bytes += entry.size

    def _partition(self, view: StepView, key: bytes | None) -> int:
        split_key(key)
        if key is None:
            raise InvalidRecord("bad_key", "the record has no key; it must be tenant/session")
        if len(self._partitions) >= KEYS_MAX:
            self._partitions.clear()
        partition = self._partitions[key] = view.partition_of(key)
        return partition

    def _refuse(
        self, view: StepView, overlay: Overlay, part: PartitionOverlay, record: Record, ruling: Rejected
    ) -> None:
        topics = self._topics
        key, value, headers = recordheaders.rejected(
            topics.batches, record, ruling.code, ruling.reason, view.limits.rejected_bytes_max
        )
        part.outputs.append(Output(topics.rejected, part.partition, key, value, headers))
        overlay.bytes += len(value or b"")
        overlay.refused[ruling.code] = overlay.refused.get(ruling.code, 0) + 1

    def _forward(
        self, view: StepView, overlay: Overlay, part: PartitionOverlay, record: Record, target: int
    ) -> None:
        out = forward(self._topics.batches, record, target, view.limits.batches_bytes_max)
        if isinstance(out, Rejected):
            self._refuse(view, overlay, part, record, out)
            return
        part.outputs.append(out)
        overlay.bytes += len(record.value or b"")
        overlay.forwards += 1

    # --- entries -----------------------------------------------------------------------------------

    def progress(self, session_key: bytes, partition: int, generation_id: str) -> Progress | None:
        """As folded, committed or not (rule G10). To be looked at only."""
        return self._entry(generation_key(session_key, generation_id), generation_id, partition).progress

    def _entry(self, key: bytes, generation_id: str, partition: int) -> Entry:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry
        record = self._assignment.written(partition).store.side(key)
        entry = Entry(key, generation_id, partition, None if record is None else decode_progress(record))
        self._entries[key] = entry
        self.bytes += entry.size
        if self.bytes > self._walk_above:
            self._evict(entry)
        return entry

    def _evict(self, spared: Entry) -> None:
        """Down to 7/8, so that the walk is paid once per many insertions; where too much is unconfirmed, the
        next one is as many insertions away."""
        self._walk_above = self._bytes_max
        target = self._bytes_max - self._bytes_max // 8
        for key in list(self._entries):
            if self.bytes <= target:
                return
            entry = self._entries[key]
            if entry.unconfirmed == 0 and entry is not spared:
                self._drop(key)
        self._walk_above = max(self._bytes_max, self.bytes + self._bytes_max // 8)

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.size

    def confirm(self, entry: Entry) -> None:
        """Committed and on disk: may be evicted."""
        self._walk_above = self._bytes_max
        entry.unconfirmed -= 1
        acks = 0 if entry.progress is None else len(entry.progress.acks)
        size = ENTRY_BYTES + ACK_BYTES * acks
        if self._entries.get(entry.key) is entry:
            self.bytes += size - entry.size
        entry.size = size

    def discard(self, key: bytes) -> None:
        self._drop(key)

    def discard_partition(self, partition: int) -> None:
        for key in [key for key, entry in self._entries.items() if entry.partition == partition]:
            self._drop(key)
