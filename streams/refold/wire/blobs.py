"""Large payloads: bytes beside the log, content-addressed, written before the event that names them.

Invariants:

- the name of a blob is the SHA-256 of its bytes, so writing is idempotent and nothing is ever overwritten
  with something else;
- :meth:`BlobStore.put` returns after the bytes are durable (fsync on local files, a completed upload
  elsewhere), and a reader never sees half a blob: local files are written aside and renamed;
- :meth:`BlobStore.get` checks length and SHA-256 and only ever reads from the configured store: the ``uri``
  in an event says where the *producer's* store was, and following it would let an event make a reader open
  any file or URL.

Everything here blocks; the SDK calls it in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from refold.errors import ConfigError, NotFound, StorageError, UnavailableError, UsageError

#: Default above which a text or data field goes to the store. 64 KiB: sixteen such parts still fit the 1 MB
#: record limit of a stock broker, and below it a second store's round trip costs more than the bytes.
INLINE_BYTES_MAX: Final = 64 * 1024

#: Largest blob read back into memory; a longer one is refused before it is read.
BLOB_BYTES_MAX: Final = 256 * 1024 * 1024

#: In object stores a blob that is there is written again when it is older than this, and counts as new: far
#: below the shortest grace of `refold blobs gc`, far above the time between two events with the same content.
FRESH_S: Final = 15 * 60

#: Stores in which a completed write appears at once or not at all, so that no rename is needed.
ATOMIC_PROTOCOLS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})

BlobField = Literal["text", "data"]


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def filesystem(setting: str, url: str, **options: Any) -> tuple[Any, str]:
    """fsspec's file system and the path in it. Raises :class:`ConfigError` for a URL it cannot serve (unknown
    scheme, missing extra) and :class:`UnavailableError` where it asks at once (ftp, sftp) and nobody answers.
    They name the setting and the scheme, not the URL: it may hold credentials."""
    # Loaded where a store is named at all: who has none starts without it.
    import fsspec

    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    try:
        found, root = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        missing = isinstance(error, ImportError) and scheme in ("s3", "s3a")
        extra = ' (pip install "refold[s3]")' if missing else ""
        raise ConfigError(f"{setting} with scheme {scheme} cannot be used: {error}{extra}") from None
    except OSError as error:
        raise UnavailableError(f"{setting} with scheme {scheme} does not answer: {error}") from None
    return found, str(root).rstrip("/")


def is_local(fs: Any) -> bool:
    """Whether an fsspec file system is a directory of this machine."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


class BlobStore:
    """One fsspec URL. Cheap to make: nothing is opened until the first put or get."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Raises as :func:`filesystem`."""
        self._fs, self._root = filesystem("blobs.url", url, **(options or {}))
        self._local = is_local(self._fs)
        protocol = self._fs.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)

    def put(self, data: bytes, *, media_type: str, field: BlobField) -> dict[str, Any]:
        """Store ``data``, return its ``BlobRef`` (the dict of the schema). Raises :class:`StorageError`."""
        if len(data) > BLOB_BYTES_MAX:
            raise UsageError(f"a payload of {len(data)} bytes is above the limit of {BLOB_BYTES_MAX}")
        digest = sha256_hex(data)
        path = self._path(digest)
        try:
            if not self._present(path, len(data)) or not self._freshen(path):
                self._write(path, data)
        except OSError as error:
            raise StorageError(
                f"cannot write a payload of {len(data)} bytes to the blob store at {self._root} ({error}): "
                "the event was not sent"
            ) from None
        return {
            "uri": self._fs.unstrip_protocol(path),
            "sha256": digest,
            "length": len(data),
            "media_type": media_type,
            "field": field,
        }

    def get(self, ref: Mapping[str, Any]) -> bytes:
        """The bytes of a reference, verified.

        Raises :class:`NotFound` when this store does not have them, :class:`StorageError` when they are not
        the bytes the event named.
        """
        digest, length = str(ref["sha256"]), int(ref["length"])
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise StorageError("the blob reference has no valid SHA-256")
        if not 0 <= length <= BLOB_BYTES_MAX:
            raise StorageError(f"the blob reference says {length} bytes, the limit is {BLOB_BYTES_MAX}")
        path = self._path(digest)
        try:
            found = int(self._fs.size(path))
            data = bytes(self._fs.cat_file(path)) if found == length else b""
        except FileNotFoundError:
            raise NotFound(
                f"the payload {ref.get('uri')} (sha256 {digest}, {length} bytes) is not in the blob store at "
                f"{self._root}: is this process configured with the store its producer wrote to (blobs.url)?"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot read the payload {digest} from {self._root} ({error})") from None
        if found != length or sha256_hex(data) != digest:
            raise StorageError(
                f"the payload at {path} is not what the event names ({length} bytes, sha256 {digest}): "
                f"found {found} bytes{'' if found != length else f', sha256 {sha256_hex(data)}'}. "
                "The file was damaged or replaced: restore it from a backup"
            )
        return data

    @property
    def fs(self) -> Any:
        """The fsspec file system."""
        return self._fs

    @property
    def root(self) -> str:
        return self._root

    @property
    def is_local(self) -> bool:
        return self._local

    def path_of(self, name: str) -> str:
        """Where a blob is, by its digest; or what was left aside beside it."""
        return self._path(name)

    def _freshen(self, path: str) -> bool:
        """Make a blob that is there young again, so that a garbage collection which runs before the event
        is written takes it for what it is: about to be named. False: write it."""
        if self._local:
            try:
                os.utime(path)
                # One that was being removed has left this name by now, or has its new age.
                return Path(path).exists()
            except FileNotFoundError:
                return False
            except PermissionError:
                # Another user's file: as in an object store.
                pass
        try:
            modified = self._fs.modified(path)
        except (FileNotFoundError, NotImplementedError):
            return False
        return bool(time.time() - modified.timestamp() < FRESH_S)

    def _path(self, digest: str) -> str:
        # Two levels of 256: a million blobs are 15 per directory.
        return f"{self._root}/sha256/{digest[:2]}/{digest[2:4]}/{digest}"

    def _present(self, path: str, length: int) -> bool:
        try:
            return int(self._fs.size(path)) == length
        except FileNotFoundError:
            return False

    def _write(self, path: str, data: bytes) -> None:
        if self._local:
            _write_local(Path(path), data)
        elif self._protocols & ATOMIC_PROTOCOLS:
            self._fs.pipe_file(path, data)
        else:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            aside = f"{path}.{uuid.uuid4().hex}"
            self._fs.pipe_file(aside, data)
            self._fs.mv(aside, path)


def _write_local(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
    # The name must survive a power cut as well as the bytes.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
