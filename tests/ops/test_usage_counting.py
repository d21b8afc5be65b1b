"""`refold verify usage`, its parts: what is sent, what is counted again, and that a difference is one."""

from __future__ import annotations

from typing import Any

from refold.core.usage import UsageRecorded, fold_usage
from refold.ops.fleet import DeathKind
from refold.ops.usage.counting import Findings, compare_rows
from refold.ops.usage.plan import UsagePlan
from refold.ops.usage.recount import Recount, differences, facts_of
from refold.ops.usage.traffic import SHIFTS, UsageTraffic
from refold.wire.envelope import decode_envelope
from refold.wire.events import decode_event

T0 = 1_764_400_000_000


class Taken:
    """A producer that keeps what it is given."""

    def __init__(self, _: Any) -> None:
        self.records: list[tuple[int, bytes, bytes]] = []

    def produce(self, _topic: str, value: bytes, key: bytes, partition: int, on_delivery: Any) -> None:
        self.records.append((partition, key, value))
        on_delivery(None, None)

    def poll(self, _seconds: float) -> int:
        return 0

    def flush(self, _seconds: float) -> int:
        return 0


def test_deaths_are_spread_over_the_events_and_begin_with_each_kind_that_matters() -> None:
    deaths = UsagePlan(kills=20).deaths()
    assert deaths == UsagePlan(kills=20).deaths()
    shares = [share for share, _ in deaths]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    assert DeathKind.ZOMBIE in {death.kind for _, death in deaths[:3]}
    assert {death.point for _, death in deaths} >= {"after_produce", "after_commit", "in_commit", None}


def test_what_is_sent_is_summed_up_once_however_often_it_is_sent(monkeypatch: Any) -> None:
    """Repeats are byte for byte, in the producers' order; the sums are those of the distinct events; late and
    future ones are among them."""
    monkeypatch.setattr("refold.ops.usage.traffic.Producer", Taken)
    traffic = UsageTraffic(UsagePlan(events=3_000, sessions=7, partitions=3), "t", {})
    traffic.allow(10**9)
    traffic.start()
    traffic.finish()
    records = traffic._producer.records  # type: ignore[attr-defined]
    assert (traffic.events, traffic.sent) == (3_000, len(records))
    by_id: dict[str, set[bytes]] = {}
    for _, _, value in records:
        by_id.setdefault(decode_envelope(value).event_id, set()).add(value)
    assert all(len(values) == 1 for values in by_id.values())
    assert len(records) - len(by_id) == traffic.repeats > 300
    counts: dict[tuple[str, str], list[int]] = {}
    shifts = []
    for (value,) in by_id.values():
        envelope = decode_envelope(value)
        event: Any = decode_event(envelope)
        if envelope.type == "UsageRecorded":
            sums = counts.setdefault((event.subject, event.model), [0] * 6)
            for at, name in enumerate(("requests", "input", "output", "cached", "reasoning")):
                sums[at] += getattr(event, name)
            sums[5] += 1
            shifts.append(event.at_ms - envelope.event_time_ms)
    assert counts == {name: [*sums.counts, sums.records] for name, sums in traffic.sums.items()}
    for _, low, high in SHIFTS:
        assert any(low <= shift <= high for shift in shifts)


def test_the_recount_finds_what_is_counted_twice_lost_or_judged_otherwise() -> None:
    """A row with one event too much, too little, or judged by another clock differs from the recount."""
    events = [
        (UsageRecorded("m", "ada", T0 + shift, input=5), T0 + n)
        for n, shift in enumerate((0, -70_000, 400_000))
    ]
    recount = Recount()
    for event, time_ms in events:
        recount.add("s", event, time_ms)

    def differs(*folded: tuple[UsageRecorded, int]) -> list[str]:
        row = None
        for event, time_ms in folded:
            row = fold_usage(row, "t", "s", event, time_ms)
        assert row is not None
        now = max(row.time_ms, recount.newest)
        return differences(facts_of(row, now), recount.facts(now))

    assert differs(*events) == []
    assert differs(*events, events[0])
    assert differs(*events[1:])
    assert differs(*events[:2], (events[2][0], T0 + 120_000))


def test_rows_that_are_not_the_same_are_told_by_their_fields() -> None:
    row = {"partition": 0, "records": 3, "late_day": 1}
    findings = Findings()
    compare_rows("owners", {(0, "a", "m"): row}, {(0, "a", "m"): dict(row)}, findings)
    assert findings.clean
    compare_rows("owners", {(0, "a", "m"): {**row, "late_day": 2}}, {(0, "a", "m"): row}, findings)
    compare_rows("owners", {}, {(0, "a", "m"): row}, findings)
    compare_rows("owners", {(0, "a", "m"): row}, {}, findings)
    assert findings.mismatches == 3
    assert findings.told[0] == "owners: (0, 'a', 'm') differs in late_day"
