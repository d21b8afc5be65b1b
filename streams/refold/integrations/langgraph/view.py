"""A thread as of one read: its checkpoints, put together from the events that hold their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from refold.client.session import Session
from refold.integrations.langgraph.index import Index, Place, Put
from refold.integrations.langgraph.journal import Gone, Records
from refold.integrations.langgraph.records import CheckpointPut, Record, Value, Version, WritesPut
from refold.integrations.langgraph.values import loaded
from refold.wire.blobs import BlobStore

Typed: TypeAlias = tuple[str, bytes]

#: Of a checkpoint as it was written, the versions of its channels.
VersionsOf: TypeAlias = Callable[[Typed], Mapping[str, Version]]


class Loaded(NamedTuple):
    """``writes``: task, channel, value; in LangGraph's order."""

    ns: str
    id: str
    parent: str | None
    checkpoint: Typed
    metadata: Typed
    values: dict[str, Typed]
    writes: list[tuple[str, str, Typed]]


class View:
    """A thread as of one read."""

    def __init__(self, session: Session, index: Index, records: Records, blobs: BlobStore) -> None:
        self._session = session
        self._index = index
        self._held = records
        self._blobs = blobs

    def latest(self, ns: str) -> str | None:
        return self._index.latest(ns)

    def listed(self, ns: str | None, id_: str | None, before: str | None) -> Iterator[tuple[str, str]]:
        """As :meth:`Index.listed`."""
        return self._index.listed(ns, id_, before)

    async def metadata(self, ns: str, id_: str) -> Typed | None:
        put = self._put(ns, id_)
        return None if put is None else (await self._loaded([put.metadata]))[0]

    async def load(self, ns: str, id_: str, versions_of: VersionsOf) -> Loaded | None:
        """``None`` for a checkpoint that is not there, or was deleted since. Raises NotFound and StorageError
        where the blob store has not, or not unharmed, what an event names."""
        put = self._put(ns, id_)
        if put is None:
            return None
        try:
            return await self._load(ns, id_, put, versions_of)
        except Gone:
            return None

    def _put(self, ns: str, id_: str) -> Put | None:
        return self._index.checkpoints.get(ns, {}).get(id_)

    async def _load(self, ns: str, id_: str, put: Put, versions_of: VersionsOf) -> Loaded:
        writes = self._index.ordered_writes(ns, id_)
        records = await self._records([put.place, *(write.place for _, write in writes)])
        record = records[put.place]
        if not isinstance(record, CheckpointPut):
            raise Gone
        (checkpoint,) = await self._loaded([record.checkpoint])
        places: dict[str, tuple[Place, int]] = {}
        own = {(channel, version): at for at, (channel, version, _) in enumerate(record.values)}
        for channel, version in versions_of(checkpoint).items():
            at = own.get((channel, version))
            found = self._index.values.get((ns, channel, version)) if at is None else (put.place, at)
            if found is not None:
                places[channel] = found
        records |= await self._records(place for place, _ in places.values())
        values: list[Value] = [record.metadata]
        channels = []
        for channel, (place, at) in places.items():
            holder = records[place]
            if not isinstance(holder, CheckpointPut):
                raise Gone
            value = holder.values[at][2]
            if value is not None:
                channels.append(channel)
                values.append(value)
        kept = []
        for task, write in writes:
            holder = records[write.place]
            if not isinstance(holder, WritesPut):
                raise Gone
            _, channel, value = holder.writes[write.position]
            kept.append((task, channel))
            values.append(value)
        metadata, *others = await self._loaded(values)
        return Loaded(
            ns,
            id_,
            put.parent,
            checkpoint,
            metadata,
            dict(zip(channels, others, strict=False)),
            [
                (task, channel, typed)
                for (task, channel), typed in zip(kept, others[len(channels) :], strict=True)
            ],
        )

    async def _records(self, places: Iterable[Place]) -> dict[Place, Record]:
        return await self._held.at(self._session, places)

    async def _loaded(self, values: Sequence[Value]) -> list[Typed]:
        return await loaded(values, self._blobs)
