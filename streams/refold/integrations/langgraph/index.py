"""What a thread holds, folded from its session's events: where each checkpoint, write and value lies. Pure.

The contents stay in the events. A checkpoint has the values that were written with it; those of its other
channels are found by namespace, channel and version in earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple

from refold.integrations.langgraph.records import (
    CheckpointPut,
    CheckpointsDeleted,
    Record,
    Value,
    Version,
    WritesPut,
    type_of,
)


class Place(NamedTuple):
    """Where an event lies: its number in the session and its place in the inbox, which no other has."""

    seq: int
    offset: int


#: Before a session's first event.
NOWHERE: Final = Place(0, -1)


class Put(NamedTuple):
    place: Place
    parent: str | None
    metadata: Value


class Write(NamedTuple):
    place: Place
    position: int
    path: str


class _Said(NamedTuple):
    """What was said last about one checkpoint, or about one task of it."""

    digest: str
    event_id: str


@dataclass(slots=True)
class Index:
    """``life``: when the session began, in ms; a session that was deleted and begun anew is another one."""

    life: int
    last: Place = NOWHERE
    #: namespace -> id -> …
    checkpoints: dict[str, dict[str, Put]] = field(default_factory=dict)
    #: (namespace, id) -> (task, slot) -> …
    writes: dict[tuple[str, str], dict[tuple[str, int], Write]] = field(default_factory=dict)
    #: (namespace, channel, version) -> place and position; None: empty.
    values: dict[tuple[str, str, Version], tuple[Place, int] | None] = field(default_factory=dict)
    _said: dict[tuple[str, ...], _Said] = field(default_factory=dict)
    _deleted: dict[tuple[str, str], int] = field(default_factory=dict)

    def skip(self, place: Place) -> None:
        """An event that is none of a thread's."""
        self.last = place

    def apply(self, place: Place, event_id: str, digest: str, record: Record) -> None:
        self.last = place
        if isinstance(record, CheckpointsDeleted):
            for ns, id_ in record.checkpoints:
                self._delete(ns, id_, place.seq)
            return
        self._said[_about(record)] = _Said(digest, event_id)
        if isinstance(record, CheckpointPut):
            put = Put(place, record.parent, record.metadata)
            self.checkpoints.setdefault(record.ns, {})[record.id] = put
            for position, (channel, version, value) in enumerate(record.values):
                found = None if value is None else (place, position)
                self.values[(record.ns, channel, version)] = found
            return
        held = self.writes.setdefault((record.ns, record.id), {})
        for position, (slot, _, _) in enumerate(record.writes):
            # A task's ordinary write stays what it was first, as in LangGraph's own savers: a task that runs
            # again does not change what others may have gone on with. The last word of a special one counts.
            if slot < 0 or (record.task, slot) not in held:
                held[(record.task, slot)] = Write(place, position, record.path)

    def _delete(self, ns: str, id_: str, seq: int) -> None:
        self.checkpoints.get(ns, {}).pop(id_, None)
        held = self.writes.pop((ns, id_), {})
        self._deleted[(ns, id_)] = seq
        self._said.pop((ns, id_), None)
        for task in {task for task, _ in held}:
            self._said.pop((ns, id_, task), None)

    def latest(self, ns: str) -> str | None:
        return max(self.checkpoints.get(ns, ()), default=None)

    def listed(self, ns: str | None, id_: str | None, before: str | None) -> Iterator[tuple[str, str]]:
        """Namespace and id of those asked for, newest first. Empty or ``None``: whichever."""
        found = [
            (one, space)
            for space, held in self.checkpoints.items()
            if ns is None or space == ns
            for one in held
            if (not id_ or one == id_) and (not before or one < before)
        ]
        for one, space in sorted(found, reverse=True):
            yield space, one

    def ordered_writes(self, ns: str, id_: str) -> list[tuple[str, Write]]:
        """Tasks and their writes, in LangGraph's order (``writes_sort_key``)."""
        held = self.writes.get((ns, id_), {})
        return [
            (task, write)
            for (task, slot), write in sorted(held.items(), key=lambda one: (one[1].path, *one[0]))
        ]

    def event_id(self, record: CheckpointPut | WritesPut, digest: str) -> str:
        """The same for the same record from any process, so that a retry is absorbed; another where
        something else was said about it in between, so that saying it again counts."""
        said = self._said.get(_about(record))
        if said is not None:
            return said.event_id if said.digest == digest else _named(digest, said.event_id)
        deleted = self._deleted.get((record.ns, record.id))
        return _named(digest, "" if deleted is None else str(deleted))


def digest_of(record: Record, payload: bytes) -> str:
    return sha256(type_of(record).encode() + payload).hexdigest()[:32]


def _named(digest: str, after: str) -> str:
    return f"langgraph-{sha256(f'{digest} {after}'.encode()).hexdigest()[:32]}"


def _about(record: CheckpointPut | WritesPut) -> tuple[str, ...]:
    return (
        (record.ns, record.id) if isinstance(record, CheckpointPut) else (record.ns, record.id, record.task)
    )
