"""The opaque ``engine`` part: what the fold needs and readers do not. Its layout is this module's own.

A layout number comes first. What changes with every event (producers, id rings, the trail) is written each
time; the rest is kept encoded until it changes.
"""

from __future__ import annotations

from refold.core.orphans import orphan_cost
from refold.core.session import Orphan, OrphanResult, Producer, Session, Status, Trunk
from refold.wire.pieces import (
    END,
    Cursor,
    array,
    boolean,
    number,
    optional_number,
    optional_text,
    text,
)
from refold.wire.snapshot_messages import encode_message, read_message
from refold.wire.varint import LENGTHS

LAYOUT = 1

_STATUSES: tuple[Status, ...] = ("open", "closed", "quarantined", "releasing")
_LAYOUT_BYTES = number(LAYOUT)


def encode_engine(session: Session) -> bytes:
    producers = session.producers
    memory = session.enc_memory
    if memory is None:
        memory = session.enc_memory = _memory(session)
    event_ids = session.event_ids
    message_ids = session.message_ids
    trail = session.trail
    # PRODUCERS_MAX and the trail are far below what LENGTHS covers; the rings are not.
    return b"".join(
        (
            _LAYOUT_BYTES,
            LENGTHS[len(producers)],
            *[p.enc or _producer(name, p) for name, p in producers.items()],
            number(len(event_ids)) if event_ids else END,
            event_ids,
            number(len(message_ids)) if message_ids else END,
            message_ids,
            LENGTHS[len(trail)],
            trail,
            text(session.trunk_id) if session.trunk_id else END,
            memory,
        )
    )


def _producer(name: str, producer: Producer) -> bytes:
    enc = b"".join(
        (
            text(name),
            number(producer.epoch),
            number(producer.counter),
            number(producer.event_time_ms),
            number(producer.seq),
        )
    )
    producer.enc = enc
    return enc


def _memory(session: Session) -> bytes:
    return b"".join(
        (
            optional_number(session.dedup_floor_ms),
            number(session.status_seq),
            number(_STATUSES.index(session.resume_status)),
            number(session.opened_seq),
            array(
                [
                    text(name)
                    + number(t.through)
                    + number(t.uncovered)
                    + boolean(t.complete)
                    + number(t.summary_seq)
                    for name, t in session.trunks.items()
                ]
            ),
            array([text(name) + text(place) for name, place in session.aliases.items()]),
            array([_orphan(orphan) for orphan in session.orphans]),
        )
    )


def _orphan(orphan: Orphan) -> bytes:
    return (orphan.message.enc or encode_message(orphan.message)) + array(
        [
            optional_text(r.operation_id)
            + optional_text(r.call_id)
            + boolean(r.state == "failed")
            + boolean(r.is_error)
            + optional_text(r.summary)
            + optional_text(r.error_code)
            + optional_text(r.error)
            + text(r.matched)
            for r in orphan.results
        ]
    )


def read_engine(session: Session, cursor: Cursor) -> None:
    """Raises ValueError for another layout."""
    if cursor.number() != LAYOUT:
        raise ValueError("the engine part has a layout this version does not know")
    data = cursor.data
    for _ in range(cursor.length()):
        start = cursor.at
        name = cursor.text()
        epoch, counter, event_time_ms, seq = (
            cursor.number(),
            cursor.number(),
            cursor.number(),
            cursor.number(),
        )
        producer = Producer(epoch, counter, event_time_ms, seq)
        producer.enc = data[start : cursor.at]
        session.producers[name] = producer
    session.event_ids = cursor.blob()
    session.message_ids = cursor.blob()
    session.trail = cursor.blob()
    session.trunk_id = cursor.text()
    start = cursor.at
    session.dedup_floor_ms = cursor.optional_number()
    session.status_seq = cursor.number()
    session.resume_status = _STATUSES[cursor.length()]
    session.opened_seq = cursor.number()
    count = cursor.count()
    for _ in range(count):
        name = cursor.text()
        session.trunks[name] = Trunk(cursor.number(), cursor.number(), cursor.boolean(), cursor.number())
    cursor.end(count)
    count = cursor.count()
    for _ in range(count):
        name = cursor.text()
        session.aliases[name] = cursor.text()
    cursor.end(count)
    count = cursor.count()
    for _ in range(count):
        _read_orphan(session, cursor)
    cursor.end(count)
    session.enc_memory = data[start : cursor.at]


def _read_orphan(session: Session, cursor: Cursor) -> None:
    message = read_message(cursor)
    count = cursor.count()
    results = [
        OrphanResult(
            cursor.optional_text(),
            cursor.optional_text(),
            "failed" if cursor.boolean() else "done",
            cursor.boolean(),
            cursor.optional_text(),
            cursor.optional_text(),
            cursor.optional_text(),
            cursor.text(),
        )
        for _ in range(count)
    ]
    cursor.end(count)
    orphan = Orphan(message, results)
    session.answering = session.answering or bool(message.answers)
    session.orphans.append(orphan)
    session.orphans_bytes += orphan_cost(orphan)
    session.held[message.id] = message
