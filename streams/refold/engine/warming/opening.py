"""Begins a restore that serves before it has read everything, or finds that it is not worth it.

Blocks; runs on a restore thread, after rule T (1) and (2). What is served afterwards: the newest range, and
what the key filter of a checkpoint proves absent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from refold.engine import rows
from refold.engine.store import Batch, Store
from refold.engine.takeover import Marks
from refold.engine.warming import interval

#: A partition with less than this to read is restored as ever: it takes a tenth of a second.
HOT_OFFSETS_MIN: Final = 2 * interval.FIRST_OFFSETS


class Reached(NamedTuple):
    """How far the changelogs will have been read when all is, as ``changelogs.Reading`` says it."""

    found_state: bool
    state_next: int
    history_next: int
    generations_next: int


class Opened(NamedTuple):
    """``tail``: where the changelog goes on that is newer than the hole (its end, if nothing is). ``anew``:
    nothing is known of what lies above the hole, because nothing of it was read."""

    frontier: rows.Frontier
    hole: rows.Hole
    tail: int
    anew: bool


def reached(marks: Marks) -> Reached:
    """By a restore that begins before it has read them."""
    return Reached(True, marks.state_end, marks.history_end, marks.generations_end)


def lowered(frontier: rows.Frontier) -> rows.Frontier:
    """How far a copy with a hole is if nothing above the hole is trusted."""
    hole = frontier.hole
    if hole is None:
        return frontier
    return replace(frontier, state_next=hole.low if hole.low < hole.high else frontier.state_next, hole=None)


def settled(store: Store, frontier: rows.Frontier) -> rows.Frontier:
    """Make a copy with a hole one that is read forward from there. Right whatever lies above the hole: all of
    it is read again, in the order of the log. Raises :class:`StorageError`."""
    if frontier.hole is None:
        return frontier
    plain = lowered(frontier)
    batch = Batch()
    batch.forget_known()
    batch.frontier(plain)
    store.write(batch)
    return plain


def unread_offsets(frontier: rows.Frontier, marks: Marks) -> int:
    """Of the state changelog, compaction's gaps included."""
    hole = frontier.hole
    missing = 0 if hole is None else max(0, hole.high - max(hole.low, marks.state_start))
    return missing + max(0, marks.state_end - max(frontier.state_next, marks.state_start))


def opened(store: Store, frontier: rows.Frontier, marks: Marks) -> Opened:
    """What to begin with. Written where it must be. Raises :class:`StorageError`."""
    end, hole = marks.state_end, frontier.hole
    if hole is not None and hole.low < hole.high and end - frontier.state_next <= interval.FIRST_OFFSETS:
        hole = replace(hole, low=max(hole.low, min(marks.state_start, hole.high)))
        return Opened(replace(frontier, hole=hole), hole, frontier.state_next, anew=False)
    plain = lowered(frontier)
    low = max(plain.state_next, marks.state_start)
    # A copy that was never written has no age yet: what it will hold is as old as this restore.
    since_ms = frontier.applied_ms or marks.asked_ms
    fresh = rows.Hole(low, end, frontier.hole is not None or not store.empty())
    begun = replace(plain, state_next=end, hole=fresh, applied_ms=since_ms)
    batch = Batch()
    if frontier.hole is not None:
        # What was known is so no longer.
        batch.forget_known()
    # Before the first row above the hole is read.
    batch.frontier(begun)
    store.write(batch)
    return Opened(begun, fresh, end, anew=True)
