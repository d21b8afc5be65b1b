"""Download one checkpoint into a new directory, every file verified; nothing half done keeps its name.

Blocks; runs on a restore thread or for the command line.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from refold.engine.admission import BURST_S, Pace
from refold.engine.checkpoints.manifest import Entry, Manifest
from refold.engine.checkpoints.remote import READ_BYTES, Remote, sync_directory

#: Downloads at once: one connection to an object store gives 50-100 MB/s; four fill a disk.
DOWNLOADS_MAX: Final = 4

#: Under a pace, one read of all downloads together is a burst's worth, but none is smaller than this: a round
#: trip to an object store is 20 ms.
PIECE_BYTES_MIN: Final = 64 * 1024


def fetch(
    remote: Remote,
    manifest: Manifest,
    to: Path,
    *,
    stopped: Callable[[], bool] = lambda: False,
    done: Callable[[Entry], None] = lambda _entry: None,
    pace: Pace | None = None,
    moved: Callable[[], None] = lambda: None,
) -> None:
    """Make ``to`` (an older attempt there is deleted) and fill it. Whatever goes wrong, ``to`` is gone.

    ``done`` is told each file that is there and right, from a download thread, and ``moved`` each piece that
    came. ``pace`` makes the downloads wait. Raises :class:`NotFound` (a file is missing),
    :class:`StorageError` (a file is wrong, the disk is full), :class:`UnavailableError`, and
    :class:`InterruptedError` once ``stopped`` says so.
    """
    shutil.rmtree(to, ignore_errors=True)
    failed = threading.Event()

    def ended() -> bool:
        return failed.is_set() or stopped()

    def waiting() -> bool:
        # For our own pace, not for the store.
        moved()
        return ended()

    def read(size: int) -> None:
        moved()
        if pace is not None:
            pace.wait(size, waiting)

    def one(entry: Entry) -> None:
        if failed.is_set():
            return
        try:
            remote.get_file(
                manifest.partition, entry, to / entry.name, ended, read=read, piece_bytes=piece_bytes(pace)
            )
        except BaseException:
            failed.set()
            raise
        done(entry)

    try:
        to.mkdir(parents=True)
        with ThreadPoolExecutor(DOWNLOADS_MAX, "refold-fetch") as pool:
            work = [pool.submit(one, entry) for entry in manifest.files]
        errors = [error for future in work if (error := future.exception()) is not None]
        # One fails first and interrupts the others: that one says why.
        for error in sorted(errors, key=lambda error: isinstance(error, InterruptedError)):
            raise error
        sync_directory(to)
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        raise


def piece_bytes(pace: Pace | None) -> int:
    """How much of a file is read at once: what was read is known afterwards, and then waited for."""
    if pace is None or not pace.bytes_per_s:
        return READ_BYTES
    return max(PIECE_BYTES_MIN, min(READ_BYTES, int(pace.bytes_per_s * BURST_S) // DOWNLOADS_MAX))
