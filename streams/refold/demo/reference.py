"""The uninterrupted run: the same player, its events folded in memory, no Kafka, no crash.

The rule of normalisation, for comparing its states with the stored ones: every ``…_ms`` field (times, leases)
becomes 0; the frontier (inbox positions) and the ``engine`` part (producer ids and counters of the
de-duplication) are left out. Everything else must be equal: messages, facts, tool rows, branches, statuses,
seqs, ids. Ids need no rule, because the player derives them from the script.
"""

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
from refold.wire.codec import decode
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


def normalised(value: bytes) -> Any:
    """The public part of a snapshot under the rule above."""
    record = dict(decode(value, "refold.SessionSnapshot").record)
    for name in ("engine", "frontier"):
        record.pop(name)
    return _without_times(record)


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: 0 if k.endswith("_ms") and v is not None else _without_times(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value
