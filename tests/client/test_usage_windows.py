"""Usage in the SDK (W5): sums over all owners, admission, and what a client does when owners are away."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from api.fake_owner import PARTITIONS, FakeView
from client.fake_group import FakeGroup
from client.test_owners import everywhere, owners_of, worker
from refold.client.generations.metering import Meter
from refold.client.usage.admission import STALENESS_S_MAX, Gate, Overlimit
from refold.client.usage.names import check_names, usage_session
from refold.client.usage.reads import UsageNow, UsageReads
from refold.core.usage import UsageAdmitted, UsageEvent, UsageRecorded, UsageRow, fold_usage
from refold.errors import PermissionDenied, UsageError
from refold.wire.usage import encode_usage

NAMES = ("t", "ada", "m")
T0 = 1_764_400_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.routing.ROUTE_REFRESH_MIN_S", 0.01)
    monkeypatch.setattr("refold.client.usage.reads.RETRY_PAUSE_S", 0.02)


def used(*events: tuple[UsageEvent, int]) -> UsageRow:
    row: UsageRow | None = None
    for event, at in events:
        row = fold_usage(row, "t", "s", event, at)
    assert row is not None
    return row


def put(view: FakeView, partition: int, row: UsageRow, model: str = "m") -> None:
    view.usages.setdefault(("t", "ada"), {}).setdefault(partition, {})[model] = encode_usage(row, partition)


def now_of(row: UsageRow, at_ms: int, asked_at: float = 0.0) -> UsageNow:
    return UsageNow({0: (row,)}, (), at_ms, asked_at)


async def test_w3_all_owners_are_summed_each_for_its_partitions() -> None:
    """Two workers, two partitions each: what one knows of the other's partitions is not in its answer."""
    one, two = FakeView(), FakeView()
    one.statuses, two.statuses = {2: "absent", 3: "absent"}, {0: "absent", 1: "absent"}
    for partition in range(PARTITIONS):
        row = used((UsageRecorded("m", "ada", time.time_ns() // 10**6, input=1 << partition), T0 * 2))
        for view in (one, two):
            put(view, partition, row)
    async with worker(one) as first, worker(two) as second:
        group = FakeGroup({0: first.url, 1: first.url, 2: second.url, 3: second.url})
        async with owners_of(group) as owners:
            now = await UsageReads(owners, lambda: PARTITIONS).read(*NAMES, timeout_s=5.0)
    assert now.missing == ()
    assert sum(row.totals[1] for row in now.all_rows()) == 0b1111


async def test_a_partition_that_restores_is_waited_for() -> None:
    view = FakeView()
    view.statuses = {1: "restoring"}
    put(view, 1, used((UsageRecorded("m", "ada", T0, input=7), T0)))
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        reading = asyncio.create_task(UsageReads(owners, lambda: PARTITIONS).read(*NAMES, timeout_s=30.0))
        done, _ = await asyncio.wait({reading}, timeout=0.1)
        assert not done
        view.statuses = {}
        now = await reading
    assert (now.missing, now.all_rows()[0].totals[1]) == ((), 7)


async def test_what_does_not_answer_is_named_and_its_last_answer_stands_in() -> None:
    """Restoring, or owned by nobody: the answer says which partitions are old."""
    view = FakeView()
    for partition in (0, 2):
        put(view, partition, used((UsageRecorded("m", "ada", T0, input=5), T0)))
    async with worker(view) as server:
        group = FakeGroup(everywhere(server))
        async with owners_of(group) as owners:
            reads = UsageReads(owners, lambda: PARTITIONS)
            assert (await reads.read(*NAMES, timeout_s=5.0)).missing == ()
            view.statuses = {2: "restoring"}
            put(view, 0, used((UsageRecorded("m", "ada", T0, input=9), T0)))
            now = await reads.read(*NAMES, timeout_s=0.2)
            assert now.missing == (2,)
            assert sum(row.totals[1] for row in now.all_rows()) == 14
            # An answer with something missing is never taken again for a fresh one.
            view.statuses = {}
            assert (await reads.read(*NAMES, timeout_s=5.0, staleness_s=60.0)).missing == ()
            fresh = await reads.read(*NAMES, timeout_s=5.0, staleness_s=60.0)
            put(view, 0, used((UsageRecorded("m", "ada", T0, input=1), T0)))
            again = await reads.read(*NAMES, timeout_s=5.0, staleness_s=60.0)
            assert again.asked_at == fresh.asked_at
            assert (await reads.read(*NAMES, timeout_s=5.0)).all_rows()[0].totals[1] == 1
    async with owners_of(FakeGroup()) as owners:
        nobody = await UsageReads(owners, lambda: 2).read(*NAMES, timeout_s=0.1)
        assert (nobody.missing, nobody.all_rows()) == ((0, 1), [])
        assert abs(nobody.now_ms - time.time() * 1000) < 60_000


async def test_a_wrong_token_is_told_and_not_retried() -> None:
    async with worker(FakeView(), token="t" * 20) as server:
        async with owners_of(FakeGroup(everywhere(server)), token="x" * 20) as owners:
            with pytest.raises(PermissionDenied, match="REFOLD_CLIENT__BEARER_TOKEN"):
                await UsageReads(owners, lambda: PARTITIONS).read(*NAMES, timeout_s=30.0)


# --- admission -----------------------------------------------------------------------------------------


def enter(gate: Gate, now: UsageNow, **limits: Any) -> Any:
    asked = {"window": "minute", "limit": None, "tokens": None, "concurrency": None, **limits}
    return gate.enter(now, **asked)


def test_w5_a_client_never_passes_a_limit_by_itself() -> None:
    """However old what it read is: its own admissions since then count, and go on counting after a release,
    because what they recorded may not be in it."""
    gate = Gate()
    now = now_of(used((UsageRecorded("m", "ada", T0, requests=7), T0)), T0, asked_at=time.monotonic())
    tickets = [enter(gate, now, limit=10) for _ in range(3)]
    with pytest.raises(Overlimit) as refused:
        enter(gate, now, limit=10)
    assert (refused.value.what, refused.value.used, refused.value.limit) == ("requests", 10, 10)
    for ticket in tickets:
        ticket.accepted_at = ticket.released_at = time.monotonic()
    with pytest.raises(Overlimit):
        enter(gate, now, limit=10)
    # Read again, all of them are in it.
    assert enter(gate, now_of(now.all_rows()[0], T0, time.monotonic()), limit=10)


def test_w5_concurrency_counts_leases_and_own_admissions_and_frees_what_is_released() -> None:
    gate, begun = Gate(), time.monotonic()
    now = now_of(used((UsageAdmitted("x", "m", "ada", 8_000), T0)), T0 + 1_000, begun)
    mine = enter(gate, now, concurrency=2)
    with pytest.raises(Overlimit) as refused:
        enter(gate, now, concurrency=2)
    assert refused.value.retry_after_s == 7.0
    mine.released_at = time.monotonic()
    second = enter(gate, now, concurrency=2)
    gate.refused(second)
    assert enter(gate, now, concurrency=2)
    # The other one's lease has ended by itself.
    assert enter(Gate(), now_of(now.all_rows()[0], T0 + 8_000), concurrency=1)


def test_retry_after_is_when_enough_has_left_the_window() -> None:
    """Three hops: the second one's leaving makes room for one request, the first one's does not."""
    counted = [(T0, 1), (T0 + 20_000, 4), (T0 + 40_000, 5)]
    row = used(*((UsageRecorded("m", "ada", at, requests=n, input=n), at) for at, n in counted))
    now = now_of(row, T0 + 41_000)
    with pytest.raises(Overlimit) as refused:
        enter(Gate(), now, limit=6)
    assert refused.value.retry_after_s == (T0 + 20_000 + 65_000 - now.now_ms) / 1000
    with pytest.raises(Overlimit) as refused:
        enter(Gate(), now, tokens=10)
    assert (refused.value.what, refused.value.retry_after_s) == ("tokens", (T0 + 65_000 - now.now_ms) / 1000)
    with pytest.raises(Overlimit) as refused:
        enter(Gate(), now, limit=0)
    assert refused.value.retry_after_s == 60.0


def test_tickets_are_forgotten_when_no_read_can_be_older(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    gate = Gate()
    row = used((UsageRecorded("m", "ada", T0), T0))
    for _ in range(50):
        ticket = enter(gate, now_of(row, T0, clock[0]))
        ticket.accepted_at = ticket.released_at = clock[0]
        clock[0] += STALENESS_S_MAX / 10
    assert len(gate._tickets) <= 12


def test_names_are_checked_before_anything_is_sent() -> None:
    for subject, model in (("", "m"), ("ada", ""), ("a" * 129, "m"), ("ada", "*")):
        with pytest.raises(UsageError):
            check_names(subject, model)
    check_names("ada", "*", any_model=True)
    assert usage_session("ada") == usage_session("ada") != usage_session("bob")
    assert "ada" not in usage_session("ada")


def test_a_meter_goes_through_the_journal() -> None:
    """And whatever else stands there is no meter."""
    meter = Meter.of(Meter("ada", "m"))
    assert meter is not None
    assert Meter.from_extra(meter.to_extra()) == meter
    for extra in (None, b"{}", b"nonsense", b'{"meter": 3}', b"[]"):
        assert Meter.from_extra(extra) is None
    with pytest.raises(UsageError):
        Meter.of(Meter("", "m"))
