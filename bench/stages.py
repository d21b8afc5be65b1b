"""A profile of the fold: what each stage costs per event, measured alone on one thread."""

from __future__ import annotations

import time

from bench import events
from refold.core import Accepted, Session, decide, evolve, initial
from refold.core.slots import split_key
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.journal import journal_value
from refold.wire.snapshot import decode_session, encode_snapshot

EVENTS = 20_000
SESSIONS = 1_000


def stage_costs() -> dict[str, float]:
    """Microseconds per event and stage. ``encode_snapshot`` ran once per event; ``decode_session`` is what a
    cache miss costs."""
    records = list(events.messages(EVENTS, SESSIONS, 1))
    spent = dict.fromkeys(
        ("decode_envelope", "decode_event", "decide", "evolve", "journal_value", "encode_snapshot"), 0.0
    )
    clock = time.perf_counter
    sessions: dict[bytes, Session] = {}
    for offset, (partition, key, value) in enumerate(records):
        a = clock()
        envelope = decode_envelope(value)
        b = clock()
        event = decode_event(envelope)
        c = clock()
        session = sessions.get(key)
        if session is None:
            session = sessions[key] = initial(*split_key(key))
        d = clock()
        ruling = decide(session, envelope, event, 1_764_400_000_000 + offset)
        e = clock()
        if not isinstance(ruling, Accepted):
            raise RuntimeError(f"the benchmark's event {offset} was not accepted: {ruling}")
        evolve(session, ruling.seq, ruling.time_ms, partition, offset, envelope, event)
        f = clock()
        journal_value(ruling.seq, ruling.time_ms, partition, offset, envelope)
        g = clock()
        encode_snapshot(session)
        h = clock()
        for stage, seconds in zip(spent, (b - a, c - b, e - d, f - e, g - f, h - g), strict=True):
            spent[stage] += seconds
    snapshots = [encode_snapshot(session) for session in sessions.values()]
    start = clock()
    for snapshot in snapshots:
        decode_session(snapshot)
    costs = {stage: round(1e6 * seconds / EVENTS, 2) for stage, seconds in spent.items()}
    costs["decode_session"] = round(1e6 * (clock() - start) / len(snapshots), 2)
    return costs
