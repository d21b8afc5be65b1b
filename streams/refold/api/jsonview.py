"""The public part of a snapshot as JSON, for people and for clients without Avro.

Bytes have no JSON form: they become ``{"base64": "…"}``. The ``engine`` part is left out: readers skip it by
contract. Nothing else is renamed or reshaped, so the Avro schema documents this shape too.
"""

from __future__ import annotations

import base64
from typing import Any

import orjson

from refold.wire.snapshot import decode_snapshot

#: Fields of the snapshot that are not for readers.
OPAQUE_FIELDS = frozenset({"engine"})


def json_ready(value: Any) -> Any:
    """A copy in which every bytes value is ``{"base64": …}``."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {name: json_ready(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


def snapshot_json(framed: bytes) -> bytes:
    """Decode a framed snapshot and encode its public part. Costs about a millisecond per 100 KB."""
    public = {name: value for name, value in decode_snapshot(framed).items() if name not in OPAQUE_FIELDS}
    return orjson.dumps(json_ready(public))
