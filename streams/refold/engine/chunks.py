"""What travels from the polling threads to the fold: the records of one partition of one topic from one poll.

A chunk carries the assignment epoch and fetch epoch under which it was polled, and the position it follows on
from: the fold drops what is stale and notices a chunk that went missing in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Message


class Record(NamedTuple):
    """One record of a source. ``append_ms``: the broker's append time, milliseconds since 1970 UTC."""

    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] | None


class Chunk:
    """``follows``: the fetch position before this chunk; ``next_offset``: the one after it.

    ``end``: what end-of-partition said, where it was met: markers and aborted records before it are passed
    too, so a chunk without messages can still be news. ``topic`` is a full name.
    """

    __slots__ = ("bytes", "epoch", "fetch_epoch", "follows", "messages", "next_offset", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        epoch: int,
        fetch_epoch: int,
        follows: int,
        messages: Sequence[Message],
        size: int,
        end: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = epoch
        self.fetch_epoch = fetch_epoch
        self.follows = follows
        self.messages = messages
        self.bytes = size
        last = messages[-1].offset() if messages else None
        self.next_offset = max(end, (last if last is not None else follows - 1) + 1)

    def __len__(self) -> int:
        return len(self.messages)


def record_of(message: Message) -> Record:
    return Record(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers(),
    )


def by_partition(messages: Iterable[Message]) -> dict[int, list[Message]]:
    """Group, keeping each partition's order."""
    groups: dict[int, list[Message]] = {}
    for message in messages:
        partition = message.partition()
        group = groups.get(partition)
        if group is None:
            groups[partition] = [message]
        else:
            group.append(message)
    return groups
