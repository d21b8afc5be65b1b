"""The key filter of a checkpoint, as of a place in the state changelog: never denies a session that was
there, and errs now and then the other way. (``engine.checkpoints.keyfilter`` is tested by itself.)"""

from __future__ import annotations

import zlib
from typing import Final

from .log import PartitionLog

#: One key in so many is said to be there although it is not.
ERRS_EVERY: Final = 5


class KeyFilter:
    def __init__(self, log: PartitionLog, state_next: int) -> None:
        self.state_next = state_next
        self._keys: set[bytes] = set()
        for entry in log.committed():
            if entry.offset >= state_next:
                break
            key = entry.key or b""
            (self._keys.discard if entry.value is None else self._keys.add)(key)

    def holds(self, key: bytes) -> bool:
        return key in self._keys or zlib.crc32(key) % ERRS_EVERY == 0
