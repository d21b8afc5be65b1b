"""Which checkpoints "keep the latest" deletes: all that the latest of each namespace does not need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from langgraph.checkpoint.base import CheckpointTuple

#: Metadata of LangGraph: the delta channels that have no value here. They are rebuilt from the writes of the
#: checkpoints before, back to one that has their value.
DELTAS: Final = "counters_since_delta_snapshot"

TupleOf = Callable[[str, str], Awaitable[CheckpointTuple | None]]


async def doomed(every: Sequence[tuple[str, str]], tuple_of: TupleOf) -> Sequence[tuple[str, str]]:
    """``every``: namespace and id, newest first."""
    kept: set[tuple[str, str]] = set()
    for ns in dict.fromkeys(ns for ns, _ in every):
        latest = next(id_ for space, id_ in every if space == ns)
        kept.add((ns, latest))
        found = await tuple_of(ns, latest)
        missing = set(found.metadata.get(DELTAS) or ()) if found is not None else set()
        while found is not None:
            missing -= set(found.checkpoint["channel_values"])
            parent = found.parent_config
            if not missing or parent is None:
                break
            before = parent["configurable"]["checkpoint_id"]
            kept.add((ns, before))
            found = await tuple_of(ns, before)
    return [one for one in every if one not in kept]
