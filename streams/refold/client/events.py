"""One event of a session as a reader sees it: decoded on demand, because most readers look at a few types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from refold.client.payloads import decode_payload
from refold.core.envelope import Envelope
from refold.wire.journal import decode_journal


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """An accepted event. ``seq`` counts from 1 without gaps; ``time_ms`` is session time.

    ``journal_partition`` and ``journal_offset`` say where the record lies, ``inbox_partition`` and
    ``inbox_offset`` where it came from; ``envelope`` holds the rest.
    """

    seq: int
    time_ms: int
    journal_partition: int
    journal_offset: int
    inbox_partition: int
    inbox_offset: int
    envelope: Envelope

    @property
    def type(self) -> str:
        return self.envelope.type

    @property
    def event_id(self) -> str:
        return self.envelope.event_id

    @property
    def tenant(self) -> str:
        return self.envelope.tenant

    @property
    def session(self) -> str:
        return self.envelope.session

    @property
    def payload(self) -> dict[str, Any] | None:
        """The payload decoded with the newest schema of its type; ``None`` for a type this reader does not
        know (``envelope.payload`` has its bytes). Content parts are :class:`refold.wire.parts.Part`."""
        return decode_payload(self.envelope)


def event_of(message: Message) -> SessionEvent:
    """Decode a journal record. Raises InvalidRecord for what no worker has written."""
    entry = decode_journal(message.value())
    return SessionEvent(
        entry.seq,
        entry.time_ms,
        message.partition() or 0,
        message.offset() or 0,
        entry.partition,
        entry.offset,
        entry.env,
    )
