"""Answers from the topics when no owner answers. Correct and committed, but slow: a partition is read.

A snapshot from here is *stale* by what the state topic does not say yet; callers label it.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Message

from refold.client.reader import Reader, ReaderPool
from refold.client.routing import Directory
from refold.client.sender import Delivery
from refold.topology.names import TopicNames
from refold.wire.journal import JournalEntry, decode_journal
from refold.wire.owner import RulingLine

#: How much earlier than the inbox append the worker's records may be dated: the clocks of producer, broker
#: and worker differ. A minute of one partition is at most a few hundred thousand records.
CLOCK_SLACK_MS = 60_000

#: What the worker journals of its own at a record's place: nothing that says that the record was accepted.
NOTES = frozenset({"SessionQuarantined", "SessionEventParked", "ReducerQuarantined"})


class Fallback:
    """Reads with bounded consumers; nothing is kept between calls."""

    def __init__(self, pool: ReaderPool, directory: Directory, names: TopicNames) -> None:
        self._pool = pool
        self._directory = directory
        self._names = names

    async def ruling(self, delivery: Delivery) -> RulingLine | None:
        """How an inbox record was ruled on, ``None`` when it was not yet (the group has not committed it).

        A duplicate cannot be told from the topics as such: it is what is neither journalled nor rejected. So
        both are read as far as they had been written when the group's offset was known; raises TransientError
        where they cannot be yet.
        """
        committed = await self._directory.committed(delivery.partition)
        if committed is None or committed <= delivery.offset:
            return None
        return await self._pool.scan(lambda reader: self._look_up(reader, delivery))

    def _look_up(self, reader: Reader, delivery: Delivery) -> RulingLine:
        partition, offset = delivery.partition, delivery.offset
        since = delivery.append_time_ms - CLOCK_SLACK_MS
        if (seq := self._journalled(reader, partition, offset, since)) is not None:
            return RulingLine(partition, offset, "accepted", seq)
        if (refusal := self._rejected(reader, partition, offset, since)) is not None:
            return RulingLine(partition, offset, "rejected", None, *refusal)
        return RulingLine(partition, offset, "duplicate", 0)

    def _journalled(self, reader: Reader, partition: int, offset: int, since_ms: int) -> int | None:
        found: int | None = None

        def visit(message: Message) -> bool:
            nonlocal found
            entry = decode_journal(message.value() or b"")
            if entry.partition == partition and entry.offset == offset and not _is_note(entry):
                found = entry.seq
            # To the end: a record that waited for its session (rule H5) is journalled after later ones.
            return found is None

        _all_since(reader, self._names.journal, partition, since_ms, visit)
        return found

    def _rejected(self, reader: Reader, partition: int, offset: int, since_ms: int) -> tuple[str, str] | None:
        origin = f"{self._names.inbox}/{partition}/{offset}".encode()
        found: tuple[str, str] | None = None

        def visit(message: Message) -> bool:
            nonlocal found
            headers = header_map(message)
            if headers.get("refold-origin") == origin:
                found = (
                    headers.get("refold-code", b"").decode("utf-8", "replace"),
                    headers.get("refold-reason", b"").decode("utf-8", "replace"),
                )
            return found is None

        _all_since(reader, self._names.rejected, partition, since_ms, visit)
        return found

    async def snapshot(self, partition: int, key: bytes) -> bytes | None:
        """The newest committed state record of a key: reads the whole partition of the state topic."""
        return await self._pool.scan(lambda reader: self._newest(reader, partition, key))

    def _newest(self, reader: Reader, partition: int, key: bytes) -> bytes | None:
        newest: bytes | None = None

        def visit(message: Message) -> bool:
            nonlocal newest
            if message.key() == key:
                newest = message.value()
            return True

        first, _ = reader.end(self._names.state, partition)
        reader.sweep(self._names.state, partition, first, visit)
        return newest


def _is_note(entry: JournalEntry) -> bool:
    """Whether the worker made it; anybody may write a SessionQuarantined with an id of its own."""
    made = entry.env.event_id.endswith(f"/{entry.partition}/{entry.offset}")
    return made and entry.env.type in NOTES


def _all_since(
    reader: Reader, topic: str, partition: int, since_ms: int, visit: Callable[[Message], bool]
) -> None:
    """To the end as of now; the last stable offset may lie before it, and is no end."""
    end = reader.mark(topic, partition)
    start = reader.offset_at(topic, partition, since_ms)
    if start < end:
        reader.sweep(topic, partition, start, visit, last=end - 1)


def header_map(message: Message) -> dict[str, bytes]:
    """Headers by name; the last of a repeated one wins, a null one is empty."""
    return {name: value or b"" for name, value in message.headers() or ()}
