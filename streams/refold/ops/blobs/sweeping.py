"""Sweep: what the store holds, how old it is, and how one blob leaves it.

- Only names of the form ``sha256/ab/cd/<64 hex digits>`` are blobs. What a killed writer left aside goes when
  it is older than the grace; nothing else in the store is touched.
- A blob younger than the grace is never removed. It is written before the event that names it, and
  :meth:`refold.wire.blobs.BlobStore.put` makes one that is there already young again, so whatever an event
  that is not written yet will name is young.
- On files a blob is moved aside before its age is looked at for the last time, so a writer that finds it
  makes it young in time, and one that comes later does not find it and writes it anew. In object stores,
  where nothing can be moved at once, its age is looked at right before it is removed: a writer that stores
  the very same content between the two (a request's time) would lose it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from refold.errors import StorageError
from refold.wire.blobs import BlobStore

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
#: What a writer has not renamed yet.
_ASIDE: Final = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{32}")
#: Moved aside by a sweep.
SWEPT: Final = ".swept"


class Stored(NamedTuple):
    """``modified_s``: seconds since the epoch, by the store's clock."""

    name: str
    length: int
    modified_s: float


class Sweeper:
    """Blocks, as the store does. Raises StorageError where the store does not answer."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._fs = store.fs

    def shards(self) -> list[str]:
        """The directories of the first two digits."""
        try:
            found = self._fs.ls(f"{self._store.root}/sha256", detail=False)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed(self._store, error) from None
        return sorted(str(path).rstrip("/") for path in found)

    def blobs(self, shard: str) -> Iterator[Stored]:
        """Blobs, and what writers left aside. A blob that a killed sweep left aside is put back first."""
        try:
            self._fs.invalidate_cache()
            found: dict[str, dict[str, Any]] = self._fs.find(shard, detail=True)
        except OSError as error:
            raise _failed(self._store, error) from None
        for path in sorted(found):
            name = path.rpartition("/")[2]
            if self._store.is_local and name.endswith(SWEPT) and _DIGEST.fullmatch(name.removesuffix(SWEPT)):
                self._put_back(path)
                name, path = name.removesuffix(SWEPT), path.removesuffix(SWEPT)
                if path in found:
                    continue
            elif not (_DIGEST.fullmatch(name) or _ASIDE.fullmatch(name)):
                continue
            modified = self._modified(path)
            if modified is not None:
                yield Stored(name, int(found.get(path, {}).get("size") or 0), modified)

    def _modified(self, path: str) -> float | None:
        try:
            when = self._fs.modified(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(self._store, error) from None
        return when.timestamp() if isinstance(when, datetime) else float(when)

    def remove(self, name: str, older_than_s: float) -> bool:
        """Remove it if it was not touched since ``older_than_s``; whether it was removed."""
        path = self._store.path_of(name)
        try:
            if self._store.is_local and _DIGEST.fullmatch(name):
                return self._remove_local(path, older_than_s)
            modified = self._modified(path)
            if modified is None or modified > older_than_s:
                return False
            self._fs.rm_file(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed(self._store, error) from None
        return True

    def _remove_local(self, path: str, older_than_s: float) -> bool:
        aside = path + SWEPT
        Path(path).rename(aside)
        if Path(aside).stat().st_mtime > older_than_s:
            self._put_back(aside)
            return False
        Path(aside).unlink()
        return True

    def _put_back(self, aside: str) -> None:
        """Where somebody has written it anew the two are the same bytes."""
        path = aside.removesuffix(SWEPT)
        with contextlib.suppress(FileNotFoundError):
            Path(aside).replace(path)


def _failed(store: BlobStore, error: OSError) -> StorageError:
    return StorageError(f"the blob store at {store.root} does not answer as it should ({error})")
