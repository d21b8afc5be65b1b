"""A session without Kafka: events are decided and folded in memory, through the same bytes as a worker's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from refold.client.payloads import encode_payload
from refold.client.receipts import Receipt
from refold.client.writes import SessionWrites
from refold.core import decide, evolve, initial
from refold.core.envelope import Envelope
from refold.core.rulings import Accepted
from refold.errors import InvariantViolation
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import journal_value
from refold.wire.snapshot import encode_snapshot


class MemorySession(SessionWrites):
    """A session that only exists here. ``value`` is its encoded snapshot so far."""

    def __init__(self, tenant: str, session: str) -> None:
        self._tenant = tenant
        self._name = session
        self._state = initial(tenant, session)
        self._offsets = itertools.count()
        #: Journal values of the events so far, as a worker would have written them.
        self.journal: list[bytes] = []

    async def publish(self, event_type: str, payload: Mapping[str, Any] | bytes, **options: Any) -> Receipt:
        number = next(self._offsets)
        envelope = Envelope(
            event_id=f"{self._name}-{number}",
            tenant=self._tenant,
            session=self._name,
            type=event_type,
            actor=options.get("actor"),
            producer_id="reference",
            producer_epoch=1,
            producer_counter=number + 1,
            payload=payload if isinstance(payload, bytes) else encode_payload(event_type, payload),
        )
        # Through the bytes, as every event of a real run goes.
        read = decode_envelope(encode_envelope(envelope))
        event = decode_event(read)
        ruling = decide(self._state, read, event, number)
        if not isinstance(ruling, Accepted):
            raise InvariantViolation(
                f"the uninterrupted run had {event_type} of {self._name} refused: {ruling}"
            )
        self.journal.append(journal_value(ruling.seq, ruling.time_ms, 0, number, read))
        evolve(self._state, ruling.seq, ruling.time_ms, 0, number, read, event)
        return Receipt(envelope.event_id, event_type, 0, number, number, options.get("message_id"))

    @property
    def value(self) -> bytes:
        return encode_snapshot(self._state)
