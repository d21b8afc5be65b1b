"""The right answer: the inbox folded in order by a straight loop, without batches, commits, caches or disks.

Drives the same ``decide`` and ``evolve`` (their own tests judge those), and nothing of the engine but the
events the worker makes itself (``refold.engine.made``): partition by partition, offset by offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from refold.core.decide import decide
from refold.core.events import GenerationFinished
from refold.core.evolve import evolve
from refold.core.progress import Progress
from refold.core.rulings import Accepted, Duplicate, Parked, Rejected
from refold.core.session import Session, initial
from refold.core.slots import SlotMap, split_key
from refold.engine import made
from refold.engine.chunks import Record
from refold.engine.reducers import watching
from refold.errors import InvalidRecord
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import journal_value
from refold.wire.snapshot import encode_snapshot

from .broker import Broker

Place = tuple[int, int]


class Ruled(NamedTuple):
    """``status`` as on the wire; ``number``: seq or repeated seq; ``code`` of a rejection."""

    status: str
    number: int | None
    code: str


@dataclass(slots=True)
class Expected:
    sessions: dict[bytes, Session] = field(default_factory=dict)
    #: Partition -> journal values in order.
    journal: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    rejected: dict[Place, str] = field(default_factory=dict)
    #: Places of records that belong elsewhere.
    forwarded: dict[Place, int] = field(default_factory=dict)
    rulings: dict[Place, Ruled] = field(default_factory=dict)

    def states(self) -> dict[bytes, bytes]:
        return {key: encode_snapshot(s) for key, s in self.sessions.items() if s.seq}


#: (partition, session key, generation id, attempt) -> what batches say of it.
ProgressOf = Callable[[int, bytes, str, int], Progress | None]


def fold_inbox(records: Iterable[Record], partitions: int, progress_of: ProgressOf | None = None) -> Expected:
    """``records``: every visible inbox record, forwards included, by partition and offset."""
    expected = Expected()
    slots = SlotMap(partitions)
    for record in records:
        _take(expected, slots, record, progress_of or (lambda *_: None))
    return expected


def inbox_records(broker: Broker, topic: str) -> Iterable[Record]:
    for number in range(broker.partitions):
        for entry in broker.log(topic, number).committed():
            yield Record(number, entry.offset, entry.time_ms, entry.key, entry.value, entry.headers or None)


def _take(expected: Expected, slots: SlotMap, record: Record, progress_of: ProgressOf) -> None:
    place = (record.partition, record.offset)
    try:
        tenant, name = split_key(record.key)
        key = record.key or b""
        if slots.partition(key) != record.partition:
            expected.forwarded[place] = slots.partition(key)
            return
        session = expected.sessions.get(key) or initial(tenant, name)
        if record.value is None:
            env, event = made.deletion(record, tenant, name)
        else:
            env = decode_envelope(record.value)
            if (env.tenant, env.session) != (tenant, name):
                raise InvalidRecord("key_mismatch", "another session's envelope")
            event = decode_event(env)
        if isinstance(event, GenerationFinished):
            event.progress = progress_of(record.partition, key, event.generation_id, event.attempt)
        time_ms = max(session.time_ms, _append_ms(record))
        ruling = decide(session, env, event, time_ms)
    except InvalidRecord as bad:
        _reject(expected, place, bad.code)
        return
    if isinstance(ruling, Accepted):
        watch = watching()
        if watch is not None:
            watch.forget()
        _accept(expected, session, key, record, env, event, ruling.time_ms)
        for part in () if watch is None else watch.take():
            note = made.reducer_quarantined(record, tenant, name, part)
            _accept(expected, session, key, record, *note, max(session.time_ms, record.append_ms))
        expected.rulings[place] = Ruled("accepted", ruling.seq, "")
    elif isinstance(ruling, Duplicate):
        expected.rulings[place] = Ruled("duplicate", ruling.of_seq, "")
    elif isinstance(ruling, Rejected):
        if isinstance(ruling, Parked):
            note = made.parked(record, tenant, name, env.event_id)
            _accept(expected, session, key, record, *note, max(session.time_ms, record.append_ms))
        _reject(expected, place, ruling.code)


def _append_ms(record: Record) -> int:
    """The origin's append time for a forward, the record's own otherwise."""
    headers = dict(record.headers or ())
    if {"refold-origin", "refold-hops", "refold-append-ms"} <= set(headers):
        return min(int(headers["refold-append-ms"]), record.append_ms)
    return record.append_ms


def _accept(  # type: ignore[no-untyped-def]
    expected: Expected, session: Session, key: bytes, record: Record, env, event, time_ms: int
) -> None:
    seq = session.seq + 1
    value = journal_value(seq, time_ms, record.partition, record.offset, env)
    expected.journal.setdefault(record.partition, []).append((key, value))
    evolve(session, seq, time_ms, record.partition, record.offset, env, event)
    expected.sessions[key] = session


def _reject(expected: Expected, place: Place, code: str) -> None:
    expected.rejected[place] = code
    expected.rulings[place] = Ruled("rejected", None, code)
