"""Decoded sessions, bounded by bytes; what was not asked for lately goes first.

Second chance instead of a strict order of use: a hit sets a flag and moves nothing, the eviction takes the
oldest entries and lets those with the flag live once more.

Invariants: an entry with unconfirmed changes (touched by an overlay that is not committed) is never evicted,
because the disk does not have them yet; an abort drops every entry its overlays touched, because the mutable
session inside has gone on. The unconfirmed ones are bounded by the overlay limit, not by this one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from refold.engine.history import Tail

#: A decoded session against its encoded bytes: payloads, the objects around them, and the encoded form of
#: each part that is kept for the next snapshot. Measured with tracemalloc after a snapshot was made: 2.8 KB
#: for 318 encoded bytes, 6.7 for 1 854, 13.1 for 4 318, 15.2 for 5 745 (1, 8, 21 and 80 messages).
DECODED_PER_ENCODED: Final = 2.5

#: An entry with an empty session: slots, dict entry, dedup memory, key.
ENTRY_BYTES: Final = 1_700


class Entry:
    """A session in memory. ``session`` is mutable and owned by the engine; it never leaves it."""

    __slots__ = (
        "armed",
        "encoded_bytes",
        "key",
        "names",
        "partition",
        "session",
        "size",
        "tail",
        "unconfirmed",
        "used",
    )

    def __init__(self, key: bytes, partition: int, session: Any, tail: Tail, encoded_bytes: int) -> None:
        self.key = key
        self.partition = partition
        self.session = session
        self.tail = tail
        #: As last encoded.
        self.encoded_bytes = encoded_bytes
        self.size = ENTRY_BYTES + int(encoded_bytes * DECODED_PER_ENCODED)
        #: Overlays that touched it and are not committed: 0, 1 or 2.
        self.unconfirmed = 0
        #: Asked for since the eviction last came by.
        self.used = False
        #: What its plain records have in common (``refold.wire.plain``), made when the first one comes.
        self.names = b""
        #: The deadline for which its timer row was written last (``refold.engine.timers``); 0: there is none.
        self.armed = 0


class SessionCache:
    """Not thread-safe: only the event loop uses it."""

    def __init__(self, bytes_max: int) -> None:
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._bytes_max = bytes_max
        #: Above this an insertion walks the entries for some to let go.
        self._walk_above = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        #: The entry of a key or ``None``, without counting or marking it as used.
        self.peek: Callable[[bytes], Entry | None] = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def get(self, key: bytes) -> Entry | None:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        entry.used = True
        self.hits += 1
        return entry

    def put(self, entry: Entry) -> None:
        old = self._entries.pop(entry.key, None)
        if old is not None:
            self.bytes -= old.size
        self.bytes += entry.size
        # Before it is in: it is about to be changed, and where everything older is unconfirmed it would be
        # the one to go. Its next event would then be folded on what the disk has, without this one.
        if self.bytes > self._walk_above:
            self._evict()
        self._entries[entry.key] = entry

    def resize(self, entry: Entry, encoded_bytes: int) -> None:
        """The entry was encoded anew: its size is known again."""
        size = ENTRY_BYTES + int(encoded_bytes * DECODED_PER_ENCODED)
        if self._entries.get(entry.key) is entry:
            self.bytes += size - entry.size
        entry.size = size
        entry.encoded_bytes = encoded_bytes

    def discard(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.bytes -= entry.size

    def discard_partition(self, partition: int) -> None:
        self.discard([key for key, entry in self._entries.items() if entry.partition == partition])

    def confirmed(self) -> None:
        """Entries became evictable: make room if there is too much."""
        if self.bytes > self._bytes_max:
            self._evict()

    def _evict(self) -> None:
        # Down to 7/8, so that walking the keys is paid once per many insertions; where too much is
        # unconfirmed, the next walk is as many insertions away. What was used is moved to the young end; a
        # second round meets nothing that is both used and evictable.
        self._walk_above = self._bytes_max
        target = self._bytes_max - self._bytes_max // 8
        for _ in range(2):
            for key in list(self._entries):
                if self.bytes <= target:
                    return
                entry = self._entries[key]
                if entry.unconfirmed:
                    continue
                if entry.used:
                    entry.used = False
                    self._entries.move_to_end(key)
                    continue
                del self._entries[key]
                self.bytes -= entry.size
        self._walk_above = max(self._bytes_max, self.bytes + self._bytes_max // 8)
