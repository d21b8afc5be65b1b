"""Rule P: a record on a partition that its key does not map to goes to the right one, with where it came
from."""

from __future__ import annotations

from typing import Final

from refold.core.rulings import Rejected
from refold.engine import recordheaders
from refold.engine.chunks import Record
from refold.engine.overlay import Output

#: A record is forwarded this often. One hop corrects a foreign partitioner; two more cover workers that see
#: different slot maps during a change.
HOPS_MAX: Final = 3


def forward(topic: str, record: Record, target: int, bytes_max: int) -> Output | Rejected:
    """The output to ``target`` of the source ``topic``, or why it cannot be: to be rejected then."""
    before = recordheaders.forwarded(record)
    if before is not None and before.hops >= HOPS_MAX:
        return Rejected("too_many_hops", f"forwarded {before.hops} times; it began at {before.origin}")
    headers = recordheaders.forward(topic, record, before)
    if recordheaders.size(record.key, record.value, headers) > bytes_max:
        return Rejected("too_large", "with the headers of a forward it exceeds the topic's limit")
    return Output(topic, target, record.key, record.value, headers)
