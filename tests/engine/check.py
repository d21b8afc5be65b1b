"""The oracle: what topics must hold after everything was ruled on. Independent of the engine's code.

State equals the core's fold of the journal, byte for byte; the journal has every accepted event once, gapless
per session and in the order of sending; every record that cannot be taken is in the rejected topic once.
"""

from __future__ import annotations

from collections import Counter

from engine.cluster import Cluster, by_key, wait_for
from engine.traffic import Sent
from refold.core.evolve import evolve
from refold.core.session import initial
from refold.core.slots import SlotMap, split_key
from refold.engine.history import HEADER, decode_block, decode_tail
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot


def differences(cluster: Cluster, sent: Sent) -> list[str]:
    """Every difference found, worst first; empty when all is as it must be."""
    found: list[str] = []
    topics, slots = cluster.topics, SlotMap(cluster.partitions)
    # Markers of the last commits may still be on their way, each partition's on its own.
    outputs = (topics.journal, topics.state, topics.history, topics.rejected)
    wait_for("the last transactions to end", lambda: cluster.stable(*outputs))
    journal = cluster.read(topics.journal)
    seen: Counter[str] = Counter()
    folded: dict[bytes, bytes | None] = {}
    places: dict[bytes, list[int]] = {}
    order: dict[str, list[str]] = {}
    for key, messages in by_key(journal):
        tenant, name = split_key(key)
        session = initial(tenant, name)
        for message in messages:
            entry = decode_journal(message.value())
            if message.partition() != slots.partition(key):
                found.append(f"{key!r} is in the journal on partition {message.partition()}")
            if entry.seq != session.seq + 1:
                found.append(f"{key!r}: seq {entry.seq} follows {session.seq} in the journal")
            seen[entry.env.event_id] += 1
            order.setdefault(name, []).append(entry.env.event_id)
            if entry.seq != session.seq + 1:
                # No fold is defined from here on; the difference is noted already.
                session.seq = entry.seq
                continue
            evolve(
                session,
                entry.seq,
                entry.time_ms,
                entry.partition,
                entry.offset,
                entry.env,
                decode_event(entry.env),
            )
            if session.seq == 0:
                places[key] = []
            else:
                places.setdefault(key, []).append(message.offset())
        folded[key] = encode_snapshot(session) if session.seq else None
    for event_id in sorted(sent.accepted - set(seen)):
        found.append(f"event {event_id} is not in the journal")
    for event_id, count in seen.items():
        if count > 1:
            found.append(f"event {event_id} is in the journal {count} times")
        if event_id not in sent.accepted:
            found.append(f"event {event_id} is in the journal and was never sent")
    for name, expected in sent.order.items():
        if order.get(name) != expected:
            found.append(f"session {name}: the journal's order is not the producer's")
    found.extend(_state(cluster, folded, places))
    found.extend(_rejected(cluster, sent))
    return found


def _state(cluster: Cluster, folded: dict[bytes, bytes | None], places: dict[bytes, list[int]]) -> list[str]:
    found = []
    last = {key: messages[-1] for key, messages in by_key(cluster.read(cluster.topics.state))}
    blocks = {key: m[-1].value() for key, m in by_key(cluster.read(cluster.topics.history))}
    for key in sorted(set(folded) | set(last)):
        message = last.get(key)
        stored = None if message is None else message.value()
        if stored != folded.get(key):
            found.append(f"{key!r}: stored state is not the fold of the journal")
        if message is None or stored is None:
            continue
        tail = decode_tail(dict(message.headers() or [])[HEADER])
        listed: list[int] = []
        for number in range(tail.blocks):
            block = blocks.get(b"%s#%08X" % (key, number))
            listed.extend([] if block is None else decode_block(block))
        if [*listed, *tail.offsets] != places.get(key, []):
            found.append(f"{key!r}: the history index does not name the journal's offsets")
    return found


def _rejected(cluster: Cluster, sent: Sent) -> list[str]:
    found = []
    seen: Counter[tuple[int, int]] = Counter()
    for message in cluster.read(cluster.topics.rejected):
        topic, partition, offset = dict(message.headers())["refold-origin"].decode().rsplit("/", 2)
        assert topic == cluster.topics.inbox
        seen[int(partition), int(offset)] += 1
    for place in sorted(sent.rejected - set(seen)):
        found.append(f"inbox record {place} should be in the rejected topic and is not")
    for place, count in seen.items():
        if count > 1:
            found.append(f"inbox record {place} is in the rejected topic {count} times")
        if place not in sent.rejected:
            found.append(f"inbox record {place} was rejected and should not have been")
    return found
