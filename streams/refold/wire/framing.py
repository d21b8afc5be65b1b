"""Confluent framing: magic 0 + 4-byte schema id, or (read only) magic 1 + 16-byte schema GUID.

refold writes magic 0. A null value is a tombstone and never gets here; an empty one is a bad record.
"""

from __future__ import annotations

import uuid
from typing import Final

from refold.errors import InvalidRecord

MAGIC_ID: Final = 0
MAGIC_GUID: Final = 1

#: Magic byte and id.
ID_FRAME_BYTES: Final = 5

#: Magic byte and GUID.
GUID_FRAME_BYTES: Final = 17


def frame(schema_id: int) -> bytes:
    """The five bytes before a record written with ``schema_id``."""
    return b"\0" + schema_id.to_bytes(4, "big")


def guid_frame(guid: uuid.UUID) -> bytes:
    """The seventeen bytes before a record whose schema is named by GUID."""
    return b"\1" + guid.bytes


def split_frame(value: bytes | None) -> tuple[int | uuid.UUID, int]:
    """(schema id or GUID, where the record begins).

    Raises InvalidRecord with empty_value, bad_magic or bad_frame (shorter than its frame).
    """
    if not value:
        raise InvalidRecord("empty_value", "the value is empty; a deletion is a null value")
    magic = value[0]
    if magic == MAGIC_ID:
        if len(value) < ID_FRAME_BYTES:
            raise InvalidRecord(
                "bad_frame", f"{len(value)} bytes are no frame (magic 0 and a 4-byte schema id)"
            )
        return int.from_bytes(value[1:ID_FRAME_BYTES], "big"), ID_FRAME_BYTES
    if magic == MAGIC_GUID:
        if len(value) < GUID_FRAME_BYTES:
            raise InvalidRecord(
                "bad_frame", f"{len(value)} bytes are no frame (magic 1 and a 16-byte schema GUID)"
            )
        return uuid.UUID(bytes=bytes(value[1:GUID_FRAME_BYTES])), GUID_FRAME_BYTES
    raise InvalidRecord(
        "bad_magic",
        f"the first byte is {magic}, not 0 or 1: the value was not written with a schema registry framing",
    )
