"""Has everything been folded? Committed offsets against the inbox, until they meet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from refold.errors import UnavailableError
from refold.ops.verify.readback import Record, read_topic
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.logends import log_ends

#: After the last death: restart, restore, an open transaction's time-out (10 s) and the broker's scan (10 s).
#: Four times that on a busy machine.
QUIESCE_S_MAX: Final = 120.0
POLL_S: Final = 0.25
REQUEST_S_MAX: Final = 10.0


def committed_offsets(offsets: GroupOffsets, topic: str, partitions: int) -> dict[int, int]:
    """partition -> next offset; below zero where nothing is committed yet."""
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    return {tp.partition: tp.offset for tp in offsets.newest(asked, REQUEST_S_MAX)}


def topic_ends(admin: AdminClient, topic: str, partitions: int) -> dict[int, int]:
    """partition -> offset after the last record, control records included."""
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    return dict(enumerate(log_ends(admin, asked, REQUEST_S_MAX)))


def quiesce(
    kafka: Mapping[str, Any],
    admin: AdminClient,
    offsets: GroupOffsets,
    topic: str,
    partitions: int,
    seconds_max: float = QUIESCE_S_MAX,
) -> dict[int, list[Record]]:
    """Return the whole inbox once the group has committed past its last record. Blocks ``seconds_max``.
    ``offsets``: the workers' group's, of whoever watches it anyway.

    Forwards append to the inbox while it drains, so it is read again until neither end nor commit moves.
    Raises :class:`UnavailableError` naming the partitions that do not advance.
    """
    deadline = time.monotonic() + seconds_max
    behind: dict[int, str] = {}
    while time.monotonic() < deadline:
        try:
            ends = topic_ends(admin, topic, partitions)
            done = committed_offsets(offsets, topic, partitions)
        except KafkaException:
            # Leaders and the coordinator may still be on the move.
            time.sleep(POLL_S)
            continue
        inbox = read_topic(kafka, topic, partitions)
        behind = {
            p: f"{done[p]} of {records[-1].offset + 1}"
            for p, records in inbox.items()
            if records and done[p] < records[-1].offset + 1
        }
        with contextlib.suppress(KafkaException):
            if not behind and topic_ends(admin, topic, partitions) == ends:
                return inbox
        time.sleep(POLL_S)
    raise UnavailableError(
        f"the workers did not finish the inbox within {seconds_max:.0f} s; committed offsets: {behind}"
    )
