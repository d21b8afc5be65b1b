"""Fold the journal again and encode the result: what every stored state must equal, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

from refold.core import evolve, initial
from refold.core.session import Session
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot


class Refolder:
    """Feed it a partition's journal values in order; it holds one session object per key."""

    def __init__(self) -> None:
        self.sessions: dict[bytes, Session] = {}

    def feed(self, key: bytes, value: bytes) -> None:
        """Fold one journal record. Raises InvalidRecord for what no worker has written."""
        entry = decode_journal(value)
        session = self.sessions.get(key)
        if session is None:
            session = self.sessions[key] = initial(entry.env.tenant, entry.env.session)
        evolve(
            session,
            entry.seq,
            entry.time_ms,
            entry.partition,
            entry.offset,
            entry.env,
            decode_event(entry.env),
        )

    def encoded(self, key: bytes) -> bytes | None:
        session = self.sessions.get(key)
        return None if session is None else encode_snapshot(session)


def refold(records: Iterable[tuple[bytes, bytes]]) -> Refolder:
    """Fold (key, value) pairs that are in journal order per key."""
    made = Refolder()
    for key, value in records:
        made.feed(key, value)
    return made
