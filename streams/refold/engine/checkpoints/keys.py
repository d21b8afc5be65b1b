"""Make the key filter of a copy: two walks over its session keys, the first counts. Blocks, for seconds where
there are millions; memory is the filter's.

A checkpoint without one is a checkpoint all the same, so whoever has too many sessions has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from refold.engine import rows
from refold.engine.checkpoints.keyfilter import KEYS_MAX, Builder
from refold.engine.store import Copy, Memory

#: Keys between two looks at the clock: 5 ms. As long as they took it then waits, so that a filter of a
#: million keys (8 s) takes half a core and not the fold's.
CHUNK_KEYS: Final = 1_000


def write_filter(
    directory: Path,
    memory: Memory,
    to: Path,
    check: Callable[[], None] = lambda: None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Write the filter of the copy in ``directory``; False where it has more than ``KEYS_MAX`` sessions.

    ``check`` is called between chunks and may raise. Raises :class:`StorageError` for a copy that cannot be
    read.
    """
    with Copy(directory, memory) as copy:
        keys = sum(len(chunk) for chunk in _chunks(copy, check, sleep))
        if keys > KEYS_MAX:
            return False
        builder = Builder(keys)
        for chunk in _chunks(copy, check, sleep):
            for key in chunk:
                builder.add(key)
    builder.write(to)
    return True


def _chunks(copy: Copy, check: Callable[[], None], sleep: Callable[[float], None]) -> Iterator[list[bytes]]:
    keys = copy.keys(rows.STATE)
    while True:
        began = time.monotonic()
        chunk = list(islice(keys, CHUNK_KEYS))
        if not chunk:
            return
        yield chunk
        check()
        sleep(time.monotonic() - began)
