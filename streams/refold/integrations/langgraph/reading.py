"""From bytes in a thread to LangGraph's tuples. On the client's event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.base import SerializerProtocol

from refold.integrations.langgraph.configs import config_of, ns_of, thread_of
from refold.integrations.langgraph.everywhere import survey
from refold.integrations.langgraph.records import Version
from refold.integrations.langgraph.threads import Threads
from refold.integrations.langgraph.view import Typed, View


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint that was found; ``view``: of its thread, where that was looked into already."""

    thread: str
    ns: str
    id: str
    view: View | None = None


class Reading:
    def __init__(self, threads: Threads, serde: SerializerProtocol) -> None:
        self._threads = threads
        self._serde = serde

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, ns = thread_of(config), ns_of(config)
        view = await self._threads.view(thread)
        found = None if view is None else get_checkpoint_id(config) or view.latest(ns)
        return None if view is None or not found else await self.tuple(view, thread, ns, found)

    async def tuple(self, view: View, thread: str, ns: str, id_: str) -> CheckpointTuple | None:
        load = self._serde.loads_typed
        opened: list[Checkpoint] = []

        def versions_of(typed: Typed) -> Mapping[str, Version]:
            opened.append(load(typed))
            return opened[0]["channel_versions"]

        found = await view.load(ns, id_, versions_of)
        if found is None:
            return None
        values = {channel: load(typed) for channel, typed in found.values.items()}
        return CheckpointTuple(
            config=config_of(thread, ns, id_),
            checkpoint={**opened[0], "channel_values": values},
            metadata=load(found.metadata),
            parent_config=config_of(thread, ns, found.parent) if found.parent else None,
            pending_writes=[(task, channel, load(typed)) for task, channel, typed in found.writes],
        )

    async def listed(
        self, config: RunnableConfig | None, wanted: Mapping[str, Any] | None, before: RunnableConfig | None
    ) -> Sequence[Listed]:
        """Newest first; those whose metadata is not ``wanted`` may be among them."""
        configurable = {} if config is None else config.get("configurable", {})
        ns, id_ = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id")
        until = None if before is None else get_checkpoint_id(before)
        if (thread := configurable.get("thread_id")) is not None:
            view = await self._threads.view(str(thread))
            found = () if view is None else view.listed(ns, id_, until)
            return [Listed(str(thread), space, one, view) for space, one in found]
        every = await survey(self._threads.rf, lambda typed: self.matches(typed, wanted))
        return [
            Listed(name, space, one)
            for one, name, space in sorted(
                (
                    (one, name, space)
                    for name, held in every.items()
                    for space, one in held
                    if (ns is None or space == ns) and (not id_ or one == id_) and (not until or one < until)
                ),
                reverse=True,
            )
        ]

    async def matching(self, listed: Listed, wanted: Mapping[str, Any] | None) -> CheckpointTuple | None:
        """``None`` where its metadata is not ``wanted``, or it was deleted since."""
        view = listed.view or await self._threads.view(listed.thread)
        metadata = None if view is None else await view.metadata(listed.ns, listed.id)
        if view is None or metadata is None or not self.matches(metadata, wanted):
            return None
        return await self.tuple(view, listed.thread, listed.ns, listed.id)

    def matches(self, metadata: Typed, wanted: Mapping[str, Any] | None) -> bool:
        if not wanted:
            return True
        held = self._serde.loads_typed(metadata)
        return all(held.get(key) == value for key, value in wanted.items())
