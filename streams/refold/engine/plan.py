"""What one attempt at a commit produces for one partition, and what it learns from the acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from refold.engine.history import Tail
from refold.engine.overlay import PartitionOverlay
from refold.engine.store import Store


@dataclass(slots=True)
class Written:
    """What the owner of a partition knows about its changelogs; changed by the commit thread only."""

    store: Store
    state_topic: str
    history_topic: str
    state_next: int
    history_next: int
    #: Where our next journal record will be, if nobody else writes; ``None`` when that is not known.
    journal_next: int | None = None


class Acks:
    """Delivery reports of the first and last journal record, and of the last changelog records, of a
    partition."""

    __slots__ = ("first", "history", "journal", "state")

    def __init__(self) -> None:
        self.first = -1
        self.journal = -1
        self.state = -1
        self.history = -1

    def on_first(self, error: Any, message: Message) -> None:
        self.first = -1 if error is not None else message.offset()

    def on_journal(self, error: Any, message: Message) -> None:
        self.journal = -1 if error is not None else message.offset()

    def on_state(self, error: Any, message: Message) -> None:
        self.state = -1 if error is not None else message.offset()

    def on_history(self, error: Any, message: Message) -> None:
        self.history = -1 if error is not None else message.offset()


@dataclass(slots=True)
class Plan:
    """What one attempt produced for one partition."""

    part: PartitionOverlay
    #: Ends of the changelogs before this transaction, as far as we have written them.
    state_base: int
    history_base: int
    #: Journal offset of the first event, foretold or known; ``None`` before that.
    first: int | None = None
    acks: Acks = field(default_factory=Acks)
    #: key -> (row or None for a deletion)
    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    #: full block key -> value or None
    blocks: dict[bytes, bytes | None] = field(default_factory=dict)
    tails: dict[bytes, Tail] = field(default_factory=dict)
