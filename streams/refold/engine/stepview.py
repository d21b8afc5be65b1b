"""What a step may look at, and within which limits. Implemented by
:class:`refold.engine.sessions.Sessions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from refold.core.progress import Progress
from refold.engine.cache import Entry
from refold.engine.chunks import Record
from refold.engine.sabotage import Sabotage
from refold.engine.usage import Usages
from refold.topology.names import TopicNames


@dataclass(frozen=True, slots=True)
class Limits:
    """``max.message.bytes`` of the topics written to."""

    journal_bytes_max: int
    rejected_bytes_max: int
    inbox_bytes_max: int
    state_bytes_max: int
    batches_bytes_max: int
    review_bytes_max: int


class StepView(Protocol):
    """What a step may look at."""

    @property
    def topics(self) -> TopicNames: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def sabotage(self) -> Sabotage: ...

    @property
    def usages(self) -> Usages:
        """Where events of usage count; not to be looked at."""

    def cached(self, key: bytes) -> Entry | None:
        """The session in memory; being there proves the key well-formed and says its partition."""

    def partition_of(self, key: bytes) -> int: ...

    def load(self, key: bytes, partition: int, tenant: str, session: str) -> Entry:
        """From disk, or the initial state."""

    def rebuild(self, entry: Entry) -> Entry:
        """The session as it is after everything accepted so far, made anew from what is committed:
        ``entry``'s own may be half changed."""

    def progress(self, key: bytes, partition: int, generation_id: str) -> Progress | None:
        """How far `batches` has been folded for a generation of the session ``key``."""

    def caught_up(self, record: Record) -> bool:
        """Whether `batches` was read to its end for this record (rule G10): what it says now stands."""
