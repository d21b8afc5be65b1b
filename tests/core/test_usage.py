"""Usage windows, rules W1 to W4: the pure fold against a naive one, and its verdicts one by one."""

from __future__ import annotations

import random

import pytest

from refold.core.limits import USAGE_LEASE_MS_MAX, USAGE_LEASES_MAX, USAGE_VALUE_MAX
from refold.core.rulings import Rejected
from refold.core.usage import (
    COUNT_MAX,
    FUTURE_MS,
    HOP_MS,
    HOPS,
    ROW_MS_MAX,
    WINDOWS,
    Counts,
    UsageAdmitted,
    UsageEvent,
    UsageRecorded,
    UsageReleased,
    UsageRow,
    fold_usage,
    leases_at,
    rule_usage,
    window_ms,
    window_sum,
)
from refold.ops.usage.recount import Recount, differences, facts_of
from refold.wire.usage import decode_usage, encode_usage

T0 = 1_764_400_000_000
MINUTE, HOUR, DAY = (window_ms(name) for name in WINDOWS)


def recorded(at_ms: int, **counts: int) -> UsageRecorded:
    return UsageRecorded("m", "ada", at_ms, **counts)


def fold(*events: tuple[UsageEvent, int], row: UsageRow | None = None) -> UsageRow:
    for event, time_ms in events:
        row = fold_usage(row, "acme", "s", event, time_ms)
    assert row is not None
    return row


def test_windows_are_what_their_names_say() -> None:
    """Twelve hops are a minute, an hour and a day."""
    assert (MINUTE, HOUR, DAY) == (60_000, 3_600_000, 86_400_000)


@pytest.mark.parametrize("window", WINDOWS)
def test_w1_a_sum_holds_the_window_and_at_most_one_hop_more(window: str) -> None:
    """For random instants the sum lies between the true count of the window and of one hop more."""
    rng = random.Random(7)
    length = window_ms(window)
    times = sorted(T0 + rng.randrange(3 * length) for _ in range(500))
    row = fold(*((recorded(at, input=1), at) for at in times))
    for now in range(times[-1], times[-1] + length, length // 37):
        true = sum(now - length < at <= now for at in times)
        more = sum(now - length - HOP_MS[window] < at <= now for at in times)
        assert true <= window_sum(row, window, now).requests <= more


def test_w2_a_clock_ahead_counts_at_the_records_time_and_moves_nothing() -> None:
    """However far ahead: the hops stay; only what is more than five minutes ahead is counted as future."""
    row = fold(
        (recorded(T0, input=5), T0),
        (recorded(T0 + FUTURE_MS, input=7), T0 + 1),
        (recorded(T0 + FUTURE_MS + 2, input=11), T0 + 1),
        (recorded(2**62, input=13), T0 + 2),
    )
    assert row.future == 2
    assert row.late == [0, 0, 0]
    for window in WINDOWS:
        assert window_sum(row, window, T0 + 2) == Counts(4, 36, 0, 0, 0)


def test_w2_late_is_a_matter_of_each_window() -> None:
    """Ten minutes late: not in the minute, in the hour and the day. The totals have everything."""
    row = fold((recorded(T0, output=1), T0), (recorded(T0 - 600_000, output=2), T0), (recorded(0), T0))
    assert row.late == [2, 1, 1]
    assert [window_sum(row, window, T0).output for window in WINDOWS] == [1, 3, 3]
    assert (row.records, row.totals) == (3, [3, 0, 3, 0, 0])


def test_w2_the_oldest_hop_is_in_and_the_one_before_is_late() -> None:
    """The edge is the hop, as of the record's time."""
    for place, window in enumerate(WINDOWS):
        length = HOP_MS[window]
        edge = (T0 // length - HOPS) * length
        row = fold((recorded(edge), T0), (recorded(edge - 1), T0))
        assert row.late[place] == 1
        assert window_sum(row, window, T0).requests == 1


def test_w2_the_verdict_is_the_records_alone() -> None:
    """A record of an older journal time (a forward) is judged by that time, whatever the row knows by then;
    what it adds to hops that have gone is in no window."""
    late = recorded(T0 - MINUTE - 5_000)
    alone = fold((late, T0))
    after = fold((recorded(T0 + DAY), T0 + DAY), (late, T0))
    assert alone.late == after.late == [1, 0, 0]
    in_time = fold((recorded(T0 + DAY), T0 + DAY), (recorded(T0), T0))
    assert in_time.late == [0, 0, 0]
    assert [window_sum(in_time, window, T0 + DAY).requests for window in WINDOWS] == [1, 1, 2]


def test_w4_a_row_begins_anew_after_two_quiet_days() -> None:
    """At two days exactly it goes on, later it is a new one, also where only late records kept it alive."""
    row = fold((recorded(T0, input=3), T0), (recorded(T0, input=4), T0 + ROW_MS_MAX))
    assert row.totals[1] == 7
    row = fold((recorded(T0, input=5), T0 + 2 * ROW_MS_MAX + 1), row=row)
    assert (row.totals[1], row.late, row.records) == (5, [1, 1, 1], 1)


def test_leases_end_by_themselves_and_by_release() -> None:
    """A lease counts until its end in session time; a release of another session's is nobody's."""
    row = fold((UsageAdmitted("a", "m", "ada", 1_000), T0), (UsageAdmitted("b", "m", "ada", 5_000), T0))
    assert [lease.lease_id for lease in leases_at(row, T0 + 999)] == ["a", "b"]
    assert [lease.lease_id for lease in leases_at(row, T0 + 1_000)] == ["b"]
    fold_usage(row, "acme", "other", UsageReleased("b", "m", "ada"), T0 + 1)
    assert len(list(leases_at(row, T0 + 1))) == 2
    fold_usage(row, "acme", "s", UsageReleased("b", "m", "ada"), T0 + 1)
    assert [lease.lease_id for lease in leases_at(row, T0 + 1)] == ["a"]
    row = fold((UsageAdmitted("a", "m", "ada", 9_000), T0 + 2), row=row)
    assert [lease.until_ms for lease in leases_at(row, T0 + 2)] == [T0 + 9_002]


def test_leases_are_bounded() -> None:
    """One more than fits: the one that ends first goes, and is counted."""
    row = fold(
        *(
            (UsageAdmitted(f"l{n}", "m", "ada", 10_000 + (n * 7_919) % 1_000), T0)
            for n in range(USAGE_LEASES_MAX + 1)
        )
    )
    assert (len(row.leases), row.dropped) == (USAGE_LEASES_MAX, 1)
    assert ("s", "l0") not in row.leases


def test_sums_stop_instead_of_overflowing() -> None:
    row = fold((recorded(T0, input=USAGE_VALUE_MAX), T0))
    row.totals[1] = COUNT_MAX - 1
    row = fold((recorded(T0, input=USAGE_VALUE_MAX), T0), row=row)
    assert row.totals[1] == COUNT_MAX
    assert decode_usage(encode_usage(row, 0)).totals == row.totals


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (UsageRecorded("m", "", T0), "bad_id"),
        (UsageRecorded("", "ada", T0), "bad_id"),
        (UsageRecorded("m" * 129, "ada", T0), "bad_id"),
        (UsageRecorded("m", "é" * 65, T0), "bad_id"),
        (UsageRecorded("*", "ada", T0), "bad_value"),
        (UsageRecorded("m", "ada", T0, requests=-1), "bad_value"),
        (UsageRecorded("m", "ada", T0, reasoning=USAGE_VALUE_MAX + 1), "bad_value"),
        (UsageAdmitted("", "m", "ada", 1), "bad_id"),
        (UsageAdmitted("l", "m", "ada", 0), "bad_value"),
        (UsageAdmitted("l", "m", "ada", USAGE_LEASE_MS_MAX + 1), "bad_value"),
        (UsageReleased("", "m", "ada"), "bad_id"),
    ],
)
def test_what_cannot_be_counted_is_refused(event: UsageEvent, code: str) -> None:
    ruling = rule_usage(event)
    assert isinstance(ruling, Rejected)
    assert ruling.code == code


def test_what_can_be_counted_is_taken() -> None:
    for event in (
        UsageRecorded("m" * 128, "é" * 64, 2**63 - 1, 0, USAGE_VALUE_MAX),
        UsageAdmitted("l", "m", "ada", USAGE_LEASE_MS_MAX),
        UsageReleased("l", "m", "ada"),
    ):
        assert rule_usage(event) is None


@pytest.mark.parametrize("seed", range(8))
def test_the_fold_is_the_naive_one_and_goes_through_bytes(seed: int) -> None:
    """Random events, times that jump ahead and back: the row agrees with a list of all events, whether it is
    kept in memory or goes through its record after each of them; equal rows are equal bytes."""
    rng = random.Random(seed)
    naive = Recount()
    kept: UsageRow | None = None
    stored: UsageRow | None = None
    now = T0
    jumps = (50_000_000, ROW_MS_MAX // 2, ROW_MS_MAX + 1)
    shifts = (0, 0, -3_000, -50_000, -61_000, -3_000_000, -(10**8), 299_999, 300_001, 10**12)
    for _ in range(400):
        now += rng.choice((0, 1, 700, 30_000, 4_000_000, rng.choice(jumps)))
        time_ms = now - rng.choice((0, 0, 0, 20_000, 400_000))
        session = rng.choice("xyz")
        kind = rng.randrange(10)
        event: UsageEvent
        if kind < 8:
            at = time_ms + rng.choice(shifts)
            event = UsageRecorded("m", "ada", at, rng.randrange(3), rng.randrange(100), rng.randrange(9))
        elif kind == 8:
            event = UsageAdmitted(rng.choice("abcd"), "m", "ada", rng.choice((1, 5_000, 10**6)))
        else:
            event = UsageReleased(rng.choice("abcd"), "m", "ada")
        naive.add(session, event, time_ms)
        kept = fold_usage(kept, "acme", session, event, time_ms)
        stored = fold_usage(stored, "acme", session, event, time_ms)
        assert encode_usage(kept, 3) == encode_usage(stored, 3)
        stored = decode_usage(encode_usage(stored, 3))
        assert differences(facts_of(kept, kept.time_ms), naive.facts(kept.time_ms)) == []
    assert kept is not None
    later = kept.time_ms + 40_000
    assert differences(facts_of(kept, later), naive.facts(later)) == []
