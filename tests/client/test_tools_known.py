"""Calls that need no read: what a client knows of a session's operations, and when it does not any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from client.memory_session import MemoryLog, MemorySession
from refold.client.events import SessionEvent
from refold.client.snapshots import SnapshotView
from refold.client.tools import AlreadySettled
from refold.client.tools import known as knowns
from refold.core.limits import CLOSED_CALLS_MAX


class Counting(MemorySession):
    """``reads``: of the state; ``scans``: of the journal."""

    def __init__(self, log: MemoryLog, producer_id: str = "p-1") -> None:
        super().__init__(log, producer_id)
        self.reads = self.scans = 0

    async def state(self, *, min_seq: int | None = None, timeout: float | None = None) -> SnapshotView | None:
        self.reads += 1
        return await super().state(min_seq=min_seq, timeout=timeout)

    async def events(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        self.scans += 1
        async for event in super().events(after, limit):
            yield event


async def run(s: MemorySession, operation_id: str, ran: list[str] | None = None) -> None:
    async with s.tool("f", {"of": operation_id}, operation_id=operation_id, effect="external") as call:
        if ran is not None:
            ran.append(operation_id)
        call.done(operation_id)


async def settled(s: MemorySession, operation_id: str) -> Any:
    """The outcome the operation has; its body must not run."""
    ran: list[str] = []
    with pytest.raises(AlreadySettled) as raised:
        await run(s, operation_id, ran)
    assert ran == []
    return raised.value.outcome.value


async def test_a_session_is_read_once() -> None:
    """Goal: calls of a client that is alone in its session cost no reads, also past the ledger's end."""
    log = MemoryLog()
    s = Counting(log)
    for number in range(3 * CLOSED_CALLS_MAX):
        await run(s, f"a{number}")
    assert (s.reads, s.scans) == (1, 0)
    assert log.refused == []
    # A client that comes when rows have left the ledger reads the journal once.
    later = Counting(log, "p-2")
    for number in range(CLOSED_CALLS_MAX):
        await run(later, f"b{number}")
    assert (later.reads, later.scans) == (1, 1)
    for operation in ("a0", "b0"):
        assert await settled(later, operation) == operation


async def test_keys_of_ones_own_are_recognised() -> None:
    """Goal: a key used again gives the first outcome, from the ledger and from the journal."""
    s = Counting(MemoryLog())
    for number in range(CLOSED_CALLS_MAX + 3):
        await run(s, f"a{number}")
    for name in ("a0", f"a{CLOSED_CALLS_MAX}"):
        assert await settled(s, name) == name


@pytest.mark.parametrize("others", [0, CLOSED_CALLS_MAX + 1])
async def test_a_key_used_meanwhile_by_another_process(others: int) -> None:
    """Goal: what others did since the read is found out before the body runs, whether its row is still held
    or has left the ledger; the knowledge ends with it."""
    log = MemoryLog()
    s, other = Counting(log), MemorySession(log, "p-2")
    await run(s, "mine")
    await run(other, "x")
    for number in range(others):
        await run(other, f"o{number}")
    assert await settled(s, "x") == "x"
    s.reads = 0
    await run(s, "next")
    await run(s, "and another")
    assert s.reads == 1


async def test_another_process_without_harm() -> None:
    """Goal: an event of somebody else that is no such call costs a read and nothing else."""
    log = MemoryLog()
    s, other = Counting(log), MemorySession(log, "p-2")
    await run(s, "a")
    await other.set_fact("color", "red")
    ran: list[str] = []
    await run(s, "b", ran)
    assert ran == ["b"]


async def test_messages_and_deletions_end_the_knowledge() -> None:
    """Goal: an event that may add calls by other ways than an intent, or end them all, is followed by a
    read."""
    s = Counting(MemoryLog())
    await run(s, "a")
    await s.append("hello")
    await run(s, "b")
    assert s.reads == 2
    await s.delete()
    ran: list[str] = []
    await run(s, "a", ran)
    assert (s.reads, ran) == (3, ["a"])


async def test_intents_by_the_low_level_calls_are_heard() -> None:
    """Goal: an operation that was declared without ``session.tool`` is known all the same."""
    s = Counting(MemoryLog())
    await run(s, "a")
    await s.tool_intended("x", "f", {"of": "x"}, effect="external")
    await s.tool_completed("x", "by hand")
    for number in range(CLOSED_CALLS_MAX):
        await run(s, f"b{number}")
    assert s.reads == 1
    assert await settled(s, "x") == "by hand"


async def test_a_call_id_of_an_asked_call_is_read() -> None:
    """Goal: no second row is opened beside the one that a message opened and another closed."""
    s = Counting(MemoryLog())
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    await s.append({"role": "assistant", "content": None, "tool_calls": [call]}, message_id="m1")
    await s.append({"role": "tool", "tool_call_id": "c1", "content": "by message"})
    await run(s, "a")
    ran = False
    with pytest.raises(AlreadySettled):
        async with s.tool("f", {}, operation_id="x", effect="none", call_id="c1", message_id="m1"):
            ran = True
    assert not ran


async def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowns, "KNOWN_CALLS_MAX", 3)
    s = Counting(MemoryLog())
    for number in range(9):
        await run(s, f"a{number}")
    assert s.reads == 3
    monkeypatch.setattr(knowns, "KNOWN_S", -1.0)
    await run(s, "old")
    assert s.reads == 4
