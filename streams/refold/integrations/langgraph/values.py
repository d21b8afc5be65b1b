"""Values outside of their events: what is too large goes to the blob store before the event is sent.

A value above the inline limit is a blob of its own, so that the same one is stored once. Where the others are
too much for one event, as of a task that sends thousands, the largest go into one blob together, the pack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from refold.errors import StorageError
from refold.integrations.langgraph.limits import EVENT_INLINE_BYTES_MAX
from refold.integrations.langgraph.records import CheckpointPut, Value, WritesPut, values_of
from refold.wire.blobs import BlobStore

VALUE_MEDIA_TYPE: Final = "application/vnd.langgraph.value"
PACK_MEDIA_TYPE: Final = "application/vnd.langgraph.pack"

R = TypeVar("R", bound=CheckpointPut | WritesPut)


async def offloaded(record: R, store: BlobStore, inline_bytes_max: int) -> R:
    """The record, fit for one event. Raises StorageError: nothing was sent then."""
    values = values_of(record)
    sizes = [len(value.data or b"") for value in values]
    alone = {at for at, size in enumerate(sizes) if size > inline_bytes_max}
    packed = _too_much({at: size for at, size in enumerate(sizes) if at not in alone})
    if not alone and not packed:
        return record
    return _with(record, await asyncio.to_thread(_put, values, alone, packed, store))


async def loaded(values: Sequence[Value], store: BlobStore) -> list[tuple[str, bytes]]:
    """What the serializer made, checked. Raises NotFound and StorageError as :meth:`BlobStore.get`."""
    if all(value.data is not None for value in values):
        return [(value.kind, value.data or b"") for value in values]
    return await asyncio.to_thread(_get, values, store)


def _too_much(sizes: Mapping[int, int]) -> set[int]:
    """The largest ones, until the rest fits."""
    out: set[int] = set()
    left = sum(sizes.values())
    for at in sorted(sizes, key=lambda at: -sizes[at]):
        if left <= EVENT_INLINE_BYTES_MAX:
            break
        out.add(at)
        left -= sizes[at]
    return out


def _put(values: Sequence[Value], alone: set[int], packed: set[int], store: BlobStore) -> list[Value]:
    pack, begins = bytearray(), {}
    for at in sorted(packed):
        begins[at] = len(pack)
        pack += values[at].data or b""
    of_pack = store.put(bytes(pack), media_type=PACK_MEDIA_TYPE, field="data") if packed else {}
    made = list(values)
    for at, value in enumerate(values):
        data = value.data or b""
        if at in alone:
            made[at] = Value(value.kind, None, store.put(data, media_type=VALUE_MEDIA_TYPE, field="data"))
        elif at in packed:
            made[at] = Value(value.kind, None, of_pack, begins[at], len(data))
    return made


def _get(values: Sequence[Value], store: BlobStore) -> list[tuple[str, bytes]]:
    blobs: dict[str, bytes] = {}
    found = []
    for value in values:
        if value.data is not None:
            found.append((value.kind, value.data))
            continue
        ref: Mapping[str, Any] = value.ref or {}
        digest = str(ref.get("sha256"))
        if digest not in blobs:
            blobs[digest] = store.get(ref)
        data = blobs[digest]
        if value.at is not None:
            data = data[value.at : value.at + value.size]
            if len(data) != value.size:
                raise StorageError(f"the blob {digest} ends before the {value.kind} value that lies in it")
        found.append((value.kind, data))
    return found


def _with(record: R, values: Sequence[Value]) -> R:
    if isinstance(record, WritesPut):
        writes = tuple((s, c, value) for (s, c, _), value in zip(record.writes, values, strict=True))
        return replace(record, writes=writes)
    checkpoint, metadata, *others = values
    rest = iter(others)
    kept = tuple((c, version, value and next(rest)) for c, version, value in record.values)
    return replace(record, checkpoint=checkpoint, metadata=metadata, values=kept)
