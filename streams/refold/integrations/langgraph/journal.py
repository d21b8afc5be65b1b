"""A thread's events with their contents, read again where they are no longer in memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import aclosing

from refold.client.events import SessionEvent
from refold.client.session import Session
from refold.errors import InvalidRecord
from refold.integrations.langgraph.index import Place
from refold.integrations.langgraph.limits import RECORDS_KEPT_BYTES_MAX, SEEKS_AT_ONCE_MAX
from refold.integrations.langgraph.records import TYPES, Record, decode, size_of


class Gone(Exception):
    """The session was deleted while it was read."""


class Records:
    """Of all threads, the most recently used; at most ``bytes_max`` of values."""

    def __init__(self, bytes_max: int = RECORDS_KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[tuple[bytes, Place], Record] = OrderedDict()

    def keep(self, key: bytes, place: Place, record: Record) -> None:
        if (key, place) in self._kept:
            return
        self._kept[(key, place)] = record
        self._bytes += size_of(record)
        while self._bytes > self._bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= size_of(dropped)

    async def at(self, session: Session, places: Iterable[Place]) -> dict[Place, Record]:
        """The records of events that the session's present life has. Raises Gone where it has not."""
        found: dict[Place, Record] = {}
        missing: list[Place] = []
        for place in dict.fromkeys(places):
            kept = self._kept.get((session.key, place))
            if kept is None:
                missing.append(place)
            else:
                self._kept.move_to_end((session.key, place))
                found[place] = kept
        for first in range(0, len(missing), SEEKS_AT_ONCE_MAX):
            some = missing[first : first + SEEKS_AT_ONCE_MAX]
            for place, record in zip(
                some, await asyncio.gather(*(_read(session, place) for place in some)), strict=True
            ):
                self.keep(session.key, place, record)
                found[place] = record
        return found


async def _read(session: Session, place: Place) -> Record:
    async with aclosing(session.events(place.seq - 1, 1)) as source:
        async for event in source:
            if event.type in TYPES and place_of(event) == place:
                return record_of(event)
    raise Gone


def place_of(event: SessionEvent) -> Place:
    return Place(event.seq, event.inbox_offset)


def record_of(event: SessionEvent) -> Record:
    """Raises InvalidRecord as :func:`decode`, and says where."""
    try:
        return decode(event.type, event.envelope.payload)
    except InvalidRecord as error:
        raise InvalidRecord(
            error.code, f"event {event.seq} of session {event.tenant}/{event.session}: {error.reason}"
        ) from None
