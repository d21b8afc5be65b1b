"""What should be there, computed from the inbox alone. Deliberately not :mod:`refold.core`.

A second, much smaller model of the contract: it walks each partition of the inbox in offset order, sends
records on the wrong partition away, and for the rest counts, remembers ids and counters, and keeps facts,
tool states and message texts. Everything is a plain dict or list without bounds: it needs to be right, not
fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refold.core.envelope import Envelope
from refold.errors import InvalidRecord
from refold.ops.verify.readback import Record
from refold.wire.codec import decode
from refold.wire.envelope import decode_envelope

Place = tuple[int, int]


@dataclass(slots=True)
class Expected:
    """One session as it should be."""

    accepted: list[tuple[Place, str, str]] = field(default_factory=list)  # (place, event id, type)
    messages: list[tuple[int, str]] = field(default_factory=list)  # (seq, text), oldest first
    facts: dict[str, tuple[str, int]] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    ids: dict[str, bytes] = field(default_factory=dict)
    counters: dict[tuple[str, int], int] = field(default_factory=dict)
    own: list[tuple[int, Envelope]] = field(default_factory=list)  # (seq, event) of reducers' types

    @property
    def seq(self) -> int:
        return len(self.accepted)


@dataclass(slots=True)
class World:
    """The whole expected outcome."""

    sessions: dict[bytes, Expected] = field(default_factory=dict)
    rejected: dict[Place, str] = field(default_factory=dict)  # place -> class of reason
    misrouted: set[Place] = field(default_factory=set)
    forwards: dict[Place, list[Place]] = field(default_factory=dict)  # origin -> places of its copies
    duplicates: int = 0
    #: Types whose events are kept for the parts of reducers.
    wanted: frozenset[str] = frozenset()


def home(key: bytes, partitions: int) -> int:
    """Java's default partition of a key: an implementation of its own, from Kafka's published algorithm."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(key)) & mask
    for i in range(0, len(key) - len(key) % 4, 4):
        k = (int.from_bytes(key[i : i + 4], "little") * m) & mask
        k = ((k ^ (k >> 24)) * m) & mask
        h = ((h * m) & mask) ^ k
    rest = key[len(key) - len(key) % 4 :]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * m) & mask
    h = ((h ^ (h >> 13)) * m) & mask
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % partitions


def predict(inbox: Mapping[int, Sequence[Record]], wanted: frozenset[str] = frozenset()) -> World:
    """Walk the inbox. Partitions are independent: a session lives on one. ``wanted``: reducers' types."""
    world = World(wanted=wanted)
    for partition, records in inbox.items():
        for record in records:
            _take(world, record, partition, len(inbox))
    return world


def _take(world: World, record: Record, partition: int, partitions: int) -> None:
    place = (partition, record.offset)
    if origin := record.header("refold-origin"):
        _topic, from_partition, from_offset = origin.decode().rsplit("/", 2)
        world.forwards.setdefault((int(from_partition), int(from_offset)), []).append(place)
    if not _is_key(record.key):
        world.rejected[place] = "key"
        return
    key = record.key or b""
    if home(key, partitions) != partition:
        world.misrouted.add(place)
        return
    try:
        envelope = decode_envelope(record.value or b"")
    except InvalidRecord:
        world.rejected[place] = "bytes"
        return
    if f"{envelope.tenant}/{envelope.session}".encode() != key:
        world.rejected[place] = "key"
        return
    session = world.sessions.setdefault(key, Expected())
    _rule(world, session, envelope, place)


def _is_key(key: bytes | None) -> bool:
    if not key:
        return False
    try:
        tenant, slash, session = key.decode().partition("/")
    except UnicodeDecodeError:
        return False
    return bool(tenant and slash and session)


def _rule(world: World, session: Expected, envelope: Any, place: Place) -> None:
    content = envelope.type.encode() + b"\0" + envelope.payload
    known = session.ids.get(envelope.event_id)
    if envelope.producer_id is not None:
        stamp = (envelope.producer_id, envelope.producer_epoch)
        if envelope.producer_counter <= session.counters.get(stamp, 0):
            world.duplicates += 1
            return
    elif known is not None:
        if known == content:
            world.duplicates += 1
        else:
            world.rejected[place] = "conflict"
        return
    if envelope.expected_seq is not None and envelope.expected_seq != session.seq:
        world.rejected[place] = "expected_seq"
        return
    if envelope.producer_id is not None:
        session.counters[envelope.producer_id, envelope.producer_epoch] = envelope.producer_counter
    session.ids[envelope.event_id] = content
    session.accepted.append((place, envelope.event_id, envelope.type))
    if envelope.type in world.wanted:
        session.own.append((session.seq, envelope))
    _apply(session, envelope)


def _apply(session: Expected, envelope: Any) -> None:
    match envelope.type:
        case "MessageAppended":
            body = decode(envelope.payload).record
            text = "".join(part["text"] or "" for part in body["content"])
            session.messages.append((session.seq, text))
        case "FactSet":
            body = decode(envelope.payload).record
            session.facts[body["name"]] = (body["value"], session.seq)
        case "ToolCallIntended" | "ToolCallStarted" | "ToolCallCompleted":
            state = {"Intended": "intended", "Started": "started", "Completed": "done"}
            body = decode(envelope.payload).record
            session.tools[body["operation_id"]] = state[envelope.type.removeprefix("ToolCall")]
