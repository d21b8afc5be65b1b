"""Waiting for the end of a run: every worker serves, and everything in the inbox is folded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient

from refold.errors import UnavailableError
from refold.ops.fleet import READY_S_MAX, Fleet
from refold.ops.verify.quiesce import QUIESCE_S_MAX, quiesce
from refold.ops.verify.readback import Record
from refold.topology.groupoffsets import GroupOffsets
from refold.topology.names import TopicNames


@dataclass(frozen=True, slots=True)
class Folded:
    """The whole inbox, or why it was not folded in time."""

    inbox: dict[int, list[Record]] | None
    unfinished: str | None = None


async def all_folded(
    fleet: Fleet,
    kafka: Mapping[str, Any],
    admin: AdminClient,
    offsets: GroupOffsets,
    names: TopicNames,
    partitions: int,
    *,
    ready_s_max: float = READY_S_MAX,
    quiesce_s_max: float = QUIESCE_S_MAX,
) -> Folded:
    """Not finishing is a difference too (a sabotage may look like that), not a failure of the tool: it is
    told, not raised."""
    try:
        await fleet.wait_ready(ready_s_max)
        inbox = await asyncio.to_thread(
            quiesce, kafka, admin, offsets, names.inbox, partitions, quiesce_s_max
        )
    except UnavailableError as error:
        return Folded(None, str(error))
    return Folded(inbox)
