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

from refold.engine.checkpoints.manifest import Entry, Manifest
from refold.engine.checkpoints.remote import Remote, sync_directory

#: Downloads at once: one connection to an object store gives 50-100 MB/s; four fill a disk.
DOWNLOADS_MAX: Final = 4


def fetch(
    remote: Remote,
    manifest: Manifest,
    to: Path,
    *,
    stopped: Callable[[], bool] = lambda: False,
    done: Callable[[Entry], None] = lambda _entry: None,
) -> None:
    """Make ``to`` (an older attempt there is deleted) and fill it. Whatever goes wrong, ``to`` is gone.

    ``done`` is told each file that is there and right, from a download thread. Raises :class:`NotFound` (a
    file is missing), :class:`StorageError` (a file is wrong, the disk is full), :class:`UnavailableError`,
    and :class:`InterruptedError` once ``stopped`` says so.
    """
    shutil.rmtree(to, ignore_errors=True)
    failed = threading.Event()

    def one(entry: Entry) -> None:
        if failed.is_set():
            return
        try:
            remote.get_file(manifest.partition, entry, to / entry.name, lambda: failed.is_set() or stopped())
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
