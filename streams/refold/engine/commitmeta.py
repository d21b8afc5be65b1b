"""Rule M: what travels with every committed offset, and the group metadata it is sent under (rule F).

Per partition: ``{"v":1,"txid":…,"cl":{"state":next,"history":next,"generations":next},"map":epoch}``, the
same text with the offsets of inbox and batches; with that of the inbox also ``"beyond"`` where records after
it were handled already (rule H5, :mod:`refold.engine.warming.beyond`), and with that of batches, where there
are reducers, ``"reducers":{name:version}`` (rule X4; the inbox's may be full of what waits). ``txid`` names
whose open transaction to fence at a takeover (rule D); ``cl`` is how far the changelogs must be read before
the partition is restored (rule T, step 4).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from refold.engine.warming.beyond import Beyond
from refold.errors import ConfigError, InvariantViolation

VERSION: Final = 1

#: Written by librdkafka's rd_kafka_consumer_group_metadata_write; confluent_kafka hands the bytes through.
_MAGIC: Final = b"CGMDv2:"


@dataclass(frozen=True, slots=True)
class CommitMeta:
    """``*_next``: one past the last changelog record this partition's owner has written."""

    txid: str
    state_next: int
    history_next: int
    generations_next: int
    map_epoch: int
    beyond: Beyond | None = None
    #: Versions of the reducers that the partition was folded with, by name.
    reducers: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> str:
        row: dict[str, Any] = {
            "v": VERSION,
            "txid": self.txid,
            "cl": {
                "state": self.state_next,
                "history": self.history_next,
                "generations": self.generations_next,
            },
            "map": self.map_epoch,
        }
        if self.beyond is not None and self.beyond.parked:
            row["beyond"] = self.beyond.encode()
        if self.reducers:
            row["reducers"] = dict(self.reducers)
        return orjson.dumps(row).decode()

    @classmethod
    def parse(cls, text: str | None, offset: int = -1) -> CommitMeta | None:
        """``None`` for metadata this version did not write (another program committed, or an offset reset).

        ``offset`` is the one that it was committed with. Raises ConfigError where what was handled beyond it
        cannot be read: going on would handle it again.
        """
        if not text:
            return None
        try:
            row: Any = orjson.loads(text)
            if row["v"] != VERSION:
                return None
            meta = cls(
                txid=str(row["txid"]),
                state_next=int(row["cl"]["state"]),
                history_next=int(row["cl"]["history"]),
                # Not there before there were generations.
                generations_next=int(row["cl"].get("generations", 0)),
                map_epoch=int(row["map"]),
                reducers={str(name): int(version) for name, version in row.get("reducers", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        if "beyond" not in row:
            return meta
        try:
            return replace(meta, beyond=Beyond.decode(offset, row["beyond"]))
        except (ValueError, TypeError):
            raise ConfigError(
                f"the metadata of committed offset {offset} says that records after it were handled, in a"
                " form that this version does not know: a newer worker has written it. Start that version"
                " again"
            ) from None


@dataclass(frozen=True, slots=True)
class GroupMeta:
    """The part of the consumer group metadata that decides whether the broker can fence us."""

    generation: int
    member_id: str

    @property
    def joined(self) -> bool:
        """Metadata without it is accepted from anybody (measured), so it is never sent."""
        return self.generation >= 0 and self.member_id != ""


def read_group_meta(opaque: object) -> GroupMeta:
    """Look inside ``Consumer.consumer_group_metadata()``."""
    if not isinstance(opaque, bytes) or not opaque.startswith(_MAGIC):
        raise InvariantViolation(
            "confluent-kafka hands out group metadata in a form this version does not know, so a worker"
            " without"
            " membership could not be told from one with it; install the confluent-kafka of refold's lock"
            " file"
        )
    at = len(_MAGIC)
    generation = int.from_bytes(opaque[at : at + 4], sys.byteorder, signed=True)
    _group, member, *_ = opaque[at + 4 :].split(b"\0")
    return GroupMeta(generation, member.decode())
