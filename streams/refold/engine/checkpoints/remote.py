"""The store of checkpoints: one fsspec URL, laid out so that nothing is ever read, changed and written back.

::

    <url>/<prefix>/p00007/files/<sha256>          content-addressed: written once, never changed
    <url>/<prefix>/p00007/manifests/<id>.json     written last; the latest checkpoint is found by listing

A file appears whole or not at all: local ones are written aside, synced and renamed; object stores do so by
themselves; elsewhere a move does it. What a crash left aside has a name no manifest names and is pruned by
age.

Everything here blocks. Raises :class:`NotFound`, :class:`StorageError` (damaged, disk full) and
:class:`UnavailableError` (the store does not answer or refuses); nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from refold.engine.checkpoints import keyfilter
from refold.engine.checkpoints import manifest as manifests
from refold.engine.checkpoints.keyfilter import FILTER_BYTES_MAX, KeyFilter
from refold.engine.checkpoints.manifest import MANIFEST_BYTES_MAX, Entry, Manifest
from refold.engine.checkpoints.retention import Held, Stored
from refold.errors import NotFound, RefoldError, StorageError, UnavailableError
from refold.wire.blobs import ATOMIC_PROTOCOLS, filesystem, is_local

#: One read of a download or check: large enough for an object store's round trip, small beside the memtables.
READ_BYTES: Final = 4 * 1024 * 1024

#: A store that does not answer must not hold a restore for botocore's five minutes: 3 x (5 + 30) s.
S3_OPTIONS: Final[Mapping[str, Any]] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}
}

_PARTITION: Final = re.compile(r"p([0-9]{5})")
_SUFFIX: Final = ".json"
_LEFTOVER: Final = re.compile(r"[0-9]{13}-[0-9a-f]{32}\.json\.[0-9a-f]{32}")


class Remote:
    """Cheap to make: nothing is opened until the first call. Thread-safe."""

    def __init__(self, url: str, prefix: str) -> None:
        """Raises as :func:`refold.wire.blobs.filesystem`."""
        options = S3_OPTIONS if url.lower().startswith(("s3://", "s3a://")) else {}
        self._fs, self._root = filesystem(
            "worker.checkpoint_url", url, use_listings_cache=False, skip_instance_cache=True, **options
        )
        self._base = f"{self._root}/{prefix}"
        self._local = is_local(self._fs)
        protocol = self._fs.protocol
        self._atomic = bool(({protocol} if isinstance(protocol, str) else set(protocol)) & ATOMIC_PROTOCOLS)
        self.prefix = prefix

    @property
    def place(self) -> str:
        """For people: without what a URL may hold of credentials."""
        return str(self._fs.unstrip_protocol(self._base))

    # --- looking ---------------------------------------------------------------------------------------

    def partitions(self) -> list[int]:
        """Partitions that have a directory here."""
        names = self._names(self._base, kind="directory")
        return sorted(int(found[1]) for name in names if (found := _PARTITION.fullmatch(name)))

    def checkpoints(self, partition: int) -> list[str]:
        """Ids, newest first."""
        return sorted(self._manifests(partition), reverse=True)

    def _manifests(self, partition: int) -> dict[str, Stored]:
        names = self._names(f"{self._dir(partition)}/manifests", kind="file")
        found = {name.removesuffix(_SUFFIX): stored for name, stored in names.items()}
        return {name: stored for name, stored in found.items() if manifests.is_id(name)}

    def leftovers(self, partition: int) -> dict[str, Stored]:
        """Manifests that were being written aside when their process died."""
        names = self._names(f"{self._dir(partition)}/manifests", kind="file")
        return {name: stored for name, stored in names.items() if _LEFTOVER.fullmatch(name)}

    def manifest(self, partition: int, checkpoint: str) -> Manifest:
        path = self._manifest_path(partition, checkpoint)
        with self._explained(f"reading the manifest {checkpoint}"):
            with self._fs.open(path, "rb") as file:
                data = file.read(MANIFEST_BYTES_MAX + 1)
        if len(data) > MANIFEST_BYTES_MAX:
            raise StorageError(f"the manifest {checkpoint} is longer than {MANIFEST_BYTES_MAX} bytes")
        found = manifests.decode(checkpoint, data)
        if (found.prefix, found.partition) != (self.prefix, partition):
            raise StorageError(
                f"the manifest {checkpoint} is of {found.prefix}/{found.partition}, not of"
                f" {self.prefix}/{partition}: it was copied here"
            )
        return found

    def files(self, partition: int) -> dict[str, Stored]:
        """Everything under ``files``, leftovers of crashed uploads included."""
        return self._names(f"{self._dir(partition)}/files", kind="file")

    def held(self, partition: int) -> list[Held]:
        """All manifests, read: what retention is decided on."""
        found = []
        for checkpoint, stored in sorted(self._manifests(partition).items()):
            files: frozenset[str] | None = None
            newer = False
            try:
                files = frozenset(entry.sha256 for entry in self.manifest(partition, checkpoint).named)
            except manifests.NewerFormat:
                newer = True
            except NotFound:
                continue
            except StorageError:
                pass
            created = manifests.created_ms(checkpoint)
            found.append(Held(checkpoint, created, stored.modified_ms, files, newer))
        return found

    # --- writing ---------------------------------------------------------------------------------------

    def put_file(self, partition: int, source: Path, sha256: str) -> None:
        with self._explained(f"uploading {source.name}"):
            self._put(source, f"{self._dir(partition)}/files/{sha256}")

    def put_manifest(self, manifest: Manifest, scratch: Path) -> str:
        """Publish: from here on the checkpoint exists. ``scratch``: a local directory for the file that is
        uploaded. The id."""
        checkpoint, data = manifest.encode()
        source = scratch / f"{checkpoint}{_SUFFIX}"
        with self._explained(f"publishing the manifest {checkpoint}"):
            source.write_bytes(data)
            self._put(source, self._manifest_path(manifest.partition, checkpoint))
        return checkpoint

    def _put(self, source: Path, path: str) -> None:
        try:
            self._put_whole(source, path)
        except FileNotFoundError:
            if not source.exists():
                raise
            raise UnavailableError(
                f"the checkpoint store {self.place} cannot be written: its bucket does not exist. Create it,"
                " or correct worker.checkpoint_url"
            ) from None

    def _put_whole(self, source: Path, path: str) -> None:
        if self._local:
            _put_local(source, Path(path))
        elif self._atomic:
            self._fs.put_file(str(source), path)
        else:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            aside = f"{path}.{uuid.uuid4().hex}"
            self._fs.put_file(str(source), aside)
            self._fs.mv(aside, path)

    # --- reading back ----------------------------------------------------------------------------------

    def get_file(
        self,
        partition: int,
        entry: Entry,
        to: Path | None,
        stopped: Callable[[], bool],
        *,
        read: Callable[[int], None] = lambda _size: None,
        piece_bytes: int = READ_BYTES,
    ) -> None:
        """Download to ``to`` (``None``: only read), and check length and SHA-256. ``read`` is told each piece
        of at most ``piece_bytes``, and may block.

        Raises :class:`StorageError` when they are others; :class:`InterruptedError` once ``stopped`` says so.
        """
        path = f"{self._dir(partition)}/files/{entry.sha256}"
        digest, length = hashlib.sha256(), 0
        with contextlib.ExitStack() as stack:
            with self._explained(f"reading {entry.name}"):
                source = stack.enter_context(self._fs.open(path, "rb", block_size=piece_bytes))
                target = None if to is None else stack.enter_context(to.open("xb"))
            while True:
                if stopped():
                    raise InterruptedError
                with self._explained(f"reading {entry.name}"):
                    data = source.read(piece_bytes)
                    if not data:
                        break
                    digest.update(data)
                    length += len(data)
                    if length > entry.length:
                        break
                    if target is not None:
                        target.write(data)
                read(len(data))
            if (length, digest.hexdigest()) != (entry.length, entry.sha256):
                raise StorageError(
                    f"{entry.name} of partition {partition} in {self.place} is not what its manifest names:"
                    f" {'other bytes' if length == entry.length else f'not {entry.length} bytes'}"
                )
            if target is not None:
                with self._explained(f"writing {entry.name}"):
                    target.flush()
                    os.fsync(target.fileno())

    def key_filter(self, manifest: Manifest) -> KeyFilter | None:
        """Of a checkpoint that has one; read and checked whole."""
        entry = manifest.keys
        if entry is None:
            return None
        if entry.length > FILTER_BYTES_MAX:
            raise StorageError(f"{entry.name} is longer than {FILTER_BYTES_MAX} bytes")
        path = f"{self._dir(manifest.partition)}/files/{entry.sha256}"
        with self._explained(f"reading {entry.name}"), self._fs.open(path, "rb") as file:
            data = file.read(entry.length + 1)
        if len(data) != entry.length or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise StorageError(
                f"{entry.name} of partition {manifest.partition} in {self.place} is not what its manifest"
                f" names: {'other bytes' if len(data) == entry.length else f'not {entry.length} bytes'}"
            )
        return keyfilter.decode(data, manifest.frontier.state_next)

    # --- deleting --------------------------------------------------------------------------------------

    def delete_manifest(self, partition: int, checkpoint: str) -> None:
        self._delete(self._manifest_path(partition, checkpoint))

    def delete_leftover(self, partition: int, name: str) -> None:
        self._delete(f"{self._dir(partition)}/manifests/{name}")

    def delete_file(self, partition: int, name: str) -> None:
        self._delete(f"{self._dir(partition)}/files/{name}")

    def _delete(self, path: str) -> None:
        """Gone already is as good: another process prunes too."""
        with contextlib.suppress(NotFound), self._explained(f"deleting {path.rpartition('/')[2]}"):
            self._fs.rm_file(path)

    # --- parts -----------------------------------------------------------------------------------------

    def _dir(self, partition: int) -> str:
        return f"{self._base}/p{partition:05d}"

    def _manifest_path(self, partition: int, checkpoint: str) -> str:
        return f"{self._dir(partition)}/manifests/{checkpoint}{_SUFFIX}"

    def _names(self, directory: str, *, kind: str) -> dict[str, Stored]:
        with contextlib.suppress(NotFound), self._explained("listing checkpoints"):
            self._fs.invalidate_cache()
            rows: list[dict[str, Any]] = self._fs.ls(directory, detail=True)
            return {
                str(row["name"]).rstrip("/").rpartition("/")[2]: Stored(int(row["size"] or 0), _modified(row))
                for row in rows
                if row["type"] == kind
            }
        return {}

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RefoldError, InterruptedError):
            raise
        except FileNotFoundError:
            raise NotFound(f"{doing}: it is not in the checkpoint store {self.place}") from None
        except Exception as error:
            # Clients of object stores raise what they like: botocore's, aiohttp's, fsspec's own time-out.
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(f"{doing}: no space left ({self.place} or the local disk)") from None
            raise UnavailableError(
                f"{doing}: the checkpoint store {self.place} failed ({type(error).__name__}: {error}). Check"
                " worker.checkpoint_url, its credentials and that it is reachable"
            ) from None


def remote_of(url: str | None, prefix: str) -> Remote | None:
    """The store of a setting, ``None`` where checkpoints are off. Raises :class:`ConfigError`."""
    return None if url is None else Remote(url, prefix)


def _modified(row: Mapping[str, Any]) -> int | None:
    """What file systems call the time of the last write, in ms."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = row.get(name)
        if isinstance(value, datetime):
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return int(aware.timestamp() * 1000)
        if isinstance(value, int | float):
            return int(value * 1000)
    return None


def _put_local(source: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        with source.open("rb") as reader, aside.open("xb") as writer:
            shutil.copyfileobj(reader, writer, READ_BYTES)
            writer.flush()
            os.fsync(writer.fileno())
        aside.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """The names in it survive a power cut."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
