"""What the client remembers of a session it writes to: the seq to wait for when it reads."""

from __future__ import annotations

from typing import cast

from refold.client.connection import SessionMemory
from refold.client.ordering import Lane


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
