"""RocksDB, one DB per partition: the second-level cache of the state topic.

Invariants:

- A batch is written only after its transaction has committed, and carries the frontier row in the same batch:
  the DB may be behind the changelog, never ahead of it.
- No write-ahead log. After ``kill -9`` the DB is at its last flush, consistently (one column family: a batch
  is never split), and the changelog's tail brings it up. A log would only shorten that tail, and it costs a
  second write of every byte.
- What a restore reads in bulk comes as sorted files (:meth:`Store.build`, :meth:`Store.ingest`), each with
  the frontier row as well.
- A DB that cannot be trusted is set aside (one generation kept, for inspection) and rebuilt, never repaired.
- A read that fails raises :class:`UnreadableStore`: nothing is ever taken for absent because it could not be
  read.

Opening, closing, flushing and restoring block and never run on the event loop; point reads do.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from refold.engine import rows
from refold.engine.history import block_key
from refold.errors import StorageError

#: Uncompressed blocks of all partitions together; the OS page cache holds the compressed ones.
BLOCK_CACHE_BYTES: Final = 32 * 1024 * 1024

#: Memtables of all partitions together: with the block cache and 48 MiB of decoded sessions the process stays
#: below 400 MB (`bench.memory`). Six full ones: four partitions of a busy worker fill one each at a time.
WRITE_BUFFERS_BYTES: Final = 48 * 1024 * 1024

#: One memtable. At most this much of the changelog is read again after a `kill -9`: 8 MiB, under 0.1 s.
WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024

#: 64 partitions x 256 stays below the usual limit of 20 000 open files per process.
OPEN_FILES_MAX: Final = 256

#: 10 bits per key: 1 % of lookups of an absent session read a block.
BLOOM_BITS_PER_KEY: Final = 10

#: End of the name of a sorted file until it is in the DB.
RUN_SUFFIX: Final = ".run"

#: Beginnings of names that RocksDB gives to files of a DB, whatever else is missing.
_DB_FILES: Final = ("CURRENT", "LOCK", "LOG", "MANIFEST-", "OPTIONS-", "IDENTITY")

#: How RocksDB says that a DB is open: in another process, in this one.
_LOCKED: Final = ("IO error: While lock file:", "IO error: lock hold by current process")

LOG_FILES_MAX: Final = 2
LOG_FILE_BYTES_MAX: Final = 1024 * 1024


class UnreadableStore(StorageError):
    """What is on the disk cannot be read any more: the copy is to be set aside and restored."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class BlockedStore(StorageError):
    """Not the copy's fault: another process has it open, or the disk is full. It stays as it is."""


class Memory:
    """What all DBs of a process share."""

    def __init__(self) -> None:
        self.block_cache = Cache(BLOCK_CACHE_BYTES)
        self.write_buffers = WriteBufferManager(WRITE_BUFFERS_BYTES, False)


def _options(memory: Memory) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(LOG_FILES_MAX)
    options.set_max_log_file_size(LOG_FILE_BYTES_MAX)
    options.set_max_background_jobs(2)
    table = BlockBasedOptions()
    table.set_block_cache(memory.block_cache)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options


_NO_WAL: Final = WriteOptions()
_NO_WAL.disable_wal = True


class Batch:
    """The writes of one commit (or one chunk of a restore) to one partition, and the frontier after it."""

    __slots__ = ("raw",)

    def __init__(self) -> None:
        self.raw = WriteBatch(raw_mode=True)

    def put(self, row_key: bytes, row: bytes) -> None:
        """Any row under its full key (``rows``)."""
        self.raw.put(row_key, row)

    def delete(self, row_key: bytes) -> None:
        self.raw.delete(row_key)

    def put_state(self, key: bytes, row: bytes) -> None:
        self.raw.put(rows.STATE + key, row)

    def delete_state(self, key: bytes) -> None:
        self.raw.delete(rows.STATE + key)

    def put_block(self, full_key: bytes, value: bytes) -> None:
        self.raw.put(rows.BLOCK + full_key, value)

    def delete_block(self, full_key: bytes) -> None:
        self.raw.delete(rows.BLOCK + full_key)

    def put_side(self, key: bytes, record: bytes) -> None:
        self.raw.put(rows.SIDE + key, record)

    def delete_side(self, key: bytes) -> None:
        self.raw.delete(rows.SIDE + key)

    def known(self, key: bytes) -> None:
        """What the DB has of the session is newer than the hole (rule H3)."""
        self.raw.put(rows.KNOWN + key, b"")

    def known_block(self, full_key: bytes) -> None:
        self.raw.put(rows.KNOWN_BLOCK + full_key, b"")

    def forget_known(self) -> None:
        """There is no hole any more, or it is another one. First in a batch: also what is put before goes."""
        for prefix in (rows.KNOWN, rows.KNOWN_BLOCK):
            self.raw.delete_range(prefix, bytes((prefix[0] + 1,)))

    def frontier(self, frontier: rows.Frontier) -> None:
        self.raw.put(rows.FRONTIER_KEY, frontier.encode())


class Store:
    """One open partition DB. Reads are thread-safe; one thread writes at a time."""

    def __init__(self, path: Path, memory: Memory) -> None:
        """Open or create. Raises :class:`StorageError`; blocks."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = Rdict(str(path), _options(memory))
        except Exception as error:
            raise _explained(path, error) from None
        self._closed = False
        #: Told before a read raises: whoever reads need not know what is to be done then.
        self.on_unreadable: Callable[[UnreadableStore], None] = _nobody
        self._memory = memory
        #: Under construction (:meth:`build`): beside the DB and not in it, where it would be an unknown file.
        self._run = path.with_name(path.name + RUN_SUFFIX)
        with contextlib.suppress(OSError):
            # Of a process that was killed before it was ingested.
            self._run.unlink(missing_ok=True)

    def _get(self, full_key: bytes) -> bytes | None:
        try:
            found: Any = self._db.get(full_key)
        except Exception as error:
            raised = _unreadable(self.path, error)
            self.on_unreadable(raised)
            raise raised from None
        return None if found is None else bytes(found)

    def row(self, key: bytes) -> bytes | None:
        return self._get(rows.STATE + key)

    def block(self, key: bytes, block: int) -> bytes | None:
        return self._get(rows.BLOCK + block_key(key, block))

    def known(self, key: bytes) -> bool:
        """Whether what is here of the session was noted to be newer than the hole (:meth:`Batch.known`)."""
        return self._get(rows.KNOWN + key) is not None

    def known_block(self, full_key: bytes) -> bool:
        return self._get(rows.KNOWN_BLOCK + full_key) is not None

    def side(self, key: bytes) -> bytes | None:
        """The framed side row under its changelog's key (:mod:`refold.engine.side`)."""
        return self._get(rows.SIDE + key)

    def side_range(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` side rows with first <= key < end, in the order of their keys, as of one commit;
        nothing when the DB is closed. On the disk thread: what was deleted in between is walked over.

        Raises :class:`UnreadableStore`, which is the caller's to tell."""
        if self._closed:
            return []
        found: list[tuple[bytes, bytes]] = []
        cursor = self._db.iter()
        there = _seek(self.path, cursor, rows.SIDE + first)
        while there and len(found) < limit and (key := bytes(cursor.key())) < rows.SIDE + end:
            found.append((key[len(rows.SIDE) :], bytes(cursor.value())))
            cursor.next()
            there = cursor.valid()
        if not there:
            _check(self.path, cursor)
        return found

    def with_generation(self, key: bytes, generation_key: bytes) -> tuple[bytes | None, bytes | None]:
        """A session's row and the record of one of its generations, both as of the same commit."""
        # An iterator is a snapshot from its making on.
        cursor = self._db.iter()
        found: list[bytes | None] = []
        try:
            for full_key in (rows.STATE + key, rows.SIDE + generation_key):
                here = _seek(self.path, cursor, full_key) and bytes(cursor.key()) == full_key
                found.append(bytes(cursor.value()) if here else None)
        except UnreadableStore as error:
            self.on_unreadable(error)
            raise
        return found[0], found[1]

    def frontier(self) -> rows.Frontier | None:
        found = self._get(rows.FRONTIER_KEY)
        return None if found is None else rows.Frontier.decode(found)

    def note(self, key: bytes) -> bytes | None:
        """What was noted of this copy under one of the keys of :mod:`refold.engine.rows`."""
        return self._get(key)

    def put_note(self, key: bytes, value: bytes) -> None:
        """Beside whoever writes batches. Raises :class:`StorageError`."""
        try:
            self._db.put(key, value, write_opt=_NO_WAL)
        except Exception as error:
            raise _explained(self.path, error) from None

    def write(self, batch: Batch) -> None:
        """One atom. Raises :class:`StorageError`; the caller restores the partition."""
        try:
            self._db.write(batch.raw, _NO_WAL)
        except Exception as error:
            raise _explained(self.path, error) from None

    def build(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """A sorted file of rows, ascending by full key (``None`` deletes), beside the DB; replaces one that
        was not ingested. Raises :class:`StorageError`, and whatever ``changes`` raises; blocks."""
        writer = SstFileWriter(_options(self._memory))
        try:
            self._run.unlink(missing_ok=True)
            writer.open(str(self._run))
            for key, row in changes:
                if row is None:
                    del writer[key]
                else:
                    writer[key] = row
            writer.finish()
        except StorageError:
            raise
        except Exception as error:
            raise _explained(self.path, error) from None

    def ingest(self) -> None:
        """Move the built file into the DB: one atom, at once durable, over everything written before, which
        is flushed first: the DB stays a prefix of what was written. Raises :class:`StorageError`; blocks."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        try:
            self._db.flush()
            self._db.ingest_external_file([str(self._run)], options)
        except Exception as error:
            raise _explained(self.path, error) from None

    def flush(self) -> None:
        """Everything written so far survives the process. Raises :class:`StorageError`; blocks."""
        if self._closed:
            return
        try:
            self._db.flush()
        except Exception as error:
            raise _explained(self.path, error) from None

    def checkpoint(self, path: Path) -> bool:
        """A consistent copy in a new directory: hard links to the SST files, as of some commit. Writes may go
        on meanwhile; closing may not (the disk thread does both). False when the DB is closed. Blocks.

        Raises :class:`StorageError`.
        """
        if self._closed:
            return False
        try:
            # First, because it lets the interpreter go meanwhile and the copy, which flushes too, does not:
            # 1 ms of the event loop instead of 19 (measured with 7 MB in the memtable).
            self._db.flush()
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise _explained(path, error) from None
        return True

    def blank(self) -> bool:
        """Nothing but notes."""
        cursor = self._db.iter()
        there = _seek(self.path, cursor, b"")
        while there and bytes(cursor.key()).startswith(rows.NOTE):
            cursor.next()
            there = cursor.valid()
        _check(self.path, cursor)
        return not there

    def empty(self) -> bool:
        """No session at all."""
        cursor = self._db.iter()
        return not (_seek(self.path, cursor, rows.STATE) and bytes(cursor.key()).startswith(rows.STATE))

    def keys(self) -> list[bytes]:
        """Record keys of all sessions, ascending: everything in memory, so for tests and checks only."""
        return [key for key, _ in _scan(self.path, self._db, rows.STATE)]

    def close(self, *, flush: bool = True) -> None:
        """Blocks for the flush. A failed flush only leaves the DB behind, so it is not an error."""
        if self._closed:
            return
        self._closed = True
        if flush:
            with contextlib.suppress(Exception):
                self._db.flush()
        with contextlib.suppress(Exception):
            self._db.close()


class Copy:
    """The DB in a directory that nobody writes to, opened for reading and not changed. A context manager;
    blocks."""

    def __init__(self, path: Path, memory: Memory) -> None:
        """Raises :class:`StorageError` for one that cannot be opened."""
        self.path = path
        try:
            self._db = Rdict(str(path), _options(memory), access_type=AccessType.read_only())
        except Exception as error:
            raise _explained(path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._db.close()

    def frontier(self) -> rows.Frontier | None:
        try:
            found: Any = self._db.get(rows.FRONTIER_KEY)
        except Exception as error:
            raise _unreadable(self.path, error) from None
        return None if found is None else rows.Frontier.decode(bytes(found))

    def keys(self, kind: bytes) -> Iterator[bytes]:
        """Record keys of one kind (``rows.STATE`` …), ascending. Raises :class:`UnreadableStore`."""
        return (key for key, _ in _scan(self.path, self._db, kind))

    def rows(self, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The same with their rows."""
        return ((key, bytes(cursor.value())) for key, cursor in _scan(self.path, self._db, kind))


def stored_frontier(path: Path, memory: Memory) -> rows.Frontier | None:
    """How far the DB in a directory is, which is opened for reading and not changed. Blocks.

    Raises :class:`StorageError` for one that cannot be opened.
    """
    with Copy(path, memory) as copy:
        return copy.frontier()


def foreign(path: Path) -> bool:
    """Whether a directory has files and none of them is a DB's: somebody else's, in which RocksDB would
    make a new DB without a word."""
    names = [one.name for one in path.iterdir()] if path.is_dir() else [""] if path.exists() else []
    return bool(names) and not any(name.startswith(_DB_FILES) for name in names)


def sorted_files(path: Path) -> int:
    """How many files of rows a directory has, whatever the DB in it knows of them."""
    return sum(1 for _ in path.glob("*.sst"))


def _seek(path: Path, cursor: Any, key: bytes) -> bool:
    """Whether there is a row at ``key`` or after it. A cursor that fails says that it is at the end."""
    cursor.seek(key)
    if cursor.valid():
        return True
    _check(path, cursor)
    return False


def _check(path: Path, cursor: Any) -> None:
    try:
        cursor.status()
    except Exception as error:
        raise _unreadable(path, error) from None


def _scan(path: Path, db: Any, kind: bytes) -> Iterator[tuple[bytes, Any]]:
    """Record keys of a kind and the cursor that stands there."""
    cursor = db.iter()
    there = _seek(path, cursor, kind)
    while there and (key := bytes(cursor.key())).startswith(kind):
        yield key[len(kind) :], cursor
        cursor.next()
        there = cursor.valid()
    if not there:
        _check(path, cursor)


def set_aside(path: Path) -> None:
    """Move a DB that cannot be trusted out of the way. Keeps one, deletes an older one. Blocks."""
    if not path.exists():
        return
    aside = path.with_name(path.name + ".aside")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        path.rename(aside)
    except OSError as error:
        raise _explained(path, error) from None


def _explained(path: Path, error: Exception) -> StorageError:
    text = str(error)
    # Not by the name of the file, which stands in other messages too: and a directory may be called BLOCKS.
    if text.startswith(_LOCKED):
        return BlockedStore(
            f"{path} is locked by another process: two workers share this data directory. Give each its own"
            " (--data-dir or REFOLD_WORKER__DATA_DIR), or stop the other one"
        )
    if "No space left" in text or getattr(error, "errno", None) == errno.ENOSPC:
        return BlockedStore(
            f"no space left on the disk of {path}: free some, or move the data directory"
            " (REFOLD_WORKER__DATA_DIR)."
            " Nothing is lost: the state topic has everything"
        )
    if text.startswith("Corruption"):
        return _unreadable(path, error)
    return StorageError(
        f"the local store {path} cannot be used"
        f" ({text.splitlines()[0] if text else type(error).__name__}). It is"
        " only a cache of the state topic: check the disk and its permissions, or delete the directory"
    )


def _nobody(_error: UnreadableStore) -> None:
    return None


def _unreadable(path: Path, error: Exception) -> UnreadableStore:
    text = str(error)
    return UnreadableStore(
        f"the local store {path} cannot be read ({text.splitlines()[0] if text else type(error).__name__})."
        " It is only a cache of the state topic: it is set aside and restored. If it happens again, check the"
        " disk",
        path,
    )
