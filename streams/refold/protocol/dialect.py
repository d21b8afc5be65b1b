"""How a transaction is spoken: as before KIP-890's second part, or as since.

Since then (``transaction.version`` 2, what a new cluster from 4.0 on has) partitions and groups join a
transaction by the first record or offset that is written for them, so two requests of each transaction are
saved, and every end brings a new epoch, so nothing that comes late can reach the transaction that follows. A
broker goes by the request's version, not by its own: what is spoken is settled once, by what the whole
cluster has finalized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from refold.protocol import requests
from refold.protocol.requests import Api, Identity, Place
from refold.protocol.wire import Reader, Writer

#: The feature whose finalized level says what is spoken, and the level from which it is the second.
FEATURE: Final = "transaction.version"
SECOND_FROM: Final = 2


@dataclass(frozen=True, slots=True)
class Dialect:
    """``joins_itself``: what is written joins the transaction without a request of its own, and an end brings
    a new epoch."""

    joins_itself: bool
    write: Api
    commit_offsets: Api
    end: Api

    @property
    def apis(self) -> tuple[Api, ...]:
        """All that a producer sends, to be looked for in what a broker takes."""
        joining = () if self.joins_itself else (requests.ADD_PARTITIONS, requests.ADD_OFFSETS)
        return (*requests.COMMON, *joining, self.write, self.commit_offsets, self.end)

    def produce(
        self, transactional_id: str, timeout_ms: int, batches: Mapping[Place, bytes | bytearray | memoryview]
    ) -> bytes:
        """One batch for each partition, acknowledged by all in-sync replicas."""
        if not self.write.flexible:
            return requests.produce(transactional_id, timeout_ms, batches)
        write = Writer().compact(transactional_id).i16(-1).i32(timeout_ms)
        topics = requests.by_topic(list(batches))
        write.uvarint(len(topics) + 1)
        for topic, partitions in topics.items():
            write.compact(topic).uvarint(len(partitions) + 1)
            for partition in partitions:
                write.i32(partition).compact_blob(batches[topic, partition]).tags()
            write.tags()
        return bytes(write.tags().out)

    def read_produced(self, read: Reader) -> dict[Place, tuple[int, int]]:
        """Error code and base offset by partition."""
        if not self.write.flexible:
            return requests.read_produced(read)
        found: dict[Place, tuple[int, int]] = {}

        def topic(r: Reader) -> None:
            name = r.compact() or ""

            def partition(p: Reader) -> None:
                number, error, offset = p.i32(), p.i16(), p.i64()
                p.i64()
                p.i64()
                p.compact_array(_record_error)
                p.compact()
                p.tags()
                found[name, number] = (error, offset)

            r.compact_array(partition)
            r.tags()

        read.compact_array(topic)
        return found

    def end_transaction(self, transactional_id: str, who: Identity, *, commit: bool) -> bytes:
        if not self.end.flexible:
            return requests.end_transaction(transactional_id, who, commit=commit)
        write = Writer().compact(transactional_id).i64(who.producer_id).i16(who.epoch)
        return bytes(write.i8(1 if commit else 0).tags().out)

    def read_end(self, read: Reader) -> tuple[int, Identity | None]:
        """Error code, and whose name the next transaction has to bear where that is told."""
        error = requests.read_error(read)
        if error or not self.joins_itself:
            return error, None
        return 0, Identity(read.i64(), read.i16())


#: Every broker from 2.8 to 4.x answers it.
FIRST: Final = Dialect(
    joins_itself=False,
    write=requests.PRODUCE,
    commit_offsets=requests.COMMIT_OFFSETS,
    end=requests.END_TRANSACTION,
)

#: Topics are named: Produce v13 wants their ids.
SECOND: Final = Dialect(
    joins_itself=True,
    write=Api(requests.PRODUCE.key, 12, flexible=True),
    commit_offsets=Api(requests.COMMIT_OFFSETS.key, 5, flexible=True),
    end=Api(requests.END_TRANSACTION.key, 5, flexible=True),
)


def spoken(features: Mapping[str, int]) -> Dialect:
    """``features``: the highest finalized level by name."""
    return SECOND if features.get(FEATURE, 0) >= SECOND_FROM else FIRST


def _record_error(read: Reader) -> None:
    read.i32()
    read.compact()
    read.tags()
