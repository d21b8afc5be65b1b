"""The judge of `verify runs`: what is right is clean, and every kind of difference is found."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core import Accepted, decide, evolve, initial
from refold.core.envelope import Envelope
from refold.core.session import Session
from refold.ops.runs.judge import Verdict, judge, together
from refold.ops.runs.leases import Hold, Leases, quantile
from refold.ops.runs.plan import RunsPlan, fails_at_first, pause_s
from refold.ops.verify.readback import Record
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event, event_payload
from refold.wire.journal import journal_value
from refold.wire.snapshot import encode_snapshot

KEY = b"t/s"


class Journalled:
    """One session's journal, made by the fold's own rules."""

    def __init__(self) -> None:
        self.session: Session = initial("t", "s")
        self.records: list[Record] = []

    def append(self, type_: str, time_ms: int, **payload: Any) -> None:
        number = len(self.records)
        env = Envelope(f"e{number}", "t", "s", type_, payload=event_payload(type_, payload))
        env = decode_envelope(encode_envelope(env))
        event = decode_event(env)
        ruling = decide(self.session, env, event, time_ms)
        assert isinstance(ruling, Accepted), ruling
        value = journal_value(ruling.seq, ruling.time_ms, 0, number, env)
        evolve(self.session, ruling.seq, ruling.time_ms, 0, number, env, event)
        self.records.append(Record(0, number, KEY, value, (), ruling.time_ms))

    def lease(self, time_ms: int, holder: str, epoch: int) -> None:
        self.append(
            "RunLeased",
            time_ms,
            run_id="r",
            holder=holder,
            lease_ms=1_000,
            epoch=epoch,
            version="1",
            accepts=[],
        )

    def complete(self, time_ms: int, holder: str, epoch: int) -> None:
        self.append("RunCompleted", time_ms, run_id="r", holder=holder, epoch=epoch)


def taken_over() -> Journalled:
    """A run whose first holder died 200 ms after it was taken; completed by the second one."""
    made = Journalled()
    made.append("RunStarted", 0, run_id="r", agent="verified")
    made.lease(100, "a0-1/x", 1)
    made.lease(1_500, "a1-1/y", 2)
    made.complete(2_000, "a1-1/y", 2)
    return made


def book(**changes: Any) -> dict[str, Any]:
    executed = {"r/charge": 1, "r/draft": 1, "r/publish": 1}
    return {"executed": executed, "marks": [], **changes}


def judged(
    made: Journalled, book_: dict[str, Any], *, state: bytes | None = None, work: bytes | None = None
) -> Verdict:
    stored = encode_snapshot(made.session) if state is None else state
    return judge(
        ["r"],
        book_,
        {0: made.records},
        {0: [Record(0, 0, KEY, stored, (), 0)]},
        {0: [Record(0, 0, b"t/s#r", work, (), 0)]},
        {0: []},
    )


def test_a_run_that_was_taken_over_is_clean_and_its_hand_over_measured() -> None:
    verdict = judged(taken_over(), book())
    assert (verdict.mismatches, verdict.told) == (0, [])
    assert verdict.leases.hand_overs_ms("a0", 300) == [1_200]
    # Nobody held it then, or somebody else did.
    assert verdict.leases.hand_overs_ms("a0", 50) == []
    assert verdict.leases.hand_overs_ms("a1", 300) == []
    assert verdict.leases.hand_overs_ms("a1", 1_600) == []


def test_every_kind_of_difference_is_found() -> None:
    made = taken_over()
    doubled = book(executed={"r/charge": 2, "r/draft": 1, "r/publish": 1})
    assert judged(made, doubled).doubled_effects == 1
    assert judged(made, book(executed={"r/charge": 1, "r/draft": 1})).lost_effects == 1
    assert judged(made, book(), work=b"left").work_left == 1
    assert judged(made, book(), state=b"other").state_mismatches == 1
    marks = [["r", "t1", "a0", "body", 1.0], ["r", "t2", "a1", "body", 2.0], ["r", "t1", "a0", "charge", 3.0]]
    assert judged(made, book(marks=marks)).together == 1
    unended = Journalled()
    unended.append("RunStarted", 0, run_id="r", agent="verified")
    assert judged(unended, book()).unended == 1


def test_turns_follow_one_another() -> None:
    one_after_the_other = [
        ["r", "t1", "a0", "body", 1.0],
        ["r", "t1", "a0", "charge", 2.0],
        ["r", "t2", "a1", "body", 3.0],
        ["q", "t3", "a0", "body", 3.5],
        ["r", "t2", "a1", "charge", 4.0],
    ]
    assert together(one_after_the_other) == []
    assert together(reversed(one_after_the_other)) == []
    (text,) = together([*one_after_the_other, ["r", "t1", "a0", "publish", 5.0]])
    assert text == "a0 began 'publish' of r after a1 had taken the run over"


def test_a_step_of_somebody_who_does_not_hold_the_run_is_told() -> None:
    leases = Leases(holds={"r": [Hold("r", "a0-1/x", 1, 0)]})
    made = Journalled()
    made.append("RunStarted", 0, run_id="r", agent="verified")
    made.lease(100, "a1-1/y", 1)
    made.append(
        "StepStarted", 150, run_id="r", step_id="charge", name="charge", attempt=1, holder="a1-1/y", epoch=1,
        inputs=[], effect="none", rerunnable=False, heartbeat_ms=1_000,
    )  # fmt: skip
    from refold.wire.journal import decode_journal

    entry = decode_journal(made.records[-1].value or b"")
    leases.feed(entry, decode_event(entry.env))
    assert leases.differences == ["r/charge was started by a1-1/y, who did not hold the run"]


@pytest.mark.parametrize(
    ("values", "q", "found"),
    [([], 0.5, None), ([3], 0.99, 3), ([1, 2, 3, 4], 0.5, 2), ([1, 2, 3, 4], 0.99, 4)],
)
def test_quantiles(values: list[float], q: float, found: float | None) -> None:
    assert quantile(values, q) == found


def test_the_plan_is_the_seeds() -> None:
    plan = RunsPlan(seed=3, runs=4)
    assert plan.run_ids == ["r3-0", "r3-1", "r3-2", "r3-3"]
    assert [plan.session_of(n) for n in range(4)] == ["s3-0", "s3-0", "s3-1", "s3-1"]
    assert {plan.blow(n) for n in range(8)} == {"kill", "freeze", "worker"}
    assert pause_s(1, "r", "s") == pause_s(1, "r", "s") != pause_s(2, "r", "s")
    assert 5 < sum(fails_at_first(1, f"r{n}") for n in range(200)) < 40
