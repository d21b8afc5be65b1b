"""One process at a time: an advisory lock on a file, released by the kernel when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from refold.errors import StorageError, UnavailableError

#: Pause between two attempts. A waiter sees the release at most this late.
POLL_S: Final = 0.05


@contextmanager
def exclusive(path: Path, *, wait_s_max: float, purpose: str) -> Iterator[None]:
    """Hold ``path`` exclusively. Blocks up to ``wait_s_max`` seconds.

    Raises:
        UnavailableError: another process held it the whole time.
        StorageError: the file cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise StorageError(f"cannot create {path}: {error.strerror}. Choose a writable directory.") from error
    with file:
        deadline = time.monotonic() + wait_s_max
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UnavailableError(
                        f"another process has held {path} for {wait_s_max:.0f} s ({purpose}). "
                        f"See who with `fuser {path}` and try again when it is done."
                    ) from None
                time.sleep(POLL_S)
        yield  # closing the file releases the lock
