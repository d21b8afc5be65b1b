"""glibc's allocator, told to give memory back: a worker's peak is what is alive, not what once was.

glibc raises two thresholds by itself. After the first buffer of some megabytes was freed, the next ones (of
librdkafka's fetches and batches, of RocksDB's memtables) come from the heap instead of from mappings of their
own, and what is freed below a living allocation stays resident. `bench.memory`, 100 000 sessions: 190 MiB of
heap of which 106 were free, and a peak that depended on the order of things (374 to 427 MiB); with the
threshold fixed 302 to 330. Fewer heaps alone (``MALLOC_ARENA_MAX=2``) changed nothing: 396.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

#: A parameter of glibc's ``mallopt`` (malloc.h).
M_MMAP_THRESHOLD: Final = -3

#: Allocations from this on are mappings, which go back when they are freed. glibc's initial value: setting it
#: keeps it where it is, and the threshold for trimming the heap with it.
MMAP_THRESHOLD_BYTES: Final = 128 * 1024

#: With one of these the operator has decided.
VARIABLES: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def give_back() -> bool:
    """Fix the threshold for this process; whether it is. Where the allocator is not glibc's, or the
    environment has settings for it, nothing is changed."""
    if any(name in os.environ for name in VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        # Another C library: no such call, or no such way to look for it.
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) == 1)
