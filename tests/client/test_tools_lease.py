"""A lease by the runner's own clock, pure, with a clock that tests move; and the archive of old keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from client.memory_session import MemoryLog, MemorySession
from refold.client.tools import LeaseLost
from refold.client.tools import archive as archives
from refold.client.tools.archive import Archive, archive_of, may_have_forgotten
from refold.client.tools.clocks import lease_clock
from refold.client.tools.lease import SAFETY_SHARE, Lease
from refold.core.limits import CLOSED_CALLS_MAX
from refold.errors import TransientError


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(time: Time, answers: list[Any], length: float = 10.0) -> Lease:
    async def renew() -> bool:
        answer = answers.pop(0)
        time.now += 2.0  # The ruling takes its time.
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    return Lease("op", time.now, length, renew, clock=time)


def test_it_is_held_until_a_tenth_before_its_end() -> None:
    time = Time()
    made = lease(time, [])
    time.now += 10.0 * (1 - SAFETY_SHARE) - 0.001
    made.check()
    time.now += 0.001
    assert not made.held()
    with pytest.raises(LeaseLost, match="Nothing was started"):
        made.check()


async def test_a_renewal_counts_from_before_it_was_sent() -> None:
    time = Time()
    made = lease(time, [True])
    time.now += 5.0
    await made.renew()  # sent at 105, heard of at 107
    time.now = 105.0 + 9.0 - 0.001
    assert made.held()
    time.now += 0.001
    assert not made.held()


async def test_a_refusal_is_final_and_silence_is_not() -> None:
    time = Time()
    made = lease(time, [TransientError("away"), True, False, True])
    await made.renew()
    assert made.held()
    await made.renew()
    assert made.held()
    await made.renew()
    assert not made.held()
    await made.renew()
    assert not made.held()


async def test_a_woken_runner_gets_its_own_lease_back_only_by_asking() -> None:
    """Goal: stopped past the end, the lease is over until the fold has granted it again."""
    time = Time()
    made = lease(time, [True])
    time.now += 60.0
    assert not made.held()
    await made.renew()
    assert made.held()


async def test_renewing_starts_and_stops() -> None:
    renewed = asyncio.Event()

    async def renew() -> bool:
        renewed.set()
        return True

    made = Lease("op", lease_clock(), 0.03, renew).start()
    await asyncio.wait_for(renewed.wait(), 60)
    await made.stop()
    await made.stop()
    renewed.clear()
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not renewed.is_set()


def test_the_clock_goes_on() -> None:
    first = lease_clock()
    assert lease_clock() >= first


# The archive


async def fill(s: MemorySession, count: int, name: str) -> None:
    for number in range(count):
        async with s.tool("f", {}, operation_id=f"{name}{number}", effect="none") as call:
            call.done(number)


async def test_only_a_full_ledger_may_have_forgotten() -> None:
    log = MemoryLog()
    s = MemorySession(log)
    assert not may_have_forgotten(log.view())
    await fill(s, CLOSED_CALLS_MAX - 1, "a")
    assert not may_have_forgotten(log.view())
    await fill(s, 1, "b")
    assert may_have_forgotten(log.view())
    long = MemoryLog()
    big = MemorySession(long)
    for number in range(25):
        await big.tool_intended(f"o{number}", "f", {"text": "x" * 4000})
    assert may_have_forgotten(long.view())


async def test_a_deleted_session_begins_with_an_empty_archive() -> None:
    """Goal: keys of a former life are new ones, and those of the new life are all known."""
    log = MemoryLog()
    s = MemorySession(log)
    await fill(s, CLOSED_CALLS_MAX + 5, "a")
    await s.delete()
    log.journal.clear()  # A reader sees the present life only.
    log.clock.advance(10)
    await fill(s, 2 * CLOSED_CALLS_MAX, "a")
    archive = archive_of(s._connection, s.key)
    view = log.view()
    assert view is not None
    await archive.read(s, view.seq, view.data["created_at_ms"])  # type: ignore[arg-type]
    assert [archive.outcome_seq(f"a{number}") for number in (0, CLOSED_CALLS_MAX + 10)] == [
        next(
            e.seq
            for e in log.journal
            if e.type == "ToolCallCompleted" and (e.payload or {})["operation_id"] == f"a{number}"
        )
        for number in (0, CLOSED_CALLS_MAX + 10)
    ]
    assert archive.outcome_seq("never") is None


async def test_archives_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ARCHIVED_SESSIONS_MAX", 2)
    s = MemorySession(MemoryLog())
    first = archive_of(s._connection, b"1")
    archive_of(s._connection, b"2")
    assert archive_of(s._connection, b"1") is first
    archive_of(s._connection, b"3")
    assert archive_of(s._connection, b"1") is first
    assert archive_of(s._connection, b"2").seq == 0
    monkeypatch.setattr(archives, "ARCHIVED_CALLS_MAX", 3)
    log = MemoryLog()
    long = MemorySession(log)
    await fill(long, 5, "a")
    archive = Archive()
    for _ in range(2):
        await archive.read(long, log.state.seq, 1)  # type: ignore[arg-type]
        assert archive.outcome_seq("a0") is not None
