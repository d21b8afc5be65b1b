"""One session's events, read by seeking: the owner's index says where they lie in the journal.

Cost depends on the session only: per page one HTTP request and one sweep per cluster of neighbouring offsets.
Without an owner the journal's partition is scanned: complete and committed, but as slow as the partition is
long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from confluent_kafka import Message

from refold.client.connection import Connection
from refold.client.events import SessionEvent, event_of
from refold.client.limits import HISTORY_PAGE_EVENTS, SEEKS_SPLIT
from refold.client.owners import NoOwnerAnswers
from refold.client.reader import Reader, sweeps
from refold.errors import InvariantViolation

#: Events collected per step of a scan, which bounds the memory of a scan over a long session.
SCAN_EVENTS: Final = 1_000


async def session_events(
    connection: Connection, tenant: str, session: str, key: bytes, after: int, limit: int | None
) -> AsyncGenerator[SessionEvent, None]:
    """Events with ``seq > after``, ascending, at most ``limit``; nothing for an unknown session."""
    partition = connection.partition_of(key)
    journal = connection.names.journal
    remaining = limit if limit is not None else -1
    while remaining != 0:
        page = HISTORY_PAGE_EVENTS if remaining < 0 else min(remaining, HISTORY_PAGE_EVENTS)
        try:
            found = await connection.owners.history(
                partition, tenant, session, after=after, limit=page, timeout_s=connection.request_timeout_s
            )
        except NoOwnerAnswers:
            start = await connection.readers.scan(lambda reader: _life_start(reader, journal, partition, key))
            if start is not None:
                async for event in _scan(connection, partition, start, key, after, None, remaining):
                    yield event
            return
        if found is None:
            return
        answer, upto = found
        offsets = [offset for _, offset in answer.offsets]
        for event in await _at(connection, answer.topic, answer.partition, offsets):
            _check(event, key, after + 1)
            after = event.seq
            remaining -= 1
            yield event
        if answer.scan_from is not None and (upto is None or after < upto) and remaining != 0:
            async for event in _scan(connection, partition, answer.scan_from, key, after, upto, remaining):
                yield event
            return
        if not offsets:
            return


async def _at(connection: Connection, topic: str, partition: int, offsets: list[int]) -> list[SessionEvent]:
    if not offsets:
        return []
    ranges = sweeps(offsets)
    cut = len(offsets)
    if len(ranges) >= SEEKS_SPLIT:
        cut = offsets.index(ranges[len(ranges) // 2][0])

    def read(half: list[int]) -> Callable[[Reader], list[SessionEvent]]:
        return lambda reader: [event_of(message) for message in reader.at(topic, partition, half)]

    halves = [half for half in (offsets[:cut], offsets[cut:]) if half]
    found = await asyncio.gather(*(connection.readers.run(read(half)) for half in halves))
    return [event for half in found for event in half]


def _life_start(reader: Reader, journal: str, partition: int, key: bytes) -> int | None:
    """Journal offset of the session's first event since it was last deleted; ``None`` when there is none.

    Reads the whole partition: after a deletion, by whoever or by its idle time, a session counts from 1
    again, and what lies before belongs to its former life.
    """
    start: int | None = None

    def visit(message: Message) -> bool:
        nonlocal start
        if message.key() == key:
            event = event_of(message)
            if event.type == "SessionDeleted":
                start = None
            elif start is None or event.seq == 1:
                start = event.journal_offset
        return True

    first, _ = reader.end(journal, partition)
    reader.sweep(journal, partition, first, visit)
    return start


def _check(event: SessionEvent, key: bytes, seq: int) -> None:
    if f"{event.tenant}/{event.session}".encode() != key or event.seq != seq:
        raise InvariantViolation(
            f"the history index has event {seq} of the session at journal offset {event.journal_offset}, "
            f"but there is event {event.seq} of this or another session: report this as a bug of refold"
        )


async def _scan(
    connection: Connection,
    partition: int,
    start: int,
    key: bytes,
    after: int,
    upto: int | None,
    remaining: int,
) -> AsyncGenerator[SessionEvent, None]:
    """Events of one key from a journal offset on, to ``upto`` or the last stable offset."""
    while True:
        collect = SCAN_EVENTS if remaining < 0 else min(remaining, SCAN_EVENTS)
        scan = _Scan(key, after, upto, collect)
        # With a known last seq the events lie close together, right behind the index's end.
        run = connection.readers.scan if upto is None else connection.readers.run
        await run(scan.reading(connection.names.journal, partition, start))
        for event in scan.found:
            yield event
            after = event.seq
        remaining -= len(scan.found)
        if not scan.full or remaining == 0 or (upto is not None and after >= upto):
            return
        start = scan.next_offset


class _Scan:
    """Collects in the reader's thread; decodes only records of the session."""

    def __init__(self, key: bytes, after: int, upto: int | None, events_max: int) -> None:
        self.found: list[SessionEvent] = []
        self.full = False
        self.next_offset = 0
        self._key = key
        self._after = after
        self._upto = upto
        self._events_max = events_max

    def reading(self, topic: str, partition: int, start: int) -> Callable[[Reader], None]:
        return lambda reader: reader.sweep(topic, partition, start, self.visit)

    def visit(self, message: Message) -> bool:
        if message.key() != self._key:
            return True
        self.next_offset = (message.offset() or 0) + 1
        event = event_of(message)
        if event.seq > self._after:
            self.found.append(event)
        self.full = len(self.found) >= self._events_max
        return not self.full and (self._upto is None or event.seq < self._upto)
