"""The requests of a transactional producer, each in one version that every broker from 2.8 to 4.x answers.

All are of before KIP-890's second part: partitions are added to the transaction by a request of their own,
and the epoch stays from one transaction to the next. :mod:`refold.protocol.dialect` has those that
changed with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from refold.protocol.wire import Reader, Writer

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Api:
    """``flexible``: the header carries tagged fields, and the answer's as well where that is not denied."""

    key: int
    version: int
    flexible: bool = False
    answer_tagged: bool = True


PRODUCE: Final = Api(0, 7)
METADATA: Final = Api(3, 5)
FIND_COORDINATOR: Final = Api(10, 2)
#: Its answer is also for those who do not know the version that they asked with.
API_VERSIONS: Final = Api(18, 3, flexible=True, answer_tagged=False)
INIT_PRODUCER_ID: Final = Api(22, 4, flexible=True)
ADD_PARTITIONS: Final = Api(24, 2)
ADD_OFFSETS: Final = Api(25, 2)
END_TRANSACTION: Final = Api(26, 2)
COMMIT_OFFSETS: Final = Api(28, 3, flexible=True)

#: Asked in the same version whatever a transaction is spoken in.
COMMON: Final = (METADATA, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID)

GROUP: Final = 0
TRANSACTION: Final = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """A producer id with its epoch; -1 for none."""

    producer_id: int = -1
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class Member:
    """Whose offsets are committed: what the coordinator fences a stale member by."""

    group: str
    generation: int
    member: str
    instance: str | None


@dataclass(frozen=True, slots=True)
class Metadata:
    """``leaders``: node of each partition, -1 for none. ``errors``: code by topic or partition."""

    nodes: Mapping[int, tuple[str, int]]
    leaders: Mapping[Place, int]
    errors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Offered:
    """``versions``: lowest and highest by key. ``features``: the highest level of each that the whole cluster
    has finalized."""

    versions: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]


#: The name by which a broker knows us in its metrics.
SOFTWARE: Final = "refold"

#: Of the tagged fields of the answer to API_VERSIONS.
_FINALIZED: Final = 2


def api_versions(software_version: str) -> bytes:
    return bytes(Writer().compact(SOFTWARE).compact(software_version).tags().out)


def read_api_versions(read: Reader) -> Offered:
    """Nothing where the broker does not know this request's version either."""
    if read.i16():
        return Offered({}, {})

    def version(r: Reader) -> tuple[int, tuple[int, int]]:
        found = r.i16(), (r.i16(), r.i16())
        r.tags()
        return found

    def level(r: Reader) -> tuple[str, int]:
        found = r.compact() or "", r.i16()
        r.i16()
        r.tags()
        return found

    versions = dict(read.compact_array(version))
    read.i32()
    finalized = read.tagged().get(_FINALIZED)
    features = dict(Reader(finalized).compact_array(level)) if finalized is not None else {}
    return Offered(versions, features)


def metadata(topics: Sequence[str]) -> bytes:
    write = Writer().i32(len(topics))
    for topic in topics:
        write.string(topic)
    return bytes(write.i8(0).out)


def read_metadata(read: Reader) -> Metadata:
    read.i32()
    nodes: dict[int, tuple[str, int]] = {}
    leaders: dict[Place, int] = {}
    errors: dict[str, int] = {}

    def node(r: Reader) -> None:
        number, host, port = r.i32(), r.string() or "", r.i32()
        r.string()
        nodes[number] = (host, port)

    def topic(r: Reader) -> None:
        error, name = r.i16(), r.string() or ""
        r.i8()
        if error:
            errors[name] = error

        def partition(p: Reader) -> None:
            failed, number, leader = p.i16(), p.i32(), p.i32()
            for _ in range(3):
                p.array(Reader.i32)
            leaders[name, number] = -1 if failed == 5 else leader

        r.array(partition)

    read.array(node)
    read.string()
    read.i32()
    read.array(topic)
    return Metadata(nodes, leaders, errors)


def find_coordinator(key: str, kind: int) -> bytes:
    return bytes(Writer().string(key).i8(kind).out)


def read_coordinator(read: Reader) -> tuple[int, str, tuple[str, int]]:
    """Error code, its text, address."""
    read.i32()
    error, said = read.i16(), read.string() or ""
    read.i32()
    return error, said, (read.string() or "", read.i32())


def init_producer_id(transactional_id: str | None, timeout_ms: int, known: Identity) -> bytes:
    write = Writer().compact(transactional_id).i32(timeout_ms)
    return bytes(write.i64(known.producer_id).i16(known.epoch).tags().out)


def read_identity(read: Reader) -> tuple[int, Identity]:
    read.i32()
    return read.i16(), Identity(read.i64(), read.i16())


def add_partitions(transactional_id: str, who: Identity, places: Sequence[Place]) -> bytes:
    write = Writer().string(transactional_id).i64(who.producer_id).i16(who.epoch)
    topics = by_topic(places)
    write.i32(len(topics))
    for topic, partitions in topics.items():
        write.string(topic).i32(len(partitions))
        for partition in partitions:
            write.i32(partition)
    return bytes(write.out)


def read_partition_errors(read: Reader) -> dict[Place, int]:
    read.i32()
    found: dict[Place, int] = {}

    def topic(r: Reader) -> None:
        name = r.string() or ""
        for partition, error in r.array(lambda p: (p.i32(), p.i16())):
            found[name, partition] = error

    read.array(topic)
    return found


def add_offsets(transactional_id: str, who: Identity, group: str) -> bytes:
    write = Writer().string(transactional_id).i64(who.producer_id).i16(who.epoch)
    return bytes(write.string(group).out)


def end_transaction(transactional_id: str, who: Identity, *, commit: bool) -> bytes:
    write = Writer().string(transactional_id).i64(who.producer_id).i16(who.epoch)
    return bytes(write.i8(1 if commit else 0).out)


def read_error(read: Reader) -> int:
    read.i32()
    return read.i16()


def commit_offsets(
    transactional_id: str, who: Identity, member: Member, offsets: Mapping[Place, tuple[int, str]]
) -> bytes:
    """``offsets``: offset and metadata by partition."""
    write = Writer().compact(transactional_id).compact(member.group).i64(who.producer_id).i16(who.epoch)
    write.i32(member.generation).compact(member.member).compact(member.instance)
    topics = by_topic(list(offsets))
    write.uvarint(len(topics) + 1)
    for topic, partitions in topics.items():
        write.compact(topic).uvarint(len(partitions) + 1)
        for partition in partitions:
            offset, text = offsets[topic, partition]
            write.i32(partition).i64(offset).i32(-1).compact(text).tags()
        write.tags()
    return bytes(write.tags().out)


def read_offset_errors(read: Reader) -> dict[Place, int]:
    read.i32()
    found: dict[Place, int] = {}

    def topic(r: Reader) -> None:
        name = r.compact() or ""

        def partition(p: Reader) -> None:
            number = p.i32()
            found[name, number] = p.i16()
            p.tags()

        r.compact_array(partition)
        r.tags()

    read.compact_array(topic)
    return found


def produce(
    transactional_id: str | None, timeout_ms: int, batches: Mapping[Place, bytes | bytearray | memoryview]
) -> bytes:
    """One batch for each partition, acknowledged by all in-sync replicas."""
    write = Writer().string(transactional_id).i16(-1).i32(timeout_ms)
    topics = by_topic(list(batches))
    write.i32(len(topics))
    for topic, partitions in topics.items():
        write.string(topic).i32(len(partitions))
        for partition in partitions:
            write.i32(partition).blob(batches[topic, partition])
    return bytes(write.out)


def read_produced(read: Reader) -> dict[Place, tuple[int, int]]:
    """Error code and base offset by partition."""
    return {place: (error, offset) for place, (error, offset, _) in read_written(read).items()}


def read_written(read: Reader) -> dict[Place, tuple[int, int, int]]:
    """Error code, base offset and the time of the append in ms by partition; that is -1 where the topic keeps
    the records' own times."""
    found: dict[Place, tuple[int, int, int]] = {}

    def topic(r: Reader) -> None:
        name = r.string() or ""

        def partition(p: Reader) -> None:
            number, error, offset, appended_ms = p.i32(), p.i16(), p.i64(), p.i64()
            p.i64()
            found[name, number] = (error, offset, appended_ms)

        r.array(partition)

    read.array(topic)
    return found


def by_topic(places: Sequence[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found
