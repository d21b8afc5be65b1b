"""Telling repeats from news. Labelled U in docs/concepts/session.md.

U1  Stamped events: per producer id the newest epoch and its highest counter. Lower or equal = duplicate,
    older epoch = ``stale_producer``. Exact for as long as the producer is remembered.
U2  At most PRODUCERS_MAX producers. To make room the least recently used one *whose clock is not ahead of the
    session's time* is forgotten and ``dedup_floor_ms`` raised to the largest event time ever accepted from
    it. An event of a producer that is not remembered is applied only if its event time is above the floor.
    A retry repeats the event's bytes, so a repeat of a forgotten producer's event is never above the floor;
    a new producer is above it unless its clock is behind that of one long silent. Forgetting only producers
    not ahead of time keeps a clock in 2100 from raising the floor for everybody; if all are ahead, the new
    one is refused (``too_many_producers``).
U3  Unstamped events: the last DEDUP_EVENT_IDS_MAX ids. Same id and content = duplicate, same id and other
    content = ``conflict``.
U4  Message ids: those of held messages and of the last DEDUP_MESSAGE_IDS_MAX that left the state.

A ring is one ``bytes`` value, oldest entry first: 8 bytes of id hash, 4 of content hash, 4 of seq. It is
spliced into the record as it is. The hashes are fixed (blake2b, crc32): Python's own differ by process.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from zlib import crc32

from refold.core.envelope import Envelope
from refold.core.limits import DEDUP_ENTRY_BYTES, DEDUP_EVENT_IDS_MAX, PRODUCERS_MAX
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Producer, Session

SEQ_MASK: Final = 0xFFFFFFFF


def content_hash(type_name: str, payload: bytes) -> bytes:
    return crc32(payload, crc32(type_name.encode())).to_bytes(4, "little")


def ring_find(ring: bytes, entry_id: str) -> int:
    """Position of the entry of ``entry_id`` in the ring, -1 when it is not there."""
    if not ring:
        return -1
    digest = blake2b(entry_id.encode(), digest_size=8).digest()
    at = ring.find(digest)
    while at >= 0 and at % DEDUP_ENTRY_BYTES:
        at = ring.find(digest, at + 1)
    return at


def ring_entry(entry_id: str, content: bytes, seq: int) -> bytes:
    digest = blake2b(entry_id.encode(), digest_size=8).digest()
    return digest + content + (seq & SEQ_MASK).to_bytes(4, "little")


def ring_add(ring: bytes, entry_id: str, content: bytes, seq: int, entries_max: int) -> bytes:
    entry = ring_entry(entry_id, content, seq)
    if len(ring) >= entries_max * DEDUP_ENTRY_BYTES:
        return ring[DEDUP_ENTRY_BYTES:] + entry
    return ring + entry


def ring_content(ring: bytes, at: int) -> bytes:
    return ring[at + 8 : at + 12]


def ring_seq(ring: bytes, at: int, newest_seq: int) -> int:
    """The entry's seq; its low 32 bits are stored, and it is the largest such number up to the newest."""
    low = int.from_bytes(ring[at + 12 : at + 16], "little")
    return newest_seq - ((newest_seq - low) & SEQ_MASK)


def rule_repeat(session: Session, env: Envelope) -> Duplicate | Rejected | None:
    """U1 to U3: the ruling on a repeat, None when the event is news. Changes nothing."""
    producer_id = env.producer_id
    if producer_id is None:
        ring = session.event_ids
        at = ring_find(ring, env.event_id)
        if at < 0:
            return None
        seq = ring_seq(ring, at, session.seq)
        if ring_content(ring, at) == content_hash(env.type, env.payload):
            return Duplicate(seq)
        return Rejected("conflict", f"the event id was used with other content at seq {seq}")
    known = session.producers.get(producer_id)
    if known is not None:
        if env.producer_epoch == known.epoch:
            if env.producer_counter > known.counter:
                return None
            return Duplicate(known.seq if env.producer_counter == known.counter else 0)
        if env.producer_epoch > known.epoch:
            return None
        return Rejected(
            "stale_producer", f"the producer's epoch is {known.epoch}, the event has {env.producer_epoch}"
        )
    floor = session.dedup_floor_ms
    if floor is not None and env.event_time_ms <= floor:
        return Rejected(
            "too_old_to_judge",
            f"the producer is not remembered and event time {env.event_time_ms} is not after {floor}",
        )
    if len(session.producers) >= PRODUCERS_MAX and _forgettable(session) is None:
        return Rejected(
            "too_many_producers", f"{PRODUCERS_MAX} producers are remembered, all with clocks ahead"
        )
    return None


def remember(session: Session, seq: int, env: Envelope) -> None:
    """The event was accepted: recognise it from now on."""
    producer_id = env.producer_id
    if producer_id is None:
        content = content_hash(env.type, env.payload)
        session.event_ids = ring_add(session.event_ids, env.event_id, content, seq, DEDUP_EVENT_IDS_MAX)
        return
    producers = session.producers
    known = producers.get(producer_id)
    if known is None:
        if len(producers) >= PRODUCERS_MAX:
            _forget_one(session)
        producers[producer_id] = Producer(env.producer_epoch, env.producer_counter, env.event_time_ms, seq)
        return
    known.epoch = env.producer_epoch
    known.counter = env.producer_counter
    known.seq = seq
    if env.event_time_ms > known.event_time_ms:
        known.event_time_ms = env.event_time_ms
    known.enc = None
    if len(producers) > 1:
        # Most recently used last.
        del producers[producer_id]
        producers[producer_id] = known


def _forgettable(session: Session) -> str | None:
    now = session.time_ms
    for producer_id, producer in session.producers.items():
        if producer.event_time_ms <= now:
            return producer_id
    return None


def _forget_one(session: Session) -> None:
    producer_id = _forgettable(session)
    if producer_id is None:
        # decide refuses such an event; journals of older rules may hold one. Forget the oldest all the same.
        producer_id = next(iter(session.producers))
    producer = session.producers.pop(producer_id)
    floor = session.dedup_floor_ms
    if floor is None or producer.event_time_ms > floor:
        session.dedup_floor_ms = producer.event_time_ms
        session.enc_memory = None
