"""Recorded conversations fold whole: nothing is refused, every result finds its call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.core import Accepted, Session, decide, evolve, initial, well_formed
from refold.core.events import MessageAppended
from refold.core.limits import STATE_RECORD_BYTES_MAX
from refold.errors import UsageError
from refold.formats.sources import Reading, SourceSession, detect
from refold.wire.envelope import Envelope, decode_envelope, encode_envelope
from refold.wire.events import decode_event, event_payload
from refold.wire.parts import Part, to_wire
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import clear_caches

DATA = Path(os.environ.get("REFOLD_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
SETS = (
    "chat-trees",
    "claude-code",
    "glaive",
    "oasst",
    "openhands",
    "reason-tool-use",
    "swe-agent",
    "tau-bench",
    "tau2",
    "tooltalk",
)


def sessions(folder: Path) -> Iterator[SourceSession]:
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        try:
            source = detect(path)
        except UsageError:
            continue  # of a format that is not imported (the folder also holds other kinds of records)
        yield from source.read(path, Reading())


def play(source: SourceSession) -> tuple[Session, Counter[str]]:
    session = initial("t", source.session)
    counts: Counter[str] = Counter()
    for number, new in enumerate(source.events):
        record = dict(new.payload)
        if "content" in record:
            record["content"] = [to_wire(p) if isinstance(p, Part) else p for p in record["content"]]
        env = Envelope(
            new.event_id,
            "t",
            source.session,
            new.type,
            event_time_ms=new.event_time_ms,
            producer_id="importer",
            producer_epoch=1,
            producer_counter=number + 1,
            payload=event_payload(new.type, record),
            link=new.link,
        )
        env = decode_envelope(encode_envelope(env))
        event = decode_event(env)
        ruling = decide(session, env, event, 1000 + number)
        assert isinstance(ruling, Accepted), (source.session, number, ruling)
        evolve(session, ruling.seq, ruling.time_ms, 0, number, env, event)
        well_formed(session)
        if isinstance(event, MessageAppended):
            counts["calls"] += len(event.calls)
            counts["results"] += len(event.results)
            for result in event.results:
                row = next(c for c in reversed(session.calls.values()) if c.call_id == result.call_id)
                counts["matched"] += row.result_seq == ruling.seq
    return session, counts


@pytest.mark.parametrize("name", SETS)
def test_a_recorded_set_folds_whole(name: str) -> None:
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"the recorded sets are not here ({name}): set REFOLD_SHARED_DATA")
    total: Counter[str] = Counter()
    for source in sessions(folder):
        session, counts = play(source)
        total += counts
        total["sessions"] += 1
        value = encode_snapshot(session)
        assert len(value) <= STATE_RECORD_BYTES_MAX
        again = decode_session(value)
        clear_caches(again)
        assert encode_snapshot(again) == value
        assert session.complete
    assert total["sessions"] > 0
    # Every result went to a call of its own, also where call ids are used again (D07).
    assert total["matched"] == total["results"]
    assert total["results"] <= total["calls"]
