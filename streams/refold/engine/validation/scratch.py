"""What the changelogs say, key by key, in a RocksDB of its own beside the copy: memory stays bounded whatever
the log's size. Of a record 80 bytes are kept, key included: a million sessions are 80 MB until it is over.

One thread. Thrown away at the end, and by the next start where its process was killed.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from refold.engine.validation.compare import DIGEST_BYTES, Said
from refold.errors import StorageError

#: One memtable, and another one that is being written out.
WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024

_SAID: Final = b"s"
_LATER: Final = b"l"
_DELETED: Final = struct.Struct("<q")
_ROW: Final = struct.Struct(f"<qq{DIGEST_BYTES}s")


class Scratch:
    """A context manager. Keys are full row keys (:mod:`refold.engine.rows`). Raises :class:`StorageError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        shutil.rmtree(path, ignore_errors=True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_compression_type(DBCompressionType.none())
        options.set_max_background_jobs(1)
        self._no_log = WriteOptions()
        self._no_log.disable_wal = True
        with self._explained():
            self._db = Rdict(str(path), options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def put(self, records: Iterable[tuple[bytes, Said]], later: Iterable[bytes]) -> None:
        """Newer records of a key replace older ones. ``later``: keys with records behind the frontier."""
        batch = WriteBatch(raw_mode=True)
        for key, said in records:
            value = (
                _DELETED.pack(said.offset)
                if said.digest is None
                else _ROW.pack(said.offset, said.seq, said.digest)
            )
            batch.put(_SAID + key, value)
        for key in later:
            batch.put(_LATER + key, b"")
        with self._explained():
            self._db.write(batch, self._no_log)

    def superseded(self, key: bytes) -> bool:
        with self._explained():
            return self._db.get(_LATER + key) is not None

    def said(self, kind: bytes) -> Iterator[tuple[bytes, Said]]:
        """Of one kind of rows, ascending, by record key."""
        begin = _SAID + kind
        with self._explained():
            cursor: Any = self._db.iter()
            cursor.seek(begin)
        while cursor.valid() and (key := bytes(cursor.key())).startswith(begin):
            value = bytes(cursor.value())
            if len(value) == _DELETED.size:
                yield key[len(begin) :], Said(_DELETED.unpack(value)[0], -1, None)
            else:
                yield key[len(begin) :], Said(*_ROW.unpack(value))
            cursor.next()
        if not cursor.valid():
            with self._explained():
                cursor.status()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            text = str(error).splitlines()
            raise StorageError(
                f"{self._path}, made to validate a local copy, cannot be used"
                f" ({text[0] if text else type(error).__name__}): check the disk and its space. The partition"
                " is served meanwhile"
            ) from None
