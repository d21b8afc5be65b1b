"""The oracle: what topics must hold after everything was ruled on. Independent of the engine's code.

State equals the core's fold of the journal, byte for byte; the journal has every accepted event once, gapless
per session and in the order of sending; every record that cannot be taken is in the rejected topic once.
Generation records are the pure rule's fold of the batches topic, and every event has its marker there once.
The work topic and the timers' rows are what the folded sessions say.
"""

from __future__ import annotations

import time
from collections import Counter

from confluent_kafka import Message

from engine.cluster import CONFIGS, Cluster, by_key, wait_for
from engine.traffic import Sent
from refold.core.evolve import evolve
from refold.core.progress import Applied, Marker, Progress, Refused, advance
from refold.core.session import Session, initial
from refold.core.slots import SlotMap, split_key
from refold.core.work import work_items
from refold.engine.history import HEADER, decode_block, decode_tail
from refold.errors import InvalidRecord
from refold.wire.batches import decode_item, encode_progress, generation_key
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot
from refold.wire.timers import Armed, decode_timer, encode_timer
from refold.wire.work import decode_work, work_key

#: What a worker proposes itself.
FIRED = "TimerFired"


#: Looks at topics that moved meanwhile: timers fire at any time, with workers that live.
LOOKS_MAX = 20


def differences(cluster: Cluster, sent: Sent) -> list[str]:
    """Every difference found, worst first; empty when all is as it must be."""
    for _ in range(LOOKS_MAX):
        found, events = _differences(cluster, sent)
        if not found or len(cluster.read(cluster.topics.journal)) == events:
            break
    return found


def _differences(cluster: Cluster, sent: Sent) -> tuple[list[str], int]:
    """And how many events the journal had."""
    found: list[str] = []
    topics, slots = cluster.topics, SlotMap(cluster.partitions)
    # Markers of the last commits may still be on their way, each partition's on its own.
    outputs = [f"{cluster.prefix}.{name}" for name in CONFIGS]
    wait_for("the last transactions to end", lambda: cluster.stable(*outputs))
    journal = cluster.read(topics.journal)
    seen: Counter[str] = Counter()
    folded: dict[bytes, bytes | None] = {}
    places: dict[bytes, list[int]] = {}
    order: dict[str, list[str]] = {}
    sessions: dict[bytes, Session] = {}
    # Proposed by the workers themselves.
    fired: set[str] = set()
    for key, messages in by_key(journal):
        tenant, name = split_key(key)
        session = initial(tenant, name)
        for message in messages:
            entry = decode_journal(message.value())
            if message.partition() != slots.partition(key):
                found.append(f"{key!r} is in the journal on partition {message.partition()}")
            if entry.seq != session.seq + 1:
                found.append(f"{key!r}: seq {entry.seq} follows {session.seq} in the journal")
            if entry.env.type == FIRED:
                fired.add(entry.env.event_id)
            else:
                order.setdefault(name, []).append(entry.env.event_id)
            seen[entry.env.event_id] += 1
            if entry.seq != session.seq + 1:
                # No fold is defined from here on; the difference is noted already.
                session.seq = entry.seq
                continue
            try:
                evolve(
                    session,
                    entry.seq,
                    entry.time_ms,
                    entry.partition,
                    entry.offset,
                    entry.env,
                    decode_event(entry.env),
                )
            except Exception as error:
                # An event of the session that is missing before it: only a planted fault gets here.
                found.append(f"{key!r}: the journal cannot be folded at seq {entry.seq}: {error!r}")
                session.seq = entry.seq
                continue
            if session.seq == 0:
                places[key] = []
            else:
                places.setdefault(key, []).append(message.offset())
        folded[key] = encode_snapshot(session) if session.seq else None
        sessions[key] = session
    for event_id in sorted(sent.accepted - set(seen)):
        found.append(f"event {event_id} is not in the journal")
    known = sent.accepted | fired
    for event_id, count in seen.items():
        if count > 1:
            found.append(f"event {event_id} is in the journal {count} times")
        if event_id not in known:
            found.append(f"event {event_id} is in the journal and was never sent")
    for name, expected in sent.order.items():
        if order.get(name) != expected:
            found.append(f"session {name}: the journal's order is not the producer's")
    found.extend(_state(cluster, folded, places))
    batches = fold_batches(cluster)
    found.extend(_generations(cluster, batches))
    found.extend(_markers(batches, journal))
    found.extend(_work(cluster, sessions))
    found.extend(_timers(cluster, sessions))
    found.extend(_rejected(cluster, sent, batches.refused))
    return found, len(journal)


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


class Folded:
    """The pure rule over the whole batches topic, as a follower would run it."""

    def __init__(self) -> None:
        #: Record key → progress, for what is known at the end.
        self.progress: dict[bytes, Progress] = {}
        #: Places of the records that belong into the rejected topic.
        self.refused: set[tuple[int, int]] = set()
        #: (key, generation, kind, attempt, seq of the event) of every marker there is.
        self.markers: Counter[tuple[bytes, str, str, int, int]] = Counter()
        #: Records that changed a progress.
        self.applied = 0


def fold_batches(cluster: Cluster) -> Folded:
    folded, slots = Folded(), SlotMap(cluster.partitions)
    for message in cluster.read(cluster.topics.batches):
        key, place = message.key(), (message.partition(), message.offset())
        if slots.partition(key) != message.partition():
            continue
        try:
            item = decode_item(message.value())
        except InvalidRecord:
            folded.refused.add(place)
            continue
        full = generation_key(key, item.generation)
        progress, verdict = advance(folded.progress.get(full), item, message.offset(), message.timestamp()[1])
        folded.applied += isinstance(verdict, Applied)
        if isinstance(item, Marker):
            folded.markers[key, item.generation, item.kind, item.attempt, item.journal_seq] += 1
        elif isinstance(verdict, Refused):
            folded.refused.add(place)
        if progress is None:
            folded.progress.pop(full, None)
        else:
            folded.progress[full] = progress
    return folded


def _generations(cluster: Cluster, folded: Folded) -> list[str]:
    last = {key: messages[-1].value() for key, messages in by_key(cluster.read(cluster.topics.generations))}
    stored = {key: value for key, value in last.items() if value is not None and b"/" in key}
    expected = {
        key: encode_progress(key.rpartition(b"#")[2].decode(), progress)
        for key, progress in folded.progress.items()
    }
    return [
        f"{key!r}: the generation record is not the fold of its batches"
        for key in sorted(set(stored) | set(expected))
        if stored.get(key) != expected.get(key)
    ]


def _work(cluster: Cluster, sessions: dict[bytes, Session]) -> list[str]:
    found = []
    last = {key: messages[-1] for key, messages in by_key(cluster.read(cluster.topics.work))}
    items = {key: decode_work(m.value()) for key, m in last.items() if m.value() is not None}
    for key, message in last.items():
        if message.partition() != SlotMap(cluster.partitions).partition(key.rpartition(b"#")[0]):
            found.append(f"{key!r} is on partition {message.partition()} of the work topic")
    expected = {
        work_key(key, name): item
        for key, session in sessions.items()
        for name, item in work_items(session).items()
    }
    for key in sorted(set(items) | set(expected)):
        is_there, wanted = items.get(key), expected.get(key)
        if is_there is None or wanted is None or not is_there.same(wanted):
            found.append(f"{key!r}: work is {is_there}, the session says {wanted}")
    return found


def timer_rows(cluster: Cluster) -> dict[bytes, bytes]:
    """Key -> record of every deadline that is armed."""
    last = {key: messages[-1].value() for key, messages in by_key(cluster.read(cluster.topics.generations))}
    return {key: value for key, value in last.items() if key.startswith(b"timer#") and value is not None}


def due(cluster: Cluster) -> bool:
    """Whether a deadline has come that did not fire."""
    now_ms = int(time.time() * 1000)
    return any(decode_timer(value).deadline_ms <= now_ms for value in timer_rows(cluster).values())


def _timers(cluster: Cluster, sessions: dict[bytes, Session]) -> list[str]:
    stored = timer_rows(cluster)
    expected = {}
    for key, session in sessions.items():
        if session.timer_ms:
            row = b"timer#%013d#%s" % (session.timer_ms, key.replace(b"/", b"%2F"))
            expected[row] = encode_timer(Armed(session.tenant, session.session, session.timer_ms))
    return [
        f"{key!r}: the timer's row is not what the session says"
        for key in sorted(set(stored) | set(expected))
        if stored.get(key) != expected.get(key)
    ]


#: What each accepted event writes among the batches: exactly once, in its transaction.
MARKS = {
    "GenerationStarted": "begin",
    "GenerationAttempted": "begin",
    "GenerationStopped": "stop",
    "GenerationFinished": "end",
    "GenerationFailed": "end",
}


def _markers(folded: Folded, journal: list[Message]) -> list[str]:
    expected: Counter[tuple[bytes, str, str, int]] = Counter()
    for message in journal:
        entry = decode_journal(message.value())
        kind = MARKS.get(entry.env.type)
        if kind is not None:
            event = decode_event(entry.env)
            expected[message.key(), event.generation_id, kind, entry.seq] += 1
    seen: Counter[tuple[bytes, str, str, int]] = Counter()
    for (key, generation, kind, _, seq), count in folded.markers.items():
        if kind != "forget":
            seen[key, generation, kind, seq] += count
    return [
        f"marker {place} is there {seen[place]} times and should be {expected[place]} times"
        for place in sorted(set(seen) | set(expected))
        if seen[place] != expected[place]
    ]


def _rejected(cluster: Cluster, sent: Sent, refused: set[tuple[int, int]]) -> list[str]:
    found = []
    seen: Counter[tuple[int, int]] = Counter()
    batches: Counter[tuple[int, int]] = Counter()
    why: dict[tuple[str, int, int], str] = {}
    for message in cluster.read(cluster.topics.rejected):
        headers = dict(message.headers())
        topic, partition, offset = headers["refold-origin"].decode().rsplit("/", 2)
        code = f"{headers['refold-code'].decode()}: {headers['refold-reason'].decode()}"
        why[topic, int(partition), int(offset)] = code
        assert topic in (cluster.topics.inbox, cluster.topics.batches)
        (seen if topic == cluster.topics.inbox else batches)[int(partition), int(offset)] += 1
    for place in sorted(refused | set(batches)):
        if batches[place] != (place in refused):
            found.append(f"batches record {place} is in the rejected topic {batches[place]} times")
    for place in sorted(sent.rejected - set(seen)):
        found.append(f"inbox record {place} should be in the rejected topic and is not")
    for place, count in seen.items():
        if count > 1:
            found.append(f"inbox record {place} is in the rejected topic {count} times")
        if place not in sent.rejected:
            reason = why[cluster.topics.inbox, *place]
            found.append(f"inbox record {place} was rejected and should not have been ({reason})")
    return found
