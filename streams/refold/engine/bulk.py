"""What a restore has read and not yet written: the last record of every key, and how it gets into the DB.

Rules B1 to B3 of docs/internals/recovery.md:

- A changelog is read forward and kept as key → last record, so of a key that was written a hundred times one
  row is made. Bounded by :data:`RUN_RECORDS_MAX` and by bytes, replaced records not counted.
- A large run becomes one sorted SST file that is moved into the DB, past memtable and compaction; a small one
  a batch. Either is one atom and holds the frontier row: what is in the DB is always what the row says, and a
  crash at any moment costs a run that is read again.
- Later runs shadow earlier ones: the order of the log.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from confluent_kafka import Message

from refold.engine import history, rows
from refold.engine.points import Points
from refold.engine.store import Batch, Store

#: Keys of one run. With the bytes below, which count first for records over 200 bytes.
RUN_RECORDS_MAX: Final = 50_000

#: Values, keys and what Python keeps beside them: two restores at once hold twice this.
RUN_BYTES_MAX: Final = 32 * 1024 * 1024

#: Of one kept record beside key and value, in Python and librdkafka: measured 480 to 560 bytes.
RECORD_OVERHEAD_BYTES: Final = 512

#: From here on a run is worth a file: one memtable of the DB would not hold it. Below it the tail of a warm
#: copy stays in memory, as a commit's rows do.
FILE_BYTES_MIN: Final = 4 * 1024 * 1024

#: The first byte of a row's key says what it is.
KIND_BYTES: Final = 1

#: A run is full from here on: between two counts of what is really kept at least an eighth is read.
FULL_EIGHTHS: Final = 7

#: A paced restore writes at least this often, or a crash would cost it what it waited for.
RUN_SECONDS_MAX: Final = 5


class Run:
    """One thread. Keys of one kind of row (:mod:`refold.engine.rows`, one byte) are kept as they were read: a
    full key for each record of a key would be most of what keeping it costs."""

    __slots__ = ("_bytes_bound", "_bytes_max", "_last")

    def __init__(self, bytes_per_s_max: int = 0) -> None:
        self._bytes_max = min(RUN_BYTES_MAX, bytes_per_s_max * RUN_SECONDS_MAX or RUN_BYTES_MAX)
        self._last: defaultdict[bytes, dict[bytes, Message]] = defaultdict(dict)
        #: What was put since it was counted last is in it, also what was replaced since.
        self._bytes_bound = 0

    def put(self, key: bytes, message: Message) -> None:
        """``message`` is the newest of its full row key; without a value it deletes the row."""
        self._last[key[:KIND_BYTES]][key[KIND_BYTES:]] = message
        self._bytes_bound += len(message) + len(key) + RECORD_OVERHEAD_BYTES

    def put_all(self, kind: bytes, keys: Sequence[bytes], messages: Sequence[Message]) -> int:
        """Records of one changelog in the order of the log, newer than all before. ``kind``: which rows they
        are. Returns the bytes of keys and values. Costs most of a restore, hence no loop in Python."""
        self._last[kind].update(zip(keys, messages, strict=True))
        size = sum(map(len, messages)) + sum(map(len, keys))
        self._bytes_bound += size + len(keys) * (len(kind) + RECORD_OVERHEAD_BYTES)
        return size

    def __len__(self) -> int:
        return sum(map(len, self._last.values()))

    def _bytes(self) -> int:
        """Of what is kept: exact."""
        self._bytes_bound = len(self) * (KIND_BYTES + RECORD_OVERHEAD_BYTES)
        for last in self._last.values():
            self._bytes_bound += sum(map(len, last.values())) + sum(map(len, last))
        return self._bytes_bound

    @property
    def full(self) -> bool:
        if len(self) >= RUN_RECORDS_MAX:
            return True
        if self._bytes_bound < self._bytes_max:
            return False
        return self._bytes() >= self._bytes_max * FULL_EIGHTHS // 8

    def write(self, store: Store, frontier: rows.Frontier, points: Points) -> None:
        """All of it and the row that says so, as one atom; empty afterwards. Blocks.

        Raises :class:`StorageError`, also for a record of the state topic that is no snapshot.
        """
        if self._bytes() >= FILE_BYTES_MIN:
            store.build(self._sorted(frontier))
            points.reach("run_built")
            store.ingest()
            points.reach("run_ingested")
        else:
            batch = Batch()
            for kind, last in self._last.items():
                for tail, message in last.items():
                    key = kind + tail
                    row = row_of(key, message)
                    if row is None:
                        batch.delete(key)
                    else:
                        batch.put(key, row)
            batch.frontier(frontier)
            store.write(batch)
        self._last.clear()
        self._bytes_bound = 0

    def _sorted(self, frontier: rows.Frontier) -> Iterator[tuple[bytes, bytes | None]]:
        kinds = sorted(self._last)
        at = bisect.bisect(kinds, rows.NOTE)
        yield from self._rows(kinds[:at])
        yield rows.FRONTIER_KEY, frontier.encode()
        yield from self._rows(kinds[at:])

    def _rows(self, kinds: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        for kind in kinds:
            last = self._last[kind]
            for tail in sorted(last):
                yield (key := kind + tail), row_of(key, last[tail])


def row_of(key: bytes, message: Message) -> bytes | None:
    """The row that a record makes, under its full key; ``None``: it deletes it. Raises :class:`StorageError`
    for a record of the state topic that is no snapshot."""
    value: bytes | None = message.value()
    if value is None or not key.startswith(rows.STATE):
        return value
    tail = b""
    for name, content in message.headers() or ():
        if name == history.HEADER:
            tail = content or b""
    return rows.pack(rows.snapshot_seq(value), tail, value)
