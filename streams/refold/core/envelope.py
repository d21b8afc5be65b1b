"""The envelope of one event as a value: who, where, when, which type, and the payload's bytes.

Slots and tuples instead of frozen dataclasses because one is made per inbox record (budget: 15 µs per event).
Treat an envelope as immutable: ``raw`` would no longer be its bytes. :meth:`Envelope.replace` makes another.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

#: The kinds of actor, in the order of the schema's enum.
ACTOR_KINDS: Final = ("user", "assistant", "agent", "tool", "system", "unknown")

#: The kinds of link, in the order of the schema's enum.
LINK_KINDS: Final = ("fork", "child", "unknown")


class Actor(NamedTuple):
    """Who acted. ``kind`` is one of :data:`ACTOR_KINDS`."""

    kind: str
    id: str | None = None
    name: str | None = None


class InboxOrigin(NamedTuple):
    """Where a forwarded or replayed record was first appended. ``append_time_ms``: broker time."""

    topic: str
    partition: int
    offset: int
    append_time_ms: int
    hops: int
    replay: bool = False


class SessionLink(NamedTuple):
    """How a session hangs on another one of its tenant. ``kind`` is one of :data:`LINK_KINDS`."""

    kind: str
    session: str
    seq: int | None = None
    call: str | None = None


class Envelope:
    """One event. The producer stamp is flat: ``producer_id is None`` means there is none.

    ``raw`` holds the encoded bytes without their frame, empty when it was made in memory and not encoded yet.
    """

    __slots__ = (
        "actor",
        "attempt",
        "causation_id",
        "correlation_id",
        "event_id",
        "event_time_ms",
        "expected_seq",
        "link",
        "origin",
        "payload",
        "producer_counter",
        "producer_epoch",
        "producer_id",
        "raw",
        "run",
        "session",
        "step",
        "subject",
        "tenant",
        "type",
        "type_version",
    )

    def __init__(
        self,
        event_id: str,
        tenant: str,
        session: str,
        type: str,  # noqa: A002 - the schema's field name
        type_version: int = 1,
        event_time_ms: int = 0,
        producer_id: str | None = None,
        producer_epoch: int = 0,
        producer_counter: int = 0,
        expected_seq: int | None = None,
        subject: str | None = None,
        actor: Actor | None = None,
        run: str | None = None,
        step: str | None = None,
        attempt: int | None = None,
        causation_id: str | None = None,
        correlation_id: str | None = None,
        origin: InboxOrigin | None = None,
        link: SessionLink | None = None,
        payload: bytes = b"",
        raw: bytes = b"",
    ) -> None:
        self.event_id = event_id
        self.tenant = tenant
        self.session = session
        self.type = type
        self.type_version = type_version
        self.event_time_ms = event_time_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.producer_counter = producer_counter
        self.expected_seq = expected_seq
        self.subject = subject
        self.actor = actor
        self.run = run
        self.step = step
        self.attempt = attempt
        self.causation_id = causation_id
        self.correlation_id = correlation_id
        self.origin = origin
        self.link = link
        self.payload = payload
        self.raw = raw

    def replace(self, **changes: Any) -> Envelope:
        """A copy with other values; its ``raw`` is empty unless given."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["raw"] = b""
        return Envelope(**{**values, **changes})

    def __eq__(self, other: object) -> bool:
        """Equal values; ``raw`` is left out because it follows from them."""
        if not isinstance(other, Envelope):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in self.__slots__ if n != "raw")

    def __hash__(self) -> int:
        return hash((self.event_id, self.tenant, self.session))

    def __repr__(self) -> str:
        # No payload: it may hold what people wrote, and reprs end up in logs.
        return f"Envelope({self.type} {self.event_id!r} of {self.tenant}/{self.session})"
