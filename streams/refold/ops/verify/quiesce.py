"""Has everything been folded? Committed offsets against the inbox, until they meet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from refold.errors import UnavailableError
from refold.ops.verify.readback import Record, read_topic
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.logends import list_ends

#: After the last death: restart, restore, an open transaction's time-out (10 s) and the broker's scan (10 s).
#: Four times that on a busy machine.
QUIESCE_S_MAX: Final = 120.0
POLL_S: Final = 0.25
REQUEST_S_MAX: Final = 10.0


def committed_offsets(offsets: GroupOffsets, topic: str, partitions: int) -> dict[int, int]:
    """partition -> next offset; below zero where nothing is committed yet."""
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    return {tp.partition: tp.offset for tp in offsets.newest(asked, REQUEST_S_MAX)}


def log_ends(admin: AdminClient, topic: str, partitions: int) -> dict[int, int]:
    """partition -> offset after the last record, control records included."""
    asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
    ends = list_ends(admin, asked, IsolationLevel.READ_UNCOMMITTED, REQUEST_S_MAX)
    return {partition: end for (_, partition), end in ends.items()}


def quiesce(
    kafka: Mapping[str, Any],
    admin: AdminClient,
    group: str,
    topic: str,
    partitions: int,
    seconds_max: float = QUIESCE_S_MAX,
) -> dict[int, list[Record]]:
    """Return the whole inbox once the group has committed past its last record. Blocks ``seconds_max``.

    Forwards append to the inbox while it drains, so it is read again until neither end nor commit moves.
    Raises :class:`UnavailableError` naming the partitions that do not advance.
    """
    deadline = time.monotonic() + seconds_max
    asked = GroupOffsets(kafka, group)
    behind: dict[int, str] = {}
    while time.monotonic() < deadline:
        try:
            ends = log_ends(admin, topic, partitions)
            offsets = committed_offsets(asked, topic, partitions)
        except KafkaException:
            # Leaders and the coordinator may still be on the move.
            time.sleep(POLL_S)
            continue
        inbox = read_topic(kafka, topic, partitions)
        behind = {
            p: f"{offsets[p]} of {records[-1].offset + 1}"
            for p, records in inbox.items()
            if records and offsets[p] < records[-1].offset + 1
        }
        with contextlib.suppress(KafkaException):
            if not behind and log_ends(admin, topic, partitions) == ends:
                return inbox
        time.sleep(POLL_S)
    raise UnavailableError(
        f"the workers did not finish the inbox within {seconds_max:.0f} s; committed offsets: {behind}"
    )
