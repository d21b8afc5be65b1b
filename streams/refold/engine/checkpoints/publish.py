"""Upload one checkpoint: the new files, then the manifest, then what retention no longer keeps.

Order, each gap a named point (:data:`refold.engine.points.CHECKPOINT`); a crash in any of them leaves the
checkpoints that were there readable, and at most files that no manifest names::

    hard links taken ─ file by file ─ manifest ─ look again ─ delete old manifests ─ delete unnamed files
    checkpoint_taken ▲  checkpoint_file ▲  before_manifest ▲ ▲ after_manifest  ▲ manifests_pruned

Only files that are not there yet are sent: RocksDB never changes an SST file, so most of a partition is named
again. Two uploaders of one partition (the old owner and the new) do not disturb each other: files have the
name of their content, manifests that of theirs. Blocks; runs on an upload thread.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from refold.engine.checkpoints.manifest import FILTER_NAME, Entry, Manifest, known_schemas
from refold.engine.checkpoints.remote import Remote
from refold.engine.checkpoints.retention import (
    UPLOAD_SECONDS_MAX,
    Prunable,
    Stored,
    old,
    prunable,
    reusable,
)
from refold.engine.points import Points
from refold.engine.rows import Frontier
from refold.errors import NotFound, StorageError, UnavailableError

#: What RocksDB keeps in a DB's directory and a checkpoint does not need.
NOT_COPIED: Final = ("LOCK", "IDENTITY")


@dataclass(slots=True)
class Hashes:
    """SHA-256 of the SST files of one partition's last checkpoint, so that a file is read once and not each
    time. Replaced as a whole: it does not grow."""

    known: dict[tuple[str, int, int, int], str] = field(default_factory=dict)

    def entries(self, directory: Path, check: Callable[[], None]) -> tuple[Entry, ...]:
        now: dict[tuple[str, int, int, int], str] = {}
        entries = []
        for path in sorted(directory.iterdir()):
            if path.name in NOT_COPIED or path.name.startswith("LOG"):
                continue
            check()
            at = path.stat()
            identity = (path.name, at.st_ino, at.st_size, at.st_mtime_ns)
            digest = self.known.get(identity)
            if digest is None:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            if path.suffix == ".sst":
                now[identity] = digest
            entries.append(Entry(path.name, digest, at.st_size))
        self.known = now
        return tuple(entries)


@dataclass(frozen=True, slots=True)
class Published:
    """``checkpoint`` is ``None`` when the newest one in the store already holds everything."""

    checkpoint: str | None
    uploaded_files: int
    uploaded_bytes: int
    reused_bytes: int
    pruned: Prunable


class Upload:
    """One checkpoint of one partition on its way."""

    def __init__(
        self,
        remote: Remote,
        partition: int,
        *,
        writer: str,
        keep: int,
        points: Points,
        now_ms: Callable[[], int],
        stopped: Callable[[], bool],
    ) -> None:
        self._remote = remote
        self._partition = partition
        self._writer = writer
        self._keep = keep
        self._points = points
        self._now_ms = now_ms
        self._stopped = stopped
        self._until = time.monotonic() + UPLOAD_SECONDS_MAX

    def run(
        self,
        directory: Path,
        frontier: Frontier,
        hashes: Hashes,
        scratch: Path,
        key_filter: Callable[[Path], bool] = lambda _to: False,
    ) -> Published:
        """``directory``: the hard-linked copy; ``frontier``: the one in it. ``key_filter`` writes the copy's
        key filter to a file; False where it has none. Raises :class:`StorageError`,
        :class:`UnavailableError`."""
        remote, partition = self._remote, self._partition
        self._points.reach("checkpoint_taken")
        newest = self._newest()
        stored = remote.files(partition)
        if newest is not None and _same_place(newest.frontier, frontier) and _complete(newest, stored):
            return Published(None, 0, 0, 0, self._prune())
        entries = hashes.entries(directory, self.check)
        paths = {entry.sha256: directory / entry.name for entry in entries}
        keys = self._keys(scratch / FILTER_NAME, key_filter, paths)
        now_ms = self._now_ms()
        named = frozenset() if newest is None else frozenset(entry.sha256 for entry in newest.named)
        sent: set[str] = set()
        uploaded = reused = 0
        for entry in entries if keys is None else (*entries, keys):
            if entry.sha256 in sent:
                continue
            if reusable(entry.sha256, entry.length, stored, named, now_ms):
                reused += entry.length
                continue
            self.check()
            remote.put_file(partition, paths[entry.sha256], entry.sha256)
            sent.add(entry.sha256)
            uploaded += entry.length
            self._points.reach("checkpoint_file")
        created = now_ms if newest is None else max(now_ms, newest.created_ms + 1)
        manifest = Manifest(
            remote.prefix, partition, created, self._writer, frontier, known_schemas(), entries, keys
        )
        self.check()
        self._points.reach("checkpoint_before_manifest")
        checkpoint = remote.put_manifest(manifest, scratch)
        self._points.reach("checkpoint_after_manifest")
        self._look_again(manifest, paths)
        return Published(checkpoint, len(sent), uploaded, reused, self._prune())

    def _keys(self, path: Path, key_filter: Callable[[Path], bool], paths: dict[str, Path]) -> Entry | None:
        if not key_filter(path):
            return None
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        paths[digest] = path
        return Entry(FILTER_NAME, digest, path.stat().st_size)

    def _newest(self) -> Manifest | None:
        for checkpoint in self._remote.checkpoints(self._partition):
            try:
                return self._remote.manifest(self._partition, checkpoint)
            except (NotFound, StorageError):
                # Damaged, or pruned meanwhile: its files are simply not reused.
                continue
        return None

    def _look_again(self, manifest: Manifest, paths: Mapping[str, Path]) -> None:
        """What a pruner in another process took between our first look and the manifest is sent again."""
        stored = self._remote.files(manifest.partition)
        for entry in manifest.named:
            there = stored.get(entry.sha256)
            if there is None or there.length != entry.length:
                self._remote.put_file(manifest.partition, paths[entry.sha256], entry.sha256)

    def _prune(self) -> Prunable:
        """What was published stands, whatever becomes of this: a store may refuse to delete."""
        try:
            return prune(
                self._remote, self._partition, keep=self._keep, now_ms=self._now_ms(), points=self._points
            )
        except (StorageError, UnavailableError) as error:
            return Prunable(refused=str(error))

    def check(self) -> None:
        """Raises :class:`UnavailableError` when it is to end. Any moment."""
        if self._stopped():
            raise UnavailableError("the upload was given up: the worker stops")
        if time.monotonic() > self._until:
            raise UnavailableError(
                f"the upload of partition {self._partition} took longer than {UPLOAD_SECONDS_MAX} s and was"
                " given up; what it has sent is used by the next one"
            )


def prune(
    remote: Remote,
    partition: int,
    *,
    keep: int,
    now_ms: int,
    points: Points | None = None,
    dry_run: bool = False,
) -> Prunable:
    """Delete what retention does not keep; what it was. Files are listed before manifests are read, so that a
    file uploaded meanwhile is not looked at."""
    files = remote.files(partition)
    plan = prunable(remote.held(partition), files, keep=keep, now_ms=now_ms)
    if dry_run:
        return plan
    for checkpoint in plan.manifests:
        remote.delete_manifest(partition, checkpoint)
    if points is not None:
        points.reach("checkpoint_manifests_pruned")
    for name in plan.files:
        remote.delete_file(partition, name)
    if plan.refused is None:
        for name, stored in remote.leftovers(partition).items():
            if old(stored.modified_ms, now_ms):
                remote.delete_leftover(partition, name)
    return plan


def _same_place(one: Frontier, other: Frontier) -> bool:
    return _place(one) == _place(other)


def _place(frontier: Frontier) -> tuple[object, ...]:
    return (
        frontier.format,
        frontier.state_topic,
        frontier.history_topic,
        frontier.generations_topic,
        frontier.inbox_next,
        frontier.batches_next,
        frontier.state_next,
        frontier.history_next,
        frontier.generations_next,
    )


def _complete(manifest: Manifest, stored: Mapping[str, Stored]) -> bool:
    return all(
        (there := stored.get(entry.sha256)) is not None and there.length == entry.length
        for entry in manifest.named
    )
