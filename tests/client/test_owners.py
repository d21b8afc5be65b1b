"""Routing and rulings against real HTTP servers with fake owners behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import TopicPartition

from api.fake_owner import PARTITIONS, FakeView
from client.fake_group import FakeGroup
from refold.api.limits import WAIT_MS_MAX
from refold.api.server import OwnerServer
from refold.api.view import HistoryAnswer, RulingLine, StandbyAnswer
from refold.client import rulings as rulings_module
from refold.client.limits import OWNER_WAIT_MS_MAX
from refold.client.owners import NoOwnerAnswers, Owners, RulingForgotten
from refold.client.routing import Directory, Owner, Router, parse_client_id
from refold.client.rulings import Rulings
from refold.client.sender import Delivery
from refold.client.snapshots import Staleness
from refold.engine.standby.placement import standbys
from refold.errors import PermissionDenied, TransientError, UnavailableError

TOKEN = "t" * 20


@asynccontextmanager
async def worker(view: FakeView, **options: str) -> AsyncIterator[OwnerServer]:
    server = OwnerServer(view, metrics=lambda: b"", **options)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def owners_of(group: FakeGroup, token: str | None = None) -> AsyncIterator[Owners]:
    async with Owners(Router(group), token=token, request_timeout_s=2.0) as owners:  # type: ignore[arg-type]
        yield owners


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same logic at a tenth of the pauses."""
    monkeypatch.setattr("refold.client.routing.ROUTE_REFRESH_MIN_S", 0.01)
    monkeypatch.setattr("refold.client.owners.RETRY_PAUSE_S", 0.02)
    monkeypatch.setattr(rulings_module, "RETRY_PAUSE_S", 0.02)
    monkeypatch.setattr(rulings_module, "RULING_RECHECK_S", 0.1)
    monkeypatch.setattr(rulings_module, "LOOKUP_TIMEOUT_S", 0.3)


async def no_topics(_: Delivery) -> RulingLine | None:
    return None


def everywhere(server: OwnerServer) -> dict[int, str]:
    return dict.fromkeys(range(PARTITIONS), server.url)


def test_client_ids_of_other_programs_are_no_owners() -> None:
    assert parse_client_id("refold|w-1|http://10.0.0.1:8080/") == Owner("w-1", "http://10.0.0.1:8080")
    for other in (
        "",
        "rdkafka",
        "refold|",
        "refold|w",
        "refold|w|",
        "refold||http://x",
        "refold|w|file:///etc",
    ):
        assert parse_client_id(other) is None


class HeldOffsets:
    """A group whose offset is held by open transactions for the first few questions."""

    def __init__(self, held: int) -> None:
        self.left = held

    def stable(self, asked: list[TopicPartition], _: float) -> list[TopicPartition] | None:
        self.left -= 1
        return None if self.left >= 0 else [TopicPartition(one.topic, one.partition, 7) for one in asked]


@pytest.mark.parametrize(("held", "committed"), [(0, 7), (3, 7), (2**31, None)])
async def test_offsets_held_by_a_busy_worker_are_asked_for_again(
    held: int, committed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an offset that is held at the moment is not "not committed"; and nobody waits for ever."""
    monkeypatch.setattr("refold.client.routing.HELD_S_MAX", 0.2)
    directory = Directory({"bootstrap.servers": "127.0.0.1:1"}, "g", "inbox", 5.0)
    directory._offsets = HeldOffsets(held)  # type: ignore[assignment]
    started = time.monotonic()
    assert await directory.committed(0) == committed
    assert time.monotonic() - started < 2


async def test_a_snapshot_of_any_session_id_comes_from_its_owner() -> None:
    view = FakeView()
    session = "a/../b %C3 ключ"
    view.snapshots[f"t/{session}".encode()] = (4, b"bytes")
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        partition = view.partition_of(f"t/{session}".encode())
        assert await owners.snapshot(partition, "t", session, min_seq=0, timeout_s=60) == b"bytes"
        assert await owners.snapshot(0, "t", "none", min_seq=0, timeout_s=60) is None


async def test_a_moved_partition_is_found_again() -> None:
    """Goal: 421 from the old owner leads to the new one within the same call."""
    old, new = FakeView(), FakeView()
    key = b"t/s"
    partition = old.partition_of(key)
    old.statuses[partition] = "absent"
    new.snapshots[key] = (2, b"new")
    async with worker(old) as a, worker(new) as b:
        group = FakeGroup(everywhere(a))
        async with owners_of(group) as owners:
            await owners.router.refresh()
            group.owners = everywhere(b)
            assert await owners.snapshot(partition, "t", "s", min_seq=0, timeout_s=60) == b"new"


async def test_restoring_is_waited_for() -> None:
    view = FakeView()
    key = b"t/s"
    partition = view.partition_of(key)
    view.snapshots[key] = (1, b"restored")
    view.statuses[partition] = "restoring"
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        asking = asyncio.ensure_future(owners.snapshot(partition, "t", "s", min_seq=0, timeout_s=60))
        await asyncio.sleep(0.1)
        assert not asking.done()
        view.statuses[partition] = "live"
        assert await asking == b"restored"


async def test_min_seq_not_reached_is_transient() -> None:
    view = FakeView()
    view.snapshots[b"t/s"] = (1, b"x")
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        with pytest.raises(TransientError, match="seq 5"):
            await owners.snapshot(view.partition_of(b"t/s"), "t", "s", min_seq=5, timeout_s=1.5)


async def test_a_session_that_is_behind_is_waited_for_as_long_as_the_caller_says() -> None:
    """Goal: also beyond what one request takes (2 s here)."""
    view = FakeView()
    view.snapshots[b"t/s"] = (1, b"old")
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        asking = asyncio.ensure_future(
            owners.snapshot(view.partition_of(b"t/s"), "t", "s", min_seq=5, timeout_s=60)
        )
        await asyncio.wait({asking}, timeout=2.5)
        view.snapshots[b"t/s"] = (5, b"new")
        await view.changed()
        assert await asking == b"new"


async def test_a_request_may_be_given_more_time_than_an_owner_waits() -> None:
    assert OWNER_WAIT_MS_MAX == WAIT_MS_MAX
    view = FakeView()
    view.snapshots[b"t/s"] = (5, b"new")
    async with worker(view) as server:
        group = FakeGroup(everywhere(server))
        async with Owners(Router(group), token=None, request_timeout_s=600.0) as owners:  # type: ignore[arg-type]
            partition = view.partition_of(b"t/s")
            assert await owners.snapshot(partition, "t", "s", min_seq=5, timeout_s=600) == b"new"


async def test_no_worker_is_said_at_once_and_a_dead_one_in_time() -> None:
    """Goal: an empty group does not cost the timeout; a member that does not answer costs exactly it."""
    empty = FakeGroup()
    empty.members = 0
    async with owners_of(empty) as owners:
        began = time.monotonic()
        with pytest.raises(NoOwnerAnswers, match=r"no worker is running .*`refold worker run` starts one"):
            await owners.snapshot(0, "t", "s", min_seq=0, timeout_s=60)
        assert time.monotonic() - began < 20
    async with owners_of(FakeGroup({0: "http://127.0.0.1:9"})) as owners:
        with pytest.raises(NoOwnerAnswers, match=r"0\.3 s .*`refold worker run` starts one"):
            await owners.snapshot(0, "t", "s", min_seq=0, timeout_s=0.3)


async def test_a_worker_that_comes_after_its_client_is_found() -> None:
    """Goal: a look that found no owner is not believed for a minute, during which topics would be scanned."""
    view = FakeView()
    partition = view.partition_of(b"t/s")
    view.snapshots[b"t/s"] = (2, b"late")
    async with worker(view) as server:
        group = FakeGroup()
        group.members = 0
        async with owners_of(group) as owners:
            rulings = Rulings(owners, "p-1", no_topics)
            with pytest.raises(NoOwnerAnswers):
                await owners.snapshot(partition, "t", "s", min_seq=0, timeout_s=1)
            group.owners, group.members = everywhere(server), 1
            await view.rule("p-1", RulingLine(0, 0, "accepted", 1))
            assert (await rulings.wait(Delivery(0, 0, 0), time.monotonic(), 60)).seq == 1
            assert await owners.snapshot(partition, "t", "s", min_seq=0, timeout_s=60) == b"late"
            await rulings.close()


async def test_a_wrong_token_is_not_retried() -> None:
    view = FakeView()
    view.snapshots[b"t/s"] = (1, b"x")
    partition = view.partition_of(b"t/s")
    async with worker(view, token=TOKEN) as server:
        group = FakeGroup(everywhere(server))
        async with owners_of(group, token="w" * 20) as owners:
            with pytest.raises(PermissionDenied, match="BEARER_TOKEN"):
                await owners.snapshot(partition, "t", "s", min_seq=0, timeout_s=5)
        async with owners_of(group, token=TOKEN) as owners:
            assert await owners.snapshot(partition, "t", "s", min_seq=0, timeout_s=60) == b"x"


async def test_history_comes_with_the_session_seq() -> None:
    view = FakeView()
    view.snapshots[b"t/s"] = (9, b"x")
    view.histories[b"t/s"] = HistoryAnswer("r.journal", 0, ((8, 100),), 120)
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        partition = view.partition_of(b"t/s")
        found = await owners.history(partition, "t", "s", after=7, limit=10, timeout_s=60)
        assert found == (view.histories[b"t/s"], 9)
        assert await owners.history(partition, "t", "none", after=0, limit=1, timeout_s=60) is None


COPIED = StandbyAnswer(5, b"copied", 12, 3, 0.25)
SAID = Staleness(12, 3, 0.25)


@pytest.mark.parametrize("owner", ["dead", "restoring", "none"])
async def test_a_standby_is_asked_when_the_owner_has_no_answer(owner: str) -> None:
    """Goal: the answer comes at once, from whichever worker has a copy, with what it says of its age."""
    key, view, bare = b"t/s", FakeView(), FakeView()
    partition = view.partition_of(key)
    for one in (view, bare):
        one.statuses[partition] = "absent"
    view.copies[key] = COPIED
    restoring = FakeView()
    restoring.statuses[partition] = "restoring"
    async with worker(view) as a, worker(bare) as b, worker(restoring) as c:
        group = FakeGroup({})
        if owner != "none":
            group.owners = {partition: "http://127.0.0.1:9" if owner == "dead" else c.url}
        group.others = {"copy": a.url, "bare": b.url}
        async with owners_of(group) as owners:
            began = time.monotonic()
            assert await owners.stale_snapshot(partition, "t", "s", timeout_s=20) == (b"copied", SAID)
            assert time.monotonic() - began < 15
            # One that does not exist there does not exist as of then.
            view.copies[key] = StandbyAnswer(0, None, 12, 3, 0.25)
            assert await owners.stale_snapshot(partition, "t", "s", timeout_s=20) == (None, SAID)


async def test_an_owner_that_answers_is_not_passed_over() -> None:
    view, copy = FakeView(), FakeView()
    key = b"t/s"
    partition = view.partition_of(key)
    view.snapshots[key] = (7, b"owned")
    copy.statuses[partition] = "absent"
    copy.copies[key] = COPIED
    async with worker(view) as a, worker(copy) as b:
        group = FakeGroup({partition: a.url})
        group.others = {"copy": b.url}
        async with owners_of(group) as owners:
            assert await owners.stale_snapshot(partition, "t", "s", timeout_s=60) == (b"owned", None)
            assert await owners.stale_snapshot(partition, "t", "none", timeout_s=60) == (None, None)


async def test_without_a_standby_the_owner_is_waited_for() -> None:
    view, bare = FakeView(), FakeView()
    key = b"t/s"
    partition = view.partition_of(key)
    view.snapshots[key] = (7, b"owned")
    view.statuses[partition] = "restoring"
    bare.statuses[partition] = "absent"
    async with worker(view) as a, worker(bare) as b:
        group = FakeGroup({partition: a.url})
        group.others = {"bare": b.url}
        async with owners_of(group) as owners:
            with pytest.raises(NoOwnerAnswers, match=r"no standby.*`refold worker run` starts one"):
                await owners.stale_snapshot(partition, "t", "s", timeout_s=0.2)
            asking = asyncio.ensure_future(owners.stale_snapshot(partition, "t", "s", timeout_s=60))
            view.statuses[partition] = "live"
            assert await asking == (b"owned", None)


async def test_who_may_have_a_copy_is_asked_in_the_order_of_the_placement() -> None:
    """Goal: clients and workers come to the same order, owner left out."""
    group = FakeGroup({2: "http://127.0.0.1:1"})
    group.others = {f"w-{n}": f"http://127.0.0.1:{n}" for n in range(1, 6)}
    router = Router(group)  # type: ignore[arg-type]
    assert router.in_line(2) == []
    await router.refresh()
    routes = await group.look()
    owner = routes.owners[2]
    line = [one.instance for one in router.in_line(2)]
    assert line == standbys(2, {w.instance for w in routes.workers}, owner.instance, 9)
    assert len(line) == 5


async def test_concurrent_refreshes_share_one_look() -> None:
    group = FakeGroup({0: "http://127.0.0.1:1"})
    router = Router(group)  # type: ignore[arg-type]
    await asyncio.gather(*(router.refresh() for _ in range(50)))
    assert group.looks == 1


async def test_a_ruling_sent_after_the_stream_is_open_needs_no_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: in the steady state one stream carries everything; nobody is asked record by record."""
    # A stall of this process must not look like a stream that carries nothing.
    monkeypatch.setattr(rulings_module, "RULING_RECHECK_S", 30.0)
    view = FakeView()
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        rulings = Rulings(owners, "p-1", no_topics)
        await view.rule("p-1", RulingLine(0, 0, "accepted", 1))
        # The first one is from before the stream: it is asked for, which opens the stream.
        first = await rulings.wait(Delivery(0, 0, 0), time.monotonic(), 60)
        assert first == RulingLine(0, 0, "accepted", 1)
        asked: list[tuple[int, int]] = []
        remembered = view.ruling
        view.ruling = lambda p, o: asked.append((p, o)) or remembered(p, o)  # type: ignore[method-assign]
        waits = [
            asyncio.ensure_future(rulings.wait(Delivery(0, n, 0), time.monotonic(), 60)) for n in range(1, 50)
        ]
        await asyncio.sleep(0)
        for n in range(1, 50):
            await view.rule("p-1", RulingLine(0, n, "accepted", n + 1))
        assert [line.seq for line in await asyncio.gather(*waits)] == list(range(2, 51))
        assert asked == []
        await rulings.close()


async def test_the_owner_dies_while_a_ruling_is_awaited() -> None:
    """Goal: the waiter follows the partition to its new owner and gets the ruling from there."""
    old, new = FakeView(), FakeView()
    async with worker(new) as b:
        group = FakeGroup()
        async with owners_of(group) as owners:
            rulings = Rulings(owners, "p-1", no_topics)
            async with worker(old) as a:
                group.owners = everywhere(a)
                waiting = asyncio.ensure_future(rulings.wait(Delivery(0, 7, 0), time.monotonic(), 60))
                await asyncio.wait_for(old.subscribed.wait(), 60)
            group.owners = everywhere(b)
            await new.rule("p-1", RulingLine(0, 7, "rejected", None, "session_closed", "closed"))
            assert (await waiting).code == "session_closed"
            await rulings.close()


async def test_a_partition_that_moves_behind_an_open_stream_is_noticed() -> None:
    """Goal: the old owner's stream stays open and silent; the recheck finds the new owner."""
    old, new = FakeView(), FakeView()
    async with worker(old) as a, worker(new) as b:
        group = FakeGroup(everywhere(a))
        async with owners_of(group) as owners:
            rulings = Rulings(owners, "p-1", no_topics)
            waiting = asyncio.ensure_future(rulings.wait(Delivery(0, 7, 0), time.monotonic(), 60))
            await asyncio.wait_for(old.subscribed.wait(), 60)
            old.statuses[0] = "absent"
            group.owners = everywhere(b)
            await new.rule("somebody else", RulingLine(0, 7, "accepted", 3))
            assert (await waiting).seq == 3
            await rulings.close()


async def test_forgotten_rulings_are_looked_up_in_the_topics() -> None:
    view = FakeView()
    view.frontiers[0] = 100
    asked: list[Delivery] = []

    async def topics(delivery: Delivery) -> RulingLine:
        asked.append(delivery)
        return RulingLine(0, 7, "duplicate", 0)

    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        with pytest.raises(RulingForgotten):
            await owners.ruling(0, 7, 1.0)
        rulings = Rulings(owners, "p-1", topics)
        assert (await rulings.wait(Delivery(0, 7, 55), 0.0, 60)).status == "duplicate"
        assert asked == [Delivery(0, 7, 55)]
        await rulings.close()


async def test_topics_that_do_not_answer_for_a_moment_do_not_end_the_waiting() -> None:
    """Goal: a ruling that the owner has forgotten is looked for again, until the caller's time is over."""
    view = FakeView()
    view.frontiers[0] = 100
    outcomes: list[RulingLine | UnavailableError] = [
        UnavailableError("no broker"),
        RulingLine(0, 7, "accepted", 3),
    ]

    async def topics(_: Delivery) -> RulingLine:
        outcome = outcomes.pop(0)
        if isinstance(outcome, UnavailableError):
            raise outcome
        return outcome

    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        rulings = Rulings(owners, "p-1", topics)
        assert (await rulings.wait(Delivery(0, 7, 55), 0.0, 60)).seq == 3
        await rulings.close()


@pytest.mark.parametrize("streamed", [True, False])
async def test_who_waits_for_a_ruling_is_told_that_the_client_closes(streamed: bool) -> None:
    view = FakeView()
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        rulings = Rulings(owners, "p-1", no_topics)
        waiting = asyncio.ensure_future(rulings.wait(Delivery(0, 7, 0), 0.0, 60, streamed=streamed))
        await asyncio.sleep(0.05)
        await rulings.close()
        await owners.__aexit__(None, None, None)
        await asyncio.wait({waiting}, timeout=10)
        assert isinstance(waiting.exception(), TransientError | UnavailableError)
        assert "closed" in str(waiting.exception())
        with pytest.raises(TransientError, match=r"closed.*offset 8"):
            await rulings.wait(Delivery(0, 8, 0), 0.0, 60, streamed=streamed)


async def test_without_workers_the_topics_answer_or_the_error_says_what_is_known() -> None:
    group = FakeGroup()
    group.members = 0
    known: list[RulingLine] = []

    async def topics(_: Delivery) -> RulingLine | None:
        return known[0] if known else None

    async with owners_of(group) as owners:
        rulings = Rulings(owners, "p-1", topics)
        with pytest.raises(TransientError, match=r"durable.*partition 0, offset 7.*not lost"):
            await rulings.wait(Delivery(0, 7, 0), 0.0, 0.3)
        known.append(RulingLine(0, 7, "accepted", 1))
        assert (await rulings.wait(Delivery(0, 7, 0), 0.0, 60)).seq == 1
        await rulings.close()


async def test_unstamped_events_are_long_polled() -> None:
    """Goal: events with a caller's id are not on the producer's stream, and still ruled on promptly."""
    view = FakeView()
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        rulings = Rulings(owners, "p-1", no_topics)
        waiting = asyncio.ensure_future(rulings.wait(Delivery(0, 7, 0), 0.0, 60, streamed=False))
        await asyncio.sleep(0.05)
        await view.rule("", RulingLine(0, 7, "accepted", 1))
        assert (await waiting).seq == 1
        assert not view.sinks
        await rulings.close()


async def test_observers_hear_each_ruling_once_by_whatever_way() -> None:
    view = FakeView()
    heard: list[int | None] = []
    async with worker(view) as server, owners_of(FakeGroup(everywhere(server))) as owners:
        rulings = Rulings(owners, "p-1", no_topics)
        rulings.observe(Delivery(0, 0, 0), lambda line: heard.append(line.seq))
        await view.rule("p-1", RulingLine(0, 0, "accepted", 5))
        await rulings.wait(Delivery(0, 0, 0), 0.0, 60)
        rulings.observe(Delivery(0, 0, 0), lambda line: heard.append(line.seq))
        await rulings.wait(Delivery(0, 0, 0), 0.0, 60)
        assert heard == [5, 5]
        await rulings.close()


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rulings_module, "RULINGS_KEPT_MAX", 3)
    async with owners_of(FakeGroup()) as owners:
        rulings = Rulings(owners, "p-1", no_topics)
        for n in range(10):
            rulings.observe(Delivery(0, n, 0), lambda _: None)
            rulings._known(RulingLine(1, n, "accepted", n))
        assert len(rulings._kept) == 3
        assert len(rulings._observers) == 3
