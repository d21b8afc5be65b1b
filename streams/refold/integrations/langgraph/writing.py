"""From LangGraph's objects to a thread's events; deletions. On the client's event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from refold.errors import UsageError
from refold.integrations.langgraph.configs import config_of, ns_of, thread_of
from refold.integrations.langgraph.everywhere import survey
from refold.integrations.langgraph.pruning import doomed
from refold.integrations.langgraph.reading import Reading
from refold.integrations.langgraph.records import CheckpointPut, Value, WritesPut
from refold.integrations.langgraph.threads import Threads
from refold.integrations.langgraph.view import Typed

STRATEGIES: Final = ("keep_latest", "delete")


class Writing:
    def __init__(self, threads: Threads, serde: SerializerProtocol) -> None:
        self._threads = threads
        self._serde = serde

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread, ns = thread_of(config), ns_of(config)
        values = checkpoint["channel_values"]
        rest = {key: value for key, value in checkpoint.items() if key != "channel_values"}
        changed = tuple(
            (channel, version, self._value(values[channel]) if channel in values else None)
            for channel, version in new_versions.items()
        )
        record = CheckpointPut(
            ns,
            checkpoint["id"],
            get_checkpoint_id(config),
            self._value(rest),
            self._value(get_checkpoint_metadata(config, metadata)),
            changed,
        )
        await self._threads.put(thread, record)
        return config_of(thread, ns, checkpoint["id"])

    async def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        thread, id_ = thread_of(config), get_checkpoint_id(config)
        if not id_:
            raise UsageError("writes belong to a checkpoint: config['configurable'] has no checkpoint_id")
        slots = tuple(
            (WRITES_IDX_MAP.get(channel, at), channel, self._value(value))
            for at, (channel, value) in enumerate(writes)
        )
        await self._threads.put_writes(thread, WritesPut(ns_of(config), id_, task_id, task_path, slots))

    async def delete_for_runs(self, run_ids: Sequence[str], thread_ids: Sequence[str] | None) -> None:
        runs = {str(run) for run in run_ids}
        if not runs:
            return

        def wanted(typed: Typed) -> bool:
            return str(self._serde.loads_typed(typed).get("run_id")) in runs

        if thread_ids is not None:
            for thread in map(str, thread_ids):
                await self._threads.delete(thread, await self._of_view(thread, wanted))
            return
        for thread, found in (await survey(self._threads.rf, wanted)).items():
            # One that was deleted since is not begun anew by a deletion.
            if await self._threads.view(thread) is not None:
                await self._threads.delete(thread, sorted(found))

    async def _of_view(self, thread: str, wanted: Any) -> Sequence[tuple[str, str]]:
        view = await self._threads.view(thread)
        found = []
        for ns, id_ in () if view is None else view.listed(None, None, None):
            metadata = None if view is None else await view.metadata(ns, id_)
            if metadata is not None and wanted(metadata):
                found.append((ns, id_))
        return found

    async def prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in STRATEGIES:
            raise UsageError(f"strategy={strategy!r}: it must be one of {', '.join(STRATEGIES)}")
        reading = Reading(self._threads, self._serde)
        for thread in map(str, thread_ids):
            view = await self._threads.view(thread)
            if view is None:
                continue
            gone: Sequence[tuple[str, str]] = [*view.listed(None, None, None)]
            if strategy == "keep_latest":
                gone = await doomed(gone, lambda ns, id_, v=view, t=thread: reading.tuple(v, t, ns, id_))  # type: ignore[misc]
            await self._threads.delete(thread, gone)

    def _value(self, thing: Any) -> Value:
        kind, data = self._serde.dumps_typed(thing)
        return Value(kind, bytes(data))
