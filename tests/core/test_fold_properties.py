"""Properties of the fold over random histories. F: determinism; U: repeats; S: the invariants."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core import Accepted, Session, decide, evolve, initial, well_formed
from refold.core.limits import STATE_RECORD_BYTES_MAX
from refold.core.progress import Progress, advance
from refold.wire.batches import decode_item
from refold.wire.codec import decode, encode
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import SUBJECT, decode_session, encode_snapshot

from .build import SESSION, TENANT, Inbox, event, intended, message, outcome, result, step
from .build import call as call_part
from .histories import busy_histories, histories

PATIENT = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def state_bytes(session: Session) -> bytes:
    return encode_snapshot(session) if session.exists else b""


@PATIENT
@given(histories())
def test_f1_state_is_the_fold_of_the_journal(inbox: Inbox) -> None:
    """F1: the journal alone gives the state, byte for byte; the seq is gapless within an incarnation."""
    session = initial(TENANT, SESSION)
    seq = 0
    for entry, decoded in inbox.entries():
        assert entry.seq == seq + 1
        evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
        seq = session.seq
    assert state_bytes(session) == state_bytes(inbox.session)


@PATIENT
@given(busy_histories())
def test_f1_state_is_the_fold_of_the_journal_with_generations_and_reconciling(inbox: Inbox) -> None:
    """F1, where what the batches said decided: the journal alone gives the state all the same, and the
    generations' records are what their batches give when they are read again from the beginning."""
    session = initial(TENANT, SESSION)
    for entry, decoded in inbox.entries():
        evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
    assert state_bytes(session) == state_bytes(inbox.session)
    again: dict[str, Progress] = {}
    for offset, (value, at_ms) in enumerate(inbox.batches):
        item = decode_item(value)
        progress, _ = advance(again.pop(item.generation, None), item, offset, at_ms)
        if progress is not None:
            again[item.generation] = progress
    assert again == inbox.progress
    assert set(again) == set(session.generations), "a record for every row, and no other"


@PATIENT
@given(histories(), st.data())
def test_f2_redelivery_from_any_point_is_absorbed(inbox: Inbox, data: st.DataObject) -> None:
    """F2: replaying the inbox from any record on changes nothing, unless the session was deleted."""
    if any(entry.env.type == "SessionDeleted" for entry, _ in inbox.entries()):
        return
    before = state_bytes(inbox.session)
    again = list(inbox.records)[data.draw(st.integers(0, len(inbox.records) - 1)) :]
    taken = {decode_envelope(value).event_id for value, _ in again}
    ruled = {e.env.event_id for e, _ in inbox.entries()}
    for value, at_ms in again:
        env = decode_envelope(value)
        ruling = decide(inbox.session, env, decode_event(env), at_ms)
        # What was refused the first time may be fine now; what was accepted is never accepted again.
        if env.event_id in ruled:
            assert not isinstance(ruling, Accepted)
    assert state_bytes(inbox.session) == before
    assert taken
    assert len(set(inbox.journal)) == len(inbox.journal)


@PATIENT
@given(histories(), st.data())
def test_f3_a_snapshot_anywhere_changes_nothing(inbox: Inbox, data: st.DataObject) -> None:
    """F3: fold(prefix), encode, decode, fold(rest) = fold(all), byte for byte."""
    entries = inbox.entries()
    session = initial(TENANT, SESSION)
    cuts = data.draw(st.sets(st.integers(0, max(0, len(entries) - 1)), max_size=4))
    for at, (entry, decoded) in enumerate(entries):
        if at in cuts and session.exists:
            session = decode_session(encode_snapshot(session))
        evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
    assert state_bytes(session) == state_bytes(inbox.session)


@PATIENT
@given(histories())
def test_s8_the_record_is_plain_avro_and_bounded(inbox: Inbox) -> None:
    """The joined bytes are exactly what the schema's own writer makes of the same values."""
    if not inbox.session.exists:
        return
    value = encode_snapshot(inbox.session)
    assert len(value) <= STATE_RECORD_BYTES_MAX
    assert encode(SUBJECT, decode(value, expect=SUBJECT).record) == value


def test_one_inbox_in_a_thousand_batchings() -> None:
    """The same records cut at any batch borders, the state through its bytes at each border, batches thrown
    away half-way and read again (a crash before the commit): the same state every time."""
    chance = random.Random(20_260_101)
    inbox = _busy_inbox(chance)
    records = [(value, at_ms) for value, at_ms in inbox.records]
    decoded = [(decode_envelope(value), at_ms) for value, at_ms in records]
    events = [(env, decode_event(env), at_ms) for env, at_ms in decoded]
    want = state_bytes(inbox.session)
    for _ in range(1000):
        stored = b""
        at = 0
        while at < len(events):
            batch = chance.randrange(1, 25)
            session = decode_session(stored) if stored else initial(TENANT, SESSION)
            end = min(len(events), at + batch)
            crash = chance.randrange(8) == 0
            stop = chance.randrange(at, end) if crash else end
            for offset in range(at, stop):
                env, item, at_ms = events[offset]
                ruling = decide(session, env, item, at_ms)
                if isinstance(ruling, Accepted):
                    evolve(session, ruling.seq, ruling.time_ms, 3, offset, env, item)
            if not crash:
                well_formed(session)
                stored = state_bytes(session)
                at = end
        assert stored == want


def _busy_inbox(chance: random.Random) -> Inbox:
    """A long conversation with tools, branches, a summary, repeats and conflicts."""
    inbox = Inbox()
    inbox.check = False
    for turn in range(14):
        inbox.send(message(f"u{turn}", parent_id="" if turn == 9 else None))
        inbox.send(
            message(
                f"a{turn}", "assistant", [call_part(f"c{turn % 3}", operation_id=f"op{turn}"), call_part("x")]
            )
        )
        inbox.send(intended(f"op{turn}", f"c{turn % 3}"))
        inbox.send(
            step("ToolCallStarted", f"op{turn}"), producer_id="p", producer_epoch=1, producer_counter=turn + 1
        )
        if turn % 4:
            inbox.send(outcome(f"op{turn}", body="r" * chance.randrange(50)))
        inbox.send(message(f"t{turn}", "tool", [result("x")]))
        if turn % 5 == 4:
            inbox.send(event("ContextSummarized", text="sum", through_message_id=f"a{turn - 1}"))
            inbox.send(message(f"a{turn}b", "assistant", parent_id=f"u{turn}"))
            inbox.send(event("BranchSwitched", head_message_id=f"a{turn}"))
        inbox.put(*chance.choice(inbox.records))
        inbox.send(message(f"u{turn}", content="other content"))
    return inbox
