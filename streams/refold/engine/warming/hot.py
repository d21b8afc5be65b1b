"""The first part of a restore that is hot first: what must be read before a session is served (rule H1).

Blocks; runs on a restore thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.rows import Frontier
from refold.engine.takeover import Marks
from refold.engine.warming import opening
from refold.engine.warming.keyset import Allowance
from refold.engine.warming.reader import RangeReader
from refold.engine.warming.unread import KeyFilter, Unread
from refold.engine.warming.warmer import Warmer
from refold.topology.names import TopicNames


def begin(
    topics: TopicNames,
    written: Written,
    frontier: Frontier,
    marks: Marks,
    reader: RangeReader,
    *,
    start: tuple[int, int],
    proof: KeyFilter | None,
    points: Points,
    now_ms: Callable[[], int],
    reading_ms_max: int,
    allowance: Allowance,
) -> Warmer:
    """Generations whole, what is newer than a hole, the newest range. ``start``: offsets of inbox and
    batches from which the partition will be fed. Raises what :meth:`Warmer.step` raises; the reader is closed
    then."""
    store = written.store
    frontier = replace(
        frontier,
        state_next=max(frontier.state_next, marks.state_start),
        history_next=max(frontier.history_next, marks.history_start),
        generations_next=max(frontier.generations_next, marks.generations_start),
    )
    begun, hole, tail, anew = opening.opened(store, frontier, marks)
    if proof is not None and proof.state_next <= hole.low:
        # Speaks of nothing that is unread.
        proof = None
    unread = written.unread = Unread(
        store, begun, hole, marks.history_end, begun.applied_ms, marks.asked_ms, proof
    )
    warmer = Warmer(
        topics,
        written,
        unread,
        reader,
        start,
        anew=anew,
        points=points,
        now_ms=now_ms,
        reading_ms_max=reading_ms_max,
        allowance=allowance,
    )
    try:
        warmer.read_generations(begun.generations_next, marks.generations_end)
        warmer.read_tail(tail, marks.state_end)
        warmer.begin()
        warmer.step()
    except BaseException:
        warmer.close()
        raise
    return warmer
