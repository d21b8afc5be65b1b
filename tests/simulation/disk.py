"""A machine's disk as RocksDB without a write-ahead log leaves it: a crash keeps a prefix of the batches
since the last flush, never a part of a batch. Stands in for ``refold.engine.store``; which names it replaces
is in ``seams``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

from refold.engine import rows
from refold.engine.history import block_key
from refold.errors import StorageError

from .kernel import Kernel, Process

_Change = tuple[bytes, bytes | None]

#: As a value: the key is a prefix, and all rows under it go.
_ALL: Final = bytes(bytearray(b"all rows under this prefix"))


class Batch:
    """Same methods as ``refold.engine.store.Batch``."""

    __slots__ = ("changes", "mark")

    def __init__(self) -> None:
        self.changes: list[_Change] = []
        self.mark: rows.Frontier | None = None

    def put(self, row_key: bytes, row: bytes) -> None:
        self.changes.append((row_key, row))

    def delete(self, row_key: bytes) -> None:
        self.changes.append((row_key, None))

    def put_state(self, key: bytes, row: bytes) -> None:
        self.changes.append((rows.STATE + key, row))

    def delete_state(self, key: bytes) -> None:
        self.changes.append((rows.STATE + key, None))

    def put_block(self, full_key: bytes, value: bytes) -> None:
        self.changes.append((rows.BLOCK + full_key, value))

    def delete_block(self, full_key: bytes) -> None:
        self.changes.append((rows.BLOCK + full_key, None))

    def put_side(self, key: bytes, record: bytes) -> None:
        self.changes.append((rows.SIDE + key, record))

    def delete_side(self, key: bytes) -> None:
        self.changes.append((rows.SIDE + key, None))

    def known(self, key: bytes) -> None:
        self.changes.append((rows.KNOWN + key, b""))

    def known_block(self, full_key: bytes) -> None:
        self.changes.append((rows.KNOWN_BLOCK + full_key, b""))

    def forget_known(self) -> None:
        self.changes += [(rows.KNOWN, _ALL), (rows.KNOWN_BLOCK, _ALL)]

    def frontier(self, frontier: rows.Frontier) -> None:
        self.mark = frontier
        self.changes.append((rows.FRONTIER_KEY, frontier.encode()))


class Database:
    """One directory: what is flushed, and the batches that are not."""

    def __init__(self) -> None:
        self.flushed: dict[bytes, bytes] = {}
        self.unflushed: list[list[_Change]] = []
        self.live: dict[bytes, bytes] = {}
        self.opened_by: Process | None = None

    def write(self, changes: list[_Change]) -> None:
        self.unflushed.append(changes)
        _apply(self.live, changes)

    def flush(self) -> None:
        self.flushed = dict(self.live)
        self.unflushed.clear()

    def crash(self, chance: random.Random) -> None:
        kept = chance.randint(0, len(self.unflushed))
        for changes in self.unflushed[:kept]:
            _apply(self.flushed, changes)
        self.unflushed.clear()
        self.live = dict(self.flushed)
        self.opened_by = None


def _apply(rows_: dict[bytes, bytes], changes: list[_Change]) -> None:
    for key, value in changes:
        if value is _ALL:
            for gone in [one for one in rows_ if one.startswith(key)]:
                del rows_[gone]
        elif value is None:
            rows_.pop(key, None)
        else:
            rows_[key] = value


class Disk:
    """One machine's. ``chance`` decides what a crash leaves."""

    def __init__(self, machine: str, kernel: Kernel, chance: random.Random) -> None:
        self.machine = machine
        self.kernel = kernel
        self._chance = chance
        self.databases: dict[str, Database] = {}
        self.fails: Callable[[], bool] = lambda: False
        #: No byte can be written before this virtual time.
        self.full_until_us = 0
        #: Told of every batch before it is written: (path, batch).
        self.on_write: Callable[[str, Batch], None] = lambda path, batch: None

    def crash(self) -> None:
        for path in sorted(self.databases):
            self.forget(path)

    def forget(self, path: str) -> None:
        """What was not flushed is lost from some batch on."""
        self.databases[path].crash(self._chance)

    @property
    def full(self) -> bool:
        return self.kernel.now_us < self.full_until_us

    def lose(self) -> None:
        self.databases.clear()


class Directory:
    """The part of ``pathlib.Path`` the engine uses for a store's directory."""

    __slots__ = ("disk", "text")

    def __init__(self, disk: Disk, text: str) -> None:
        self.disk = disk
        self.text = text

    def __truediv__(self, name: str) -> Directory:
        return Directory(self.disk, f"{self.text}/{name}")

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    def exists(self) -> bool:
        return self.text in self.disk.databases


class Store:
    """Same methods as ``refold.engine.store.Store``."""

    def __init__(self, path: Directory, memory: object) -> None:
        disk = path.disk
        disk.kernel.pause()
        _need_room(disk, path)
        database = disk.databases.get(path.text)
        if database is None:
            database = disk.databases[path.text] = Database()
        if database.opened_by is not None and not database.opened_by.dead:
            raise StorageError(f"{path} is locked by another process: two workers share this data directory")
        fiber = disk.kernel.current
        if fiber is None:
            raise AssertionError("a store is opened by a simulated process")
        database.opened_by = fiber.process
        self.path = path
        self._disk = disk
        self._database = database
        self._closed = False
        self._built: list[_Change] = []

    def row(self, key: bytes) -> bytes | None:
        return self._database.live.get(rows.STATE + key)

    def block(self, key: bytes, block: int) -> bytes | None:
        return self._database.live.get(rows.BLOCK + block_key(key, block))

    def known(self, key: bytes) -> bool:
        return rows.KNOWN + key in self._database.live

    def known_block(self, full_key: bytes) -> bool:
        return rows.KNOWN_BLOCK + full_key in self._database.live

    def side(self, key: bytes) -> bytes | None:
        return self._database.live.get(rows.SIDE + key)

    def side_range(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        live, low, high = self._database.live, rows.SIDE + first, rows.SIDE + end
        keys = sorted(key for key in live if low <= key < high)[:limit]
        return [(key[len(rows.SIDE) :], live[key]) for key in keys]

    def with_generation(self, key: bytes, generation_key: bytes) -> tuple[bytes | None, bytes | None]:
        live = self._database.live
        return live.get(rows.STATE + key), live.get(rows.SIDE + generation_key)

    def checkpoint(self, path: object) -> bool:
        """Copies of partitions are not simulated: as if the DB were closed."""
        return False

    def frontier(self) -> rows.Frontier | None:
        found = self._database.live.get(rows.FRONTIER_KEY)
        return None if found is None else rows.Frontier.decode(found)

    def write(self, batch: Batch) -> None:
        self._disk.kernel.pause()
        if self._closed:
            raise StorageError(f"{self.path} is closed")
        _need_room(self._disk, self.path)
        if self._disk.fails():
            raise StorageError(f"{self.path}: no such luck, the plan fails this write")
        self._disk.on_write(self.path.text, batch)
        self._database.write(batch.changes)

    def build(self, changes: Iterable[_Change]) -> None:
        """A file that is not ingested is as good as none: the next one replaces it, an open deletes it."""
        self._disk.kernel.pause()
        self._built = list(changes)

    def ingest(self) -> None:
        """Flushed first and durable at once, as the real one."""
        self._database.flush()
        batch = Batch()
        batch.changes = self._built
        for key, row in self._built:
            if key == rows.FRONTIER_KEY and row is not None:
                batch.mark = rows.Frontier.decode(row)
        if batch.mark is None:
            # Of a range: the frontier says of it that it was not read, until it is written next (rule H2).
            stored = self.frontier()
            batch.mark = stored if stored is not None and stored.hole is not None else None
        if [key for key, _ in self._built] != sorted({key for key, _ in self._built}):
            raise AssertionError("a sorted file takes every key once, ascending")
        self.write(batch)
        self._database.flush()

    def note(self, key: bytes) -> bytes | None:
        return self._database.live.get(key)

    def put_note(self, key: bytes, value: bytes) -> None:
        self._disk.kernel.alive()
        self._database.write([(key, value)])

    def blank(self) -> bool:
        return all(key.startswith(rows.NOTE) for key in self._database.live)

    def empty(self) -> bool:
        return not any(key.startswith(rows.STATE) for key in self._database.live)

    def keys(self) -> Iterable[bytes]:
        return [key[1:] for key in sorted(self._database.live) if key.startswith(rows.STATE)]

    def flush(self) -> None:
        self._disk.kernel.alive()
        if self._disk.full:
            raise OSError(28, "No space left on device")
        self._database.flush()

    def close(self, *, flush: bool = True) -> None:
        if self._closed:
            return
        self._disk.kernel.alive()
        self._closed = True
        if self._disk.full:
            # A flush that fails is no error of closing; what it would have kept is gone with the memory.
            self._disk.forget(self.path.text)
        elif flush:
            self._database.flush()
        self._database.opened_by = None


def _need_room(disk: Disk, path: Directory) -> None:
    if disk.full:
        raise StorageError(f"no space left on the disk of {path}")


def stored_frontier(path: Directory, memory: object) -> rows.Frontier | None:
    path.disk.kernel.pause()
    found = path.disk.databases[path.text].live.get(rows.FRONTIER_KEY)
    return None if found is None else rows.Frontier.decode(found)


def set_aside(path: Directory) -> None:
    database = path.disk.databases.pop(path.text, None)
    if database is not None:
        path.disk.databases[f"{path.text}.aside"] = database
