"""What an accepted event writes besides the journal: markers among a generation's batches, the review list
(R1), and what there is to do (N1).

:func:`before` is called in front of ``evolve``, :func:`outputs` after it; both only look. The outputs travel
in the transaction of the event, and are taken back with it (``Output.session``).

A ``begin`` is written for each attempt, ``stop`` and ``end`` for what the journal decided; ``forget`` (rule
G12) when the session no longer has the row. So who reads `batches` in order knows what the journal decided,
and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from refold.core.busy import interrupts
from refold.core.events import (
    Event,
    GenerationAttempted,
    GenerationFailed,
    GenerationFinished,
    GenerationStarted,
    GenerationStopped,
    MessageAppended,
    SessionDeleted,
)
from refold.core.generations import is_open
from refold.core.limits import ERROR_CODE_BYTES_MAX
from refold.core.operationevents import SessionPruned
from refold.core.progress import Marker
from refold.core.reviews import (
    ReviewKind,
    item_of,
    may_change_reviews,
    review_changes,
    waiting,
)
from refold.core.rulings import Accepted
from refold.core.run_events import TimerFired
from refold.core.session import Session
from refold.core.texts import clip
from refold.core.work import WorkItem, may_change_work, work_items
from refold.engine.overlay import Output
from refold.engine.work import work_outputs
from refold.topology.names import TopicNames
from refold.wire.batches import encode_item
from refold.wire.reviews import encode_review, review_key

#: Types after which there is something to say among the batches.
_MARKED: Final[frozenset[type]] = frozenset(
    {
        GenerationStarted,
        GenerationAttempted,
        GenerationStopped,
        GenerationFinished,
        GenerationFailed,
        SessionDeleted,
        SessionPruned,
        TimerFired,
    }
)

#: Code in the ``end`` of a generation whose session was deleted.
DELETED: Final = "session_deleted"

#: A list: what librdkafka takes. Never changed.
_NO_HEADERS: Final[list[tuple[str, bytes]]] = []


class Before(NamedTuple):
    """``generations``: id → (attempt, still open). ``waiting``: what waits for a person; ``work``: what
    there is to do; ``None``: as after."""

    generations: Mapping[str, tuple[int, bool]]
    waiting: Mapping[str, ReviewKind] | None
    work: Mapping[str, WorkItem] | None


def before(session: Session, event: Event) -> Before | None:
    """``None``: an event of this type writes nothing besides the journal."""
    calls = waiting(session) if may_change_reviews(event) else None
    work = work_items(session) if may_change_work(session, event) else None
    if type(event) in _MARKED or (type(event) is MessageAppended and interrupts(session, event)):
        rows = session.generations.values()
        return Before({row.generation_id: (row.attempt, is_open(row)) for row in rows}, calls, work)
    return None if calls is None and work is None else Before({}, calls, work)


def outputs(
    topics: TopicNames,
    partition: int,
    key: bytes,
    session: Session,
    ruling: Accepted,
    event: Event,
    was: Before,
) -> tuple[Output, ...]:
    """In the order in which readers are to see them."""
    found = [
        Output(topics.batches, partition, key, encode_item(marker), _NO_HEADERS, key)
        for marker in _markers(session, ruling, event, was)
    ]
    if was.waiting is not None:
        for name, kind in review_changes(was.waiting, session):
            value = None
            if kind is not None:
                value = encode_review(item_of(session, name, event, ruling.time_ms, ruling.seq))
            where = review_key(key, name)
            found.append(Output(topics.review, partition, where, value, _NO_HEADERS, key))
    if was.work is not None:
        found += work_outputs(topics, partition, key, was.work, session)
    return tuple(found)


def _markers(session: Session, ruling: Accepted, event: Event, was: Before) -> list[Marker]:
    found: list[Marker] = []

    def add(generation_id: str, kind: str, attempt: int, **fields: Any) -> None:
        found.append(
            Marker(generation_id, kind, attempt, journal_seq=ruling.seq, time_ms=ruling.time_ms, **fields)
        )

    if not session.exists:
        # Deleted, or its idle time was over.
        for generation_id, (attempt, was_open) in was.generations.items():
            if was_open:
                add(generation_id, "end", attempt, state="failed", error=DELETED)
    elif isinstance(event, GenerationStarted | GenerationAttempted):
        row = session.generations[event.generation_id]
        add(
            row.generation_id,
            "begin",
            row.attempt,
            mode=row.mode,
            holder=event.holder,
            lease_ms=event.lease_ms,
            message_id=row.message_id,
            generator=row.generator,
        )
    elif isinstance(event, GenerationStopped):
        add(event.generation_id, "stop", session.generations[event.generation_id].attempt)
    elif isinstance(event, MessageAppended):
        # It interrupts what is under way (O4).
        for row in session.generations.values():
            if row.state == "stopping" and row.updated_seq == ruling.seq:
                add(row.generation_id, "stop", row.attempt)
    elif isinstance(event, GenerationFinished):
        row = session.generations[event.generation_id]
        state = "stopped" if event.stopped else "finished"
        last_seq, message_id = event.last_seq, row.message_id
        add(row.generation_id, "end", row.attempt, state=state, last_seq=last_seq, message_id=message_id)
    elif isinstance(event, GenerationFailed):
        add(
            event.generation_id,
            "end",
            event.attempt,
            state="failed",
            error=clip(event.code, ERROR_CODE_BYTES_MAX),
        )
    for generation_id, (attempt, _) in was.generations.items():
        if generation_id not in session.generations:
            add(generation_id, "forget", attempt)
    return found
