"""The order, jitter and pace of restores, exactly: seeded draws, a simulated clock, no thread that waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from refold.core.slots import SlotMap, make_key
from refold.engine.admission import BURST_S, SLICE_S, Bucket, Pace, Rank, Turns, core_partitions, plan
from refold.engine.takeover import Cancelled
from refold.errors import ConfigError

MB = 1_000_000


def test_core_comes_first_then_the_unread() -> None:
    tickets = plan(range(6), {4}, {1: 10, 2: 500, 5: 10}, random.Random(1))
    order = sorted(tickets, key=lambda number: tickets[number].rank)
    assert order == [4, 2, 1, 5, 0, 3]


def test_the_jitter_is_the_seeds_and_follows_the_order() -> None:
    """Goal: the draws are those of the seed, smallest first, and core partitions have none."""
    tickets = plan(range(5), {3}, {0: 9, 2: 99}, random.Random(7))
    chance = random.Random(7)
    assert [tickets[number].draw for number in (3, 2, 0, 1, 4)] == [
        0.0,
        *sorted(chance.random() for _ in range(4)),
    ]
    assert plan(range(5), {3}, {0: 9, 2: 99}, random.Random(7)) == tickets
    assert plan(range(5), {3}, {0: 9, 2: 99}, random.Random(8)) != tickets


def test_core_is_said_in_partitions_ranges_and_sessions() -> None:
    slots = SlotMap(12)
    session = slots.partition(make_key("acme", "front desk"))
    assert core_partitions("", slots) == frozenset()
    assert core_partitions(" 11, 2-4 ,acme/front desk", slots) == {11, 2, 3, 4, session}


@pytest.mark.parametrize("text", ["12", "a", "3-", "-3", "1-12", "1-2-3", "1.5"])
def test_what_names_no_partition_is_a_wrong_setting(text: str) -> None:
    if text == "3-":
        assert core_partitions(text, SlotMap(12)) == {3}
        return
    with pytest.raises(ConfigError, match="restore_first"):
        core_partitions(text, SlotMap(12))


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"waited in vain for {what}")


async def test_a_free_turn_goes_to_the_first_in_rank_not_the_first_to_ask() -> None:
    turns = Turns(2, asyncio.get_running_loop())
    begun: list[int] = []
    go = {number: asyncio.Event() for number in range(6)}

    async def restore(number: int, unread: int) -> None:
        await turns.take(Rank(True, -unread, number))
        with turns.held():
            begun.append(number)
            await go[number].wait()

    async with asyncio.TaskGroup() as group:
        for number, unread in enumerate((0, 5, 10, 7, 1, 20)):
            group.create_task(restore(number, unread))
        order = [5, 2, 3, 1, 4, 0]
        for done, number in enumerate(order):
            await until(lambda: len(begun) >= min(done + 2, len(order)), "the next turn")  # noqa: B023
            assert begun == order[: done + 2], "never more than two at once"
            go[number].set()
    assert begun == order


async def test_who_is_called_off_or_cancelled_keeps_no_turn() -> None:
    turns = Turns(1, asyncio.get_running_loop())
    first, second, third, fourth = (Rank(True, 0, number) for number in range(4))
    await turns.take(first)
    waiting = [asyncio.create_task(turns.take(rank)) for rank in (second, third, fourth)]
    await asyncio.sleep(0)
    turns.withdraw(second)
    with pytest.raises(Cancelled):
        await waiting[0]
    with turns.held():
        pass
    # Granted to the third in the same round in which its task is cancelled: handed on, not lost.
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.wait(waiting[1:], timeout=60.0)
    assert waiting[1].cancelled()
    assert waiting[2].done()
    assert waiting[2].exception() is None


def test_the_bucket_lends_and_is_paid_back() -> None:
    bucket = Bucket(MB, now=100.0)
    assert bucket.spend(int(BURST_S * MB), 100.0) == 0.0
    assert bucket.spend(MB, 100.0) == pytest.approx(1.0)
    assert bucket.spend(0, 100.4) == pytest.approx(0.6)
    assert bucket.spend(MB // 2, 101.0) == pytest.approx(0.5)
    # A long rest saves up no more than the burst.
    assert bucket.spend(int(BURST_S * MB), 500.0) == 0.0
    assert bucket.spend(1, 500.0) == pytest.approx(1e-6)


@pytest.mark.parametrize("restores", [1, 2, 5])
def test_all_restores_together_keep_to_the_rate(restores: int) -> None:
    """Goal: in every window of T seconds at most B * (T + burst) bytes and a chunk per restore. Method:
    restores with chunks of seeded sizes on a simulated clock, each going on when the bucket lets it."""
    chance, rate, chunk_max = random.Random(restores), 3 * MB, MB
    bucket = Bucket(rate, now=0.0)
    due = [0.0] * restores
    read: list[tuple[float, int]] = []
    for _ in range(400):
        who = min(range(restores), key=due.__getitem__)
        now, size = due[who], chance.randrange(1, chunk_max)
        read.append((now, size))
        due[who] = now + bucket.spend(size, now) + chance.random() * 0.01
    for start, _ in read:
        total = 0
        for at, size in read:
            if at < start:
                continue
            total += size
            assert total <= rate * (at - start + BURST_S) + restores * chunk_max
    seconds = read[-1][0]
    assert sum(size for _, size in read) >= rate * seconds * 0.9, "nor is the rate left unused"


def test_waiting_is_in_slices_and_ends_when_it_is_moot() -> None:
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(MB, monotonic=lambda: now[0], sleep=sleep)
    pace.spend(int((1 + BURST_S) * MB), lambda: False)
    assert now[0] == pytest.approx(1.0)
    assert max(slept) <= SLICE_S
    pace.spend(100 * MB, lambda: now[0] >= 2.0)
    assert 2.0 <= now[0] < 2.0 + 2 * SLICE_S


def test_every_read_is_told_also_where_nothing_limits_it() -> None:
    def never(_seconds: float) -> None:
        raise AssertionError("no limit, no wait")

    for rate in (0, MB):
        told: list[int] = []
        pace = Pace(rate, monotonic=lambda: 0.0, sleep=never)
        pace.told = told.append
        pace.spend(1_000, lambda: False)
        pace.spend(0, lambda: False)
        assert told == [1_000, 0]
