"""``RefoldSaver``: LangGraph's checkpointer, each thread a session of refold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from refold.client.client import Refold
from refold.client.sync import Refold as SyncRefold
from refold.errors import UsageError
from refold.integrations.langgraph.everywhere import copy
from refold.integrations.langgraph.loops import ClientLoop
from refold.integrations.langgraph.reading import Reading
from refold.integrations.langgraph.threads import Threads
from refold.integrations.langgraph.writing import Writing


class RefoldSaver(BaseCheckpointSaver[str]):
    """``graph = builder.compile(checkpointer=RefoldSaver(rf))``; the thread is the session of the same id.

    ``rf``: an open client; threads are sessions of its tenant. With ``refold.client.Refold`` this object is
    made on the client's event loop, with ``refold.client.sync.Refold`` anywhere. Both interfaces may be used
    from any thread and loop, but for the synchronous one on the client's own loop (InvalidStateError).

    Writes return when they are *accepted*: TransientError means that this is not known (the next write sends
    the same again first), Refused that the session takes none (it is closed, say).
    """

    def __init__(self, rf: Refold | SyncRefold, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        if isinstance(rf, SyncRefold):
            client, loop = rf.client, rf.loop
        else:
            client = rf
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                raise UsageError(
                    "RefoldSaver(rf) is made where rf lives, inside of `async with Refold(...) as rf:`; "
                    "a program without an event loop takes refold.client.sync.Refold"
                ) from None
        self._loop = ClientLoop(loop)
        self._threads = Threads(client)

    @property
    def _reading(self) -> Reading:
        # Made anew: `with_allowlist` clones this object with another serializer.
        return Reading(self._threads, self.serde)

    @property
    def _writing(self) -> Writing:
        return Writing(self._threads, self.serde)

    # Reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint of the config, or the newest of its thread and namespace."""
        return await self._loop.run(self._reading.get(config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._loop.wait(self._reading.get(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Newest first. Without a thread in ``config`` it reads the journal, whole: a bulk read."""
        left = limit
        for one in await self._loop.run(self._reading.listed(config, filter, before)):
            if left is not None and left <= 0:
                return
            found = await self._loop.run(self._reading.matching(one, filter))
            if found is not None:
                left = None if left is None else left - 1
                yield found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        left = limit
        for one in self._loop.wait(self._reading.listed(config, filter, before)):
            if left is not None and left <= 0:
                return
            found = self._loop.wait(self._reading.matching(one, filter))
            if found is not None:
                left = None if left is None else left - 1
                yield found

    # Writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._loop.run(self._writing.put(config, checkpoint, metadata, new_versions))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._loop.wait(self._writing.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._loop.run(self._writing.put_writes(config, writes, task_id, task_path))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._loop.wait(self._writing.put_writes(config, writes, task_id, task_path))

    # Deleting and copying

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the session, with whatever else it holds (messages, facts). The journal keeps its events."""
        await self._loop.run(self._threads.delete_thread(str(thread_id)))

    def delete_thread(self, thread_id: str) -> None:
        self._loop.wait(self._threads.delete_thread(str(thread_id)))

    async def adelete_for_runs(
        self, run_ids: Sequence[str], *, thread_ids: Sequence[str] | None = None
    ) -> None:
        """Delete the checkpoints of the runs, with their writes. ``thread_ids``: where they are; not given,
        the journal is read, whole."""
        await self._loop.run(self._writing.delete_for_runs(run_ids, thread_ids))

    def delete_for_runs(self, run_ids: Sequence[str], *, thread_ids: Sequence[str] | None = None) -> None:
        self._loop.wait(self._writing.delete_for_runs(run_ids, thread_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Append everything that LangGraph has written to one thread to another."""
        await self._loop.run(copy(self._threads, str(source_thread_id), str(target_thread_id)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._loop.wait(copy(self._threads, str(source_thread_id), str(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints, or all but the newest of each namespace and those that its delta channels
        are rebuilt from. Other things in the sessions stay."""
        await self._loop.run(self._writing.prune(thread_ids, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._loop.wait(self._writing.prune(thread_ids, strategy))

    def get_next_version(self, current: str | int | float | None, channel: None) -> str:
        """A number and chance, as LangGraph's own savers: branches of a thread never share a version."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"
