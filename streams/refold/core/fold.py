"""fold: evolve over a sequence of journal entries. What the worker, `session fold` and the tests share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from refold.core.envelope import Envelope
from refold.core.events import Event
from refold.core.evolve import evolve
from refold.core.session import Session


class Entry(Protocol):
    """A journal entry, as ``refold.wire.journal`` decodes it."""

    @property
    def seq(self) -> int: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def env(self) -> Envelope: ...


def fold(session: Session, entries: Iterable[tuple[Entry, Event]]) -> Session:
    """Applies the entries, in order, to ``session`` and returns it."""
    for entry, event in entries:
        evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, event)
    return session
