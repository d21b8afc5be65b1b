"""glibc's allocator, told to give memory back: a worker's peak is what is alive, not what once was.

glibc raises two thresholds by itself. After the first buffer of some megabytes was freed, the next ones (of
librdkafka's fetches and batches, of RocksDB's memtables) come from the heap instead of from mappings of their
own, and what is freed below a living allocation stays resident: in `bench.memory`, 100 000 sessions, 190 MiB
of heap of which 106 were free. Fewer heaps alone (``MALLOC_ARENA_MAX=2``) changed nothing.

Where the thresholds stand is a trade: below the size of such a buffer each one is new pages, 1.3 page faults
per event and 2 us of the system's time. `bench.memory` and `bench.throughput`, medians of three rounds:
128 KiB as glibc begins with 324 MiB and 28.2 k events/s, 2 and 4 MiB 337 MiB and 30.2 k.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

#: Parameters of glibc's ``mallopt`` (malloc.h).
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3

#: Allocations from this on are mappings, which go back when they are freed. Above what comes again and again:
#: a fetched batch (1.2 MiB), a block of a memtable (1 MiB), a batch to be sent (384 KiB).
MMAP_THRESHOLD_BYTES: Final = 2 * 1024 * 1024

#: What is free at a heap's end beyond this goes back: two of the largest buffers that come from it.
TRIM_THRESHOLD_BYTES: Final = 2 * MMAP_THRESHOLD_BYTES

#: With one of these the operator has decided.
VARIABLES: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def give_back() -> bool:
    """Fix the thresholds for this process; whether they are. Where the allocator is not glibc's, or the
    environment has settings for it, nothing is changed."""
    if any(name in os.environ for name in VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        # Another C library: no such call, or no such way to look for it.
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    fixed = [
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    ]
    return fixed == [1, 1]
