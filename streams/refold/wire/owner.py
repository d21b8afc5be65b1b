"""What an owner says over its HTTP port, as bytes and as values: rulings, history answers, JSON snapshots.

These are wire formats shared by three parts that must not import each other (the engine makes them, the
API serves them, the client reads them), hence their place here. The short keys are contract
(docs/internals/architecture.md, section 8).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

import orjson

from refold.errors import UnavailableError
from refold.wire.parts import BlobRef, Part

RulingStatus = Literal["accepted", "duplicate", "rejected"]

RULING_STATUSES: Final = ("accepted", "duplicate", "rejected")


@dataclass(frozen=True, slots=True)
class RulingLine:
    """The fold's ruling on the inbox record at ``(partition, offset)``.

    ``seq``: of the accepted event; for a duplicate the seq it repeats, 0 when that can no longer be told;
    ``None`` for a rejection. ``code`` and ``reason`` are set for a rejection only; ``note`` for an accepted
    event whose writer most likely did not mean it so (:mod:`refold.core.notes`).
    """

    partition: int
    offset: int
    status: RulingStatus
    seq: int | None = None
    code: str | None = None
    reason: str | None = None
    note: str | None = None

    def to_bytes(self) -> bytes:
        """One NDJSON line without its line end."""
        row = {
            "p": self.partition,
            "o": self.offset,
            "s": self.status,
            "q": self.seq,
            "c": self.code,
            "r": self.reason,
        }
        if self.note is not None:
            row["n"] = self.note
        return orjson.dumps(row)

    @classmethod
    def from_bytes(cls, line: bytes) -> RulingLine:
        """Decode one line; raises :class:`UnavailableError` when the peer does not speak this format."""
        try:
            row = orjson.loads(line)
            status = row["s"]
            if status not in RULING_STATUSES:
                raise ValueError(f"unknown ruling status {status!r}")
            return cls(
                partition=int(row["p"]),
                offset=int(row["o"]),
                status=cast(RulingStatus, status),
                seq=row.get("q"),
                code=row.get("c"),
                reason=row.get("r"),
                note=row.get("n"),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnavailableError(
                f"the owner sent a ruling line this client cannot read ({error}); "
                "compare the versions of worker and client"
            ) from None


@dataclass(frozen=True, slots=True)
class HistoryAnswer:
    """Where a session's events lie in the journal.

    ``offsets``: ``(seq, journal offset)`` ascending, only events after the one asked for, at most as many as
    asked for. ``scan_from``: set when the answer stops before the session's end because the index has no more
    (a block not written yet): events after the last pair are at or after this journal offset and must be
    looked for by scanning; ``None`` when the index knows all, or when ``limit`` ended the answer.
    """

    topic: str
    partition: int
    offsets: tuple[tuple[int, int], ...]
    scan_from: int | None = None

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "topic": self.topic,
                "partition": self.partition,
                "offsets": self.offsets,
                "scan_from": self.scan_from,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> HistoryAnswer:
        try:
            row = orjson.loads(body)
            return cls(
                topic=str(row["topic"]),
                partition=int(row["partition"]),
                offsets=tuple((int(seq), int(offset)) for seq, offset in row["offsets"]),
                scan_from=None if row["scan_from"] is None else int(row["scan_from"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise UnavailableError(
                f"the owner sent a history answer this client cannot read ({error}); "
                "compare the versions of worker and client"
            ) from None


@dataclass(frozen=True, slots=True)
class GenerationAnswer:
    """What is committed of one generation, and where its batches are.

    ``row``: as in the public snapshot's ``generations``, ``None`` when the session no longer has it.
    ``progress``: the fields of ``refold.GenerationRecord``, ``None`` while its begin is not folded.
    """

    topic: str
    partition: int
    row: Mapping[str, Any] | None
    progress: Mapping[str, Any] | None

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "row": json_ready(self.row),
                "progress": json_ready(self.progress),
                "topic": self.topic,
                "partition": self.partition,
            }
        )


#: Fields of the snapshot that are not for readers.
OPAQUE_FIELDS: Final = frozenset({"engine"})


def json_ready(value: Any) -> Any:
    """A copy that JSON can hold: bytes become ``{"base64": "…"}``, a part its type, text, fields and ref.

    Nothing else is renamed or reshaped, so the Avro schemas document this shape too.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Part):
        shown: dict[str, Any] = {"type": value.type, "text": value.text, **json_ready(value.fields)}
        if value.opaque and value.data is not None:
            shown["data"] = json_ready(value.data)
        if value.ref is not None:
            shown["ref"] = json_ready(value.ref)
        return shown
    if isinstance(value, BlobRef):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: json_ready(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


def public_json(snapshot: Mapping[str, Any]) -> bytes:
    """The public part of a decoded snapshot as JSON, reducers' states as the JSON they are. About a
    millisecond per 100 KB."""
    shown = json_ready({k: v for k, v in snapshot.items() if k not in OPAQUE_FIELDS})
    for part, row in zip(shown.get("reduced", ()), snapshot.get("reduced", ()), strict=True):
        part["state"] = orjson.Fragment(row["state"])
    return orjson.dumps(shown)
