"""RocksDB, one DB per partition: the second-level cache of the state topic.

Invariants:

- A batch is written only after its transaction has committed, and carries the frontier row in the same batch:
  the DB may be behind the changelog, never ahead of it.
- No write-ahead log. After ``kill -9`` the DB is at its last flush, consistently (one column family: a batch
  is never split), and the changelog's tail brings it up. A log would only shorten that tail, and it costs a
  second write of every byte.
- A DB that cannot be trusted is set aside (one generation kept, for inspection) and rebuilt, never repaired.

Opening, closing, flushing and restoring block and never run on the event loop; point reads do.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any, Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from refold.engine import rows
from refold.engine.history import block_key
from refold.errors import StorageError

#: Uncompressed blocks of all partitions together; the OS page cache holds the compressed ones.
BLOCK_CACHE_BYTES: Final = 32 * 1024 * 1024

#: Memtables of all partitions together: with the block cache and 64 MiB of decoded sessions the process stays
#: below 400 MB (`bench.memory`).
WRITE_BUFFERS_BYTES: Final = 64 * 1024 * 1024

#: One memtable. At most this much of the changelog is read again after a `kill -9`: 8 MiB, under 0.1 s.
WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024

#: 64 partitions x 256 stays below the usual limit of 20 000 open files per process.
OPEN_FILES_MAX: Final = 256

#: 10 bits per key: 1 % of lookups of an absent session read a block.
BLOOM_BITS_PER_KEY: Final = 10

LOG_FILES_MAX: Final = 2
LOG_FILE_BYTES_MAX: Final = 1024 * 1024


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

    def put_state(self, key: bytes, row: bytes) -> None:
        self.raw.put(rows.STATE + key, row)

    def delete_state(self, key: bytes) -> None:
        self.raw.delete(rows.STATE + key)

    def put_block(self, full_key: bytes, value: bytes) -> None:
        self.raw.put(rows.BLOCK + full_key, value)

    def delete_block(self, full_key: bytes) -> None:
        self.raw.delete(rows.BLOCK + full_key)

    def put_generation(self, key: bytes, record: bytes) -> None:
        self.raw.put(rows.GENERATION + key, record)

    def delete_generation(self, key: bytes) -> None:
        self.raw.delete(rows.GENERATION + key)

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

    def row(self, key: bytes) -> bytes | None:
        found: Any = self._db.get(rows.STATE + key)
        return None if found is None else bytes(found)

    def block(self, key: bytes, block: int) -> bytes | None:
        found: Any = self._db.get(rows.BLOCK + block_key(key, block))
        return None if found is None else bytes(found)

    def generation(self, key: bytes) -> bytes | None:
        """The framed record under its changelog's key (``wire.batches.generation_key``)."""
        found: Any = self._db.get(rows.GENERATION + key)
        return None if found is None else bytes(found)

    def with_generation(self, key: bytes, generation_key: bytes) -> tuple[bytes | None, bytes | None]:
        """A session's row and the record of one of its generations, both as of the same commit."""
        # An iterator is a snapshot from its making on.
        cursor = self._db.iter()
        found: list[bytes | None] = []
        for full_key in (rows.STATE + key, rows.GENERATION + generation_key):
            cursor.seek(full_key)
            here = cursor.valid() and bytes(cursor.key()) == full_key
            found.append(bytes(cursor.value()) if here else None)
        return found[0], found[1]

    def frontier(self) -> rows.Frontier | None:
        found: Any = self._db.get(rows.FRONTIER_KEY)
        return None if found is None else rows.Frontier.decode(bytes(found))

    def write(self, batch: Batch) -> None:
        """One atom. Raises :class:`StorageError`; the caller restores the partition."""
        try:
            self._db.write(batch.raw, _NO_WAL)
        except Exception as error:
            raise _explained(self.path, error) from None

    def flush(self) -> None:
        """Everything written so far survives the process. Blocks."""
        if not self._closed:
            self._db.flush()

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

    def empty(self) -> bool:
        """No session at all."""
        cursor = self._db.iter()
        cursor.seek(rows.STATE)
        return not (cursor.valid() and bytes(cursor.key()).startswith(rows.STATE))

    def keys(self) -> list[bytes]:
        """Record keys of all sessions, ascending: everything in memory, so for tests and checks only."""
        cursor = self._db.iter()
        cursor.seek(rows.STATE)
        found = []
        while cursor.valid() and (key := bytes(cursor.key())).startswith(rows.STATE):
            found.append(key[len(rows.STATE) :])
            cursor.next()
        return found

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


def stored_frontier(path: Path, memory: Memory) -> rows.Frontier | None:
    """How far the DB in a directory is, which is opened for reading and not changed. Blocks.

    Raises :class:`StorageError` for one that cannot be opened.
    """
    try:
        db = Rdict(str(path), _options(memory), access_type=AccessType.read_only())
        try:
            found: Any = db.get(rows.FRONTIER_KEY)
        finally:
            db.close()
    except Exception as error:
        raise _explained(path, error) from None
    return None if found is None else rows.Frontier.decode(bytes(found))


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
    if "LOCK" in text or "lock hold" in text:
        return StorageError(
            f"{path} is locked by another process: two workers share this data directory. Give each its own"
            " (--data-dir or REFOLD_WORKER__DATA_DIR), or stop the other one"
        )
    if "No space left" in text or getattr(error, "errno", None) == 28:
        return StorageError(
            f"no space left on the disk of {path}: free some, or move the data directory"
            " (REFOLD_WORKER__DATA_DIR)."
            " Nothing is lost: the state topic has everything"
        )
    return StorageError(
        f"the local store {path} cannot be used"
        f" ({text.splitlines()[0] if text else type(error).__name__}). It is"
        " only a cache of the state topic: check the disk and its permissions, or delete the directory"
    )
