"""Runs under random histories: the rules are judged at every event (runhistories.py), here is the rest.

The strategy's inbox checks after each accepted event: N2 (one holder per epoch, only the holder speaks),
N4 (no effect outside is begun again by itself), N5 (tried again at most as often as the run says, then the
review), N1 and R1 (work and review topics are what the state says), K1 (the deadline is armed, never too
late), the invariants S1 to S10 and that the state's bytes read back.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core import Accepted, decide, evolve, initial, limits
from refold.core.limits import STATE_RECORD_BYTES_MAX
from refold.core.runlife import free_bytes
from refold.core.types import RUN_TYPES
from refold.wire.codec import decode, encode
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import SUBJECT, decode_session, encode_snapshot
from refold.wire.snapshot_runs import encode_run

from .build import SESSION, TENANT, Inbox, clear_caches, event, fold_bytes
from .runhistories import ACTS, RUNS, STEPS, RunInbox, act, run_histories
from .runkit import ID, begun, done, fill_runs, held, leased, run_started

PATIENT = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def state_bytes(inbox: Inbox) -> bytes:
    return encode_snapshot(inbox.session) if inbox.session.exists else b""


@PATIENT
@given(run_histories(), st.data())
def test_f1_f3_the_journal_gives_the_state_through_any_snapshots(
    inbox: RunInbox, data: st.DataObject
) -> None:
    entries = inbox.entries()
    cuts = data.draw(st.sets(st.integers(0, max(0, len(entries) - 1)), max_size=4))
    session = initial(TENANT, SESSION)
    for at, (entry, decoded) in enumerate(entries):
        if at in cuts and session.exists:
            session = decode_session(encode_snapshot(session))
        evolve(session, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
    assert (encode_snapshot(session) if session.exists else b"") == state_bytes(inbox)


@PATIENT
@given(run_histories(), st.data())
def test_f2_redelivery_is_absorbed(inbox: RunInbox, data: st.DataObject) -> None:
    """All but the timer's proposal, which is in no memory of ids: it is ruled by what is due."""
    if any(entry.env.type == "SessionDeleted" for entry, _ in inbox.entries()):
        return
    accepted = {entry.env.event_id for entry, _ in inbox.entries()}
    before = state_bytes(inbox)
    for value, at_ms in inbox.records[data.draw(st.integers(0, len(inbox.records) - 1)) :]:
        env = decode_envelope(value)
        if env.event_id in accepted and env.type != "TimerFired":
            assert not isinstance(decide(inbox.session, env, decode_event(env), at_ms), Accepted)
    assert state_bytes(inbox) == before


@PATIENT
@given(run_histories())
def test_s8_rows_are_plain_avro_and_counted_at_least_as_large_as_they_are(inbox: RunInbox) -> None:
    session = inbox.session
    if not session.exists:
        return
    value = encode_snapshot(session)
    assert encode(SUBJECT, decode(value, expect=SUBJECT).record) == value
    for run in session.runs.values():
        assert len(encode_run(run)) <= run.size
    assert free_bytes(session) >= 0


def test_the_histories_reach_every_event_and_every_state() -> None:
    """Otherwise the properties above would say little: a long fixed walk has all of them, often."""
    chance = random.Random(20_261_130)
    kinds: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for _ in range(60):
        inbox = RunInbox()
        inbox.check = False
        for _ in range(120):
            name = chance.choice([a for a in ACTS if a not in ("redeliver", "quarantine", "close", "delete")])
            inbox.send(act(inbox, name, chance.choice(RUNS), chance.choice(STEPS), chance.randrange(12)))
            for run in inbox.session.runs.values():
                states.update([run.state, *[step.state for step in run.steps.values()]])
        kinds.update(inbox.kinds)
    assert min(kinds[kind] for kind in (*RUN_TYPES, "TimerFired")) >= 5, kinds
    assert len(states) == 7 + 6 - 2, "every state of runs and steps (completed and failed are of both)"
    assert min(states.values()) >= 20, states


# --- S8: the attack ------------------------------------------------------------------------------------

REF = {
    "uri": "file:///" + "u" * 300,
    "sha256": "a" * 64,
    "length": 2**62,
    "media_type": "text/plain",
    "field": "data",
}


def test_s8_everything_of_runs_at_its_worst_fits() -> None:
    """The longest names, inputs, reads, errors and summaries, until nothing more is taken: bounded, every
    running step can still end, and every run too."""
    inbox = Inbox()
    inbox.check = False
    session = inbox.session
    assert fill_runs(inbox) > 0, "the bound was never reached"
    assert free_bytes(session) >= 0
    assert session.runs_bytes > 0.85 * limits.RUNS_BYTES_MAX
    assert sum([len(encode_run(run)) for run in session.runs.values()]) <= limits.RUNS_BYTES_MAX
    assert len(encode_snapshot(session)) < STATE_RECORD_BYTES_MAX // 4
    for run in list(session.runs.values()):
        by = {"run_id": run.run_id, "holder": run.holder}
        for step in [s for s in run.steps.values() if s.state == "running"]:
            inbox.ok(done(step.step_id, b"o", 1, 1, **by))
        inbox.ok(held("RunCompleted", 1, **by, output=b"o" * 1_000, summary="s" * 500))
    assert not any(run.is_open for run in session.runs.values())


def test_what_does_not_fit_is_left_to_the_journal_the_summary_last() -> None:
    """Outputs go first, then references, then summaries; digest and seq stay, so nothing is lost."""
    inbox = Inbox().ok(run_started(), leased())
    inbox.check = False
    number = 0
    while True:
        ruling = inbox.send(begun(f"s{number}", inputs=[{"name": ID, "digest": "d" * 64}]))
        if not isinstance(ruling, Accepted):
            break
        inbox.ok(done(f"s{number}", b"o" * 1_024, summary="s" * 500, attempt=1))
        number += 1
    steps = list(inbox.session.runs["r"].steps.values())
    assert steps[0].output is not None
    assert steps[-1].output is None
    assert steps[-1].output_digest is not None
    assert steps[-1].output_seq == inbox.session.seq
    kept = [step.output is not None for step in steps]
    assert kept.count(True) < len(kept)
    summarised = [step.summary is not None for step in steps]
    assert summarised.count(True) >= kept.count(True)


def test_ended_runs_make_room_for_what_is_begun() -> None:
    inbox = Inbox()
    inbox.check = False
    for n in range(4):
        inbox.ok(run_started(f"e{n}"), leased(run_id=f"e{n}"))
        inbox.ok(held("RunCompleted", run_id=f"e{n}", output=b"o" * 1_000, summary="s" * 500))
    inbox.ok(run_started(), leased())
    number = 0
    inputs = [{"name": ID, "digest": "d" * 64}] * 16
    while isinstance(inbox.send(begun(f"s{number}", inputs=inputs)), Accepted):
        number += 1
    for small in range(9):
        inbox.send(begun(f"t{small}", inputs=inputs[:small]))
    assert list(inbox.session.runs) == ["r"]
    assert free_bytes(inbox.session) >= 0
    before = encode_snapshot(inbox.session)
    clear_caches(inbox.session)
    assert encode_snapshot(inbox.session) == before == fold_bytes(inbox.entries())


def test_references_are_kept_while_they_are_short() -> None:
    inbox = Inbox().ok(run_started(input_ref=REF), leased(), begun(), done(output=None, output_ref=REF))
    run = inbox.session.runs["r"]
    assert run.input_ref is not None
    assert run.steps["a"].output_ref == run.input_ref
    assert run.input_digest == run.steps["a"].output_digest == "a" * 64
    long = {**REF, "uri": "u" * 600}
    inbox.ok(begun("b"), done("b", None, output_ref=long), held("RunCompleted", output_ref=long))
    assert (run.output_ref, run.output_digest) == (None, "a" * 64)
    assert event("RunStopped", run_id="r")
