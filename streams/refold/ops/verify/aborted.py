"""Aborted transactions, counted from outside: journal records that read_uncommitted shows and
read_committed hides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from refold.ops.verify.readback import Record

#: Records of one transaction are produced within a few milliseconds, deaths are seconds apart: records of
#: several partitions closer together than this are one transaction.
ONE_TRANSACTION_MS: Final = 100

Topic = Mapping[int, Sequence[Record]]


def aborted_transactions(everything: Topic, committed: Topic) -> int:
    """How many aborted transactions wrote to the journal.

    Within a partition the control record after a transaction makes a gap, so a run of consecutive offsets is
    one; runs of several partitions are joined by time.
    """
    starts: list[int] = []
    for partition, records in everything.items():
        visible = {record.offset for record in committed[partition]}
        previous = None
        for record in records:
            if record.offset in visible:
                continue
            if previous is None or record.offset != previous + 1:
                starts.append(record.time_ms)
            previous = record.offset
    count, last = 0, -ONE_TRANSACTION_MS - 1
    for start in sorted(starts):
        if start - last > ONE_TRANSACTION_MS:
            count += 1
        last = start
    return count
