"""Sessions that live more than once: what the client waits for when it reads, and whose events it reads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from core.build import Inbox, event, message
from refold.client.connection import SessionMemory
from refold.client.history import _life_start
from refold.client.ordering import Lane
from refold.client.reader import Reader


def memory() -> SessionMemory:
    return SessionMemory(cast("Lane", None))


def test_rulings_that_are_heard_late_take_nothing_back() -> None:
    """Goal: read your own writes, in whatever order the rulings come."""
    made = memory()
    for offset, seq in ((11, 2), (10, 1), (12, 3)):
        made.accepted(offset, seq)
    assert made.last_seq == 3
    made.accepted(11, 2)
    assert made.last_seq == 3


def test_a_session_that_was_deleted_by_its_idle_time_is_not_waited_for() -> None:
    """Goal: nobody of this client has deleted it; its next event is the first one of a new life, and a read
    waits for that and not for the fiftieth."""
    made = memory()
    made.accepted(100, 50)
    made.accepted(170, 1)
    assert made.last_seq == 1


class Partition:
    """A journal in memory, swept as by a reader."""

    def __init__(self, inbox: Inbox) -> None:
        key = inbox.session.key.encode()
        self.messages = [
            SimpleNamespace(
                key=lambda: key,
                value=lambda value=value: value,
                partition=lambda: 3,
                offset=lambda offset=offset: offset,
            )
            for offset, value in enumerate(inbox.journal)
        ]

    def end(self, _topic: str, _partition: int) -> tuple[int, int]:
        return 0, len(self.messages)

    def sweep(self, _topic: str, _partition: int, first: int, visit: Callable[[Any], bool]) -> None:
        for one in self.messages[first:]:
            visit(one)


def test_history_without_an_owner_begins_with_the_present_life() -> None:
    """Goal: also where nobody said SessionDeleted, but the idle time was over."""
    inbox = Inbox()
    inbox.ok(event("SessionOpened", policy={"ttl_ms": 1_000, "ttl_action": "delete"}), message("m1"))
    inbox.clock += 60_000
    inbox.ok(event("TimerFired", deadline_ms=inbox.session.timer_ms))
    assert not inbox.session.exists
    inbox.ok(message("m1"), message("m2"))
    reader = cast("Reader", Partition(inbox))
    assert _life_start(reader, "t.journal", 3, inbox.session.key.encode()) == 3
    inbox.ok(event("SessionDeleted"))
    reader = cast("Reader", Partition(inbox))
    assert _life_start(reader, "t.journal", 3, inbox.session.key.encode()) is None
