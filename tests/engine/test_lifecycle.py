"""The partition's life as a table."""

from __future__ import annotations

import itertools

import pytest

from refold.engine.assignment import Assignment
from refold.engine.lifecycle import LEGAL, State, move
from refold.errors import InvariantViolation


def test_every_state_has_a_row_and_the_ends_have_no_way_on() -> None:
    assert set(LEGAL) == set(State)
    assert LEGAL[State.REVOKED] == LEGAL[State.LOST] == frozenset()


@pytest.mark.parametrize(("now", "to"), list(itertools.product(State, State)))
def test_only_the_tables_steps_are_taken(now: State, to: State) -> None:
    if to in LEGAL[now]:
        assert move(3, now, to) is to
    else:
        with pytest.raises(InvariantViolation, match="partition 3"):
            move(3, now, to)


def test_whatever_it_does_a_partition_can_be_taken_away() -> None:
    for state in (State.ASSIGNED, State.WAITING, State.RESTORING, State.LIVE):
        assert {State.REVOKED, State.LOST} <= LEGAL[state]


def test_a_stale_chunk_finds_no_partition() -> None:
    """R, A: neither an older assignment epoch, nor an older fetch epoch, nor a partition that is not live."""
    table = Assignment()
    part = table.add(5, table.next_epoch())
    assert table.live(5, part.epoch, 0) is None
    for state in (State.WAITING, State.RESTORING, State.LIVE):
        part.move(state)
    assert table.live(5, part.epoch, 0) is part
    part.fetch_epoch += 1
    assert table.live(5, part.epoch, 0) is None
    again = table.add(5, table.next_epoch())
    assert again.epoch != part.epoch
    assert table.epoch(5) == again.epoch
    table.forget(part)
    assert table.epoch(5) == again.epoch
    table.forget(again)
    assert table.epoch(5) is None


def test_an_unopened_partition_cannot_be_committed() -> None:
    table = Assignment()
    table.add(1, table.next_epoch())
    with pytest.raises(InvariantViolation, match="not open"):
        table.written(1)
