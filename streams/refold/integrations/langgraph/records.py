"""The events of a thread: what they say, and their bytes. Pure.

The payload is a JSON object, so that reducers and whoever else reads the journal can read it. Values are what
the saver's serializer made of an object: the name of the form, and bytes in base64; or a reference to the
blob store; or a place in the blob that several values of the event share, its ``pack``. A channel's value
without a form is that of an empty channel.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson

from refold.errors import InvalidRecord, UsageError

CHECKPOINT_PUT: Final = "langgraph.CheckpointPut"
WRITES_PUT: Final = "langgraph.WritesPut"
CHECKPOINTS_DELETED: Final = "langgraph.CheckpointsDeleted"

#: Of the payloads. One that is higher was written by a newer refold and is not guessed at.
FORMAT: Final = 1

Version: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class Value:
    """``kind``: the serializer's word for the form. ``data`` is ``None`` where ``ref`` names the bytes:
    all of the blob, or ``size`` of its bytes from ``at`` on, where it is the event's pack."""

    kind: str
    data: bytes | None
    ref: Mapping[str, Any] | None = None
    at: int | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointPut:
    """``checkpoint`` is without channel values; ``values``: those of the channels that changed."""

    ns: str
    id: str
    parent: str | None
    checkpoint: Value
    metadata: Value
    values: tuple[tuple[str, Version, Value | None], ...]


@dataclass(frozen=True, slots=True)
class WritesPut:
    """``writes``: slot, channel and value. A slot below zero is a special channel's."""

    ns: str
    id: str
    task: str
    path: str
    writes: tuple[tuple[int, str, Value], ...]


@dataclass(frozen=True, slots=True)
class CheckpointsDeleted:
    """``checkpoints``: namespace and id."""

    checkpoints: tuple[tuple[str, str], ...]


Record: TypeAlias = CheckpointPut | WritesPut | CheckpointsDeleted

TYPES: Final[Mapping[str, type[Record]]] = {
    CHECKPOINT_PUT: CheckpointPut,
    WRITES_PUT: WritesPut,
    CHECKPOINTS_DELETED: CheckpointsDeleted,
}
_NAMES: Final = {kind: name for name, kind in TYPES.items()}


def type_of(record: Record) -> str:
    return _NAMES[type(record)]


def encode(record: Record) -> bytes:
    """Raises UsageError for what JSON has no form for: half of a surrogate pair, a number beyond 64 bits."""
    said: dict[str, Any] = {"format": FORMAT}
    if isinstance(record, CheckpointsDeleted):
        said["checkpoints"] = record.checkpoints
    else:
        said |= {"ns": record.ns, "id": record.id}
    if isinstance(record, CheckpointPut):
        said |= {
            "parent": record.parent,
            "checkpoint": _said(record.checkpoint),
            "metadata": _said(record.metadata),
            "values": [
                (channel, version, None if value is None else _said(value))
                for channel, version, value in record.values
            ],
        }
    elif isinstance(record, WritesPut):
        writes = [(slot, channel, _said(value)) for slot, channel, value in record.writes]
        said |= {"task": record.task, "path": record.path, "writes": writes}
    if (pack := next((value.ref for value in values_of(record) if value.at is not None), None)) is not None:
        said["pack"] = pack
    try:
        return orjson.dumps(said)
    except TypeError as error:
        raise UsageError(f"a {type_of(record)} cannot be written: {error}") from None


def decode(event_type: str, payload: bytes) -> Record:
    """Raises InvalidRecord for bytes that :func:`encode` has not made, or that of a newer refold has."""
    try:
        said = orjson.loads(payload)
        if said["format"] > FORMAT:
            raise InvalidRecord(
                "unknown_schema", f"a {event_type} has format {said['format']}: read it with a newer refold"
            )
        if event_type == CHECKPOINTS_DELETED:
            return CheckpointsDeleted(tuple((str(ns), str(id_)) for ns, id_ in said["checkpoints"]))
        pack = said.get("pack")
        if event_type == WRITES_PUT:
            writes = tuple((int(slot), str(channel), _value(v, pack)) for slot, channel, v in said["writes"])
            return WritesPut(said["ns"], said["id"], said["task"], said["path"], writes)
        values = tuple(
            (str(channel), version, None if value is None else _value(value, pack))
            for channel, version, value in said["values"]
        )
        checkpoint, metadata = _value(said["checkpoint"], pack), _value(said["metadata"], pack)
        return CheckpointPut(said["ns"], said["id"], said["parent"], checkpoint, metadata, values)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRecord(
            "undecodable", f"a {event_type} that no RefoldSaver has written: {error!r}"
        ) from None


def values_of(record: Record) -> list[Value]:
    if isinstance(record, CheckpointPut):
        changed = [value for _, _, value in record.values if value is not None]
        return [record.checkpoint, record.metadata, *changed]
    return [value for _, _, value in record.writes] if isinstance(record, WritesPut) else []


def size_of(record: Record) -> int:
    """Bytes of its values, for counting what is kept in memory."""
    return sum(len(value.data or b"") for value in values_of(record))


def _said(value: Value) -> dict[str, Any]:
    if value.at is not None:
        return {"kind": value.kind, "at": value.at, "size": value.size}
    if value.data is None:
        return {"kind": value.kind, "ref": value.ref}
    return {"kind": value.kind, "data": b64encode(value.data).decode()}


def _value(said: Mapping[str, Any], pack: Mapping[str, Any] | None) -> Value:
    kind = str(said["kind"])
    if "at" in said:
        return Value(kind, None, dict(pack or {}), int(said["at"]), int(said["size"]))
    if "ref" in said:
        return Value(kind, None, dict(said["ref"]))
    return Value(kind, b64decode(said["data"], validate=True))
