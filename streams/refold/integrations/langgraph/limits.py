"""Limits of the checkpointer, each named with its unit."""

from __future__ import annotations

from typing import Final

#: Threads whose index is kept in memory. A checkpoint takes about 1 KB of it, a task's writes 0.5 KB: with
#: 100 of each per thread 150 KB, 150 MB.
THREADS_KEPT_MAX: Final = 1_000

#: Contents of events kept in memory, over all threads; others are read again from the journal, 2 ms each.
RECORDS_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024

#: Values of one event that stay in it, together. In base64 a third more, 480 KiB: with the names of some
#: hundred channels or writes (60 bytes each) a record that every topic takes unasked (512 KiB), with those of
#: 8 000 one that takes 1 MiB as Kafka's topics do.
EVENT_INLINE_BYTES_MAX: Final = 360 * 1024

#: Own events of one thread that wait to be folded behind somebody else's: in flight are about a superstep's.
OWN_KEPT_EVENTS_MAX: Final = 64

#: Checkpoints named by one deletion: 100 bytes each, 200 KB.
DELETED_PER_EVENT_MAX: Final = 2_000

#: Events of a copy sent before their rulings are looked at.
COPIED_AT_ONCE_MAX: Final = 100

#: Events read by seeking at once, for one checkpoint whose channels last changed in as many.
SEEKS_AT_ONCE_MAX: Final = 8
