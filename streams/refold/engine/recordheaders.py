"""Record headers the worker reads and writes. Names are wire contract (architecture.md, section 3).

``refold-…`` names are ours: they are set by the worker, and those of incoming records are not passed on,
except that ``traceparent``, ``tracestate`` and every other name go from the inbox to the journal untouched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from refold.engine.chunks import Record

Headers = Sequence[tuple[str, bytes]]

TYPE: Final = "refold-type"
CODE: Final = "refold-code"
REASON: Final = "refold-reason"
ORIGIN: Final = "refold-origin"
APPEND_MS: Final = "refold-append-ms"
HOPS: Final = "refold-hops"
VALUE_SHA256: Final = "refold-value-sha256"
VALUE_LENGTH: Final = "refold-value-length"
KEY_LENGTH: Final = "refold-key-length"
DROPPED: Final = "refold-headers-dropped"

_OURS: Final = "refold-"

#: Record overhead: batch header 61 bytes, varints and attributes of the record and of each header.
RECORD_OVERHEAD_BYTES: Final = 128
HEADER_OVERHEAD_BYTES: Final = 10

#: What is kept of a rejected value that does not fit: enough to see what it was.
VALUE_HEAD_BYTES: Final = 4_096
#: A longer key or longer headers are cut or dropped when the record does not fit.
KEY_HEAD_BYTES: Final = 1_024
HEADERS_KEPT_BYTES: Final = 65_536

#: Journal headers by event type, for records without headers. Unknown types come from outside: bounded.
_BY_TYPE_MAX: Final = 256
_by_type: Final[dict[str, Headers]] = {}


class Forwarded(NamedTuple):
    """What a forward's headers say of the record's first place."""

    origin: str
    hops: int
    append_ms: int


def forwarded(record: Record) -> Forwarded | None:
    """``None`` for a record that was not forwarded. Made-up headers count as none where they make no
    sense."""
    headers = record.headers
    if not headers:
        return None
    found = {name: value for name, value in headers if name in (ORIGIN, HOPS, APPEND_MS) and value}
    if len(found) < 3:
        return None
    try:
        hops, append_ms = int(found[HOPS]), int(found[APPEND_MS])
        origin = found[ORIGIN].decode()
    except ValueError:
        return None
    if hops < 1 or append_ms < 0:
        return None
    # A forward is appended after its origin: an origin from the future would poison session time.
    return Forwarded(origin, hops, min(append_ms, record.append_ms))


def journal(headers: Headers | None, type_name: str) -> Headers:
    if not headers:
        known = _by_type.get(type_name)
        if known is None:
            known = [(TYPE, type_name.encode())]
            if len(_by_type) < _BY_TYPE_MAX:
                _by_type[type_name] = known
        return known
    if len(headers) == 1 and headers[0][0] == TYPE and headers[0][1] == type_name.encode():
        return headers
    return [(TYPE, type_name.encode()), *((n, v) for n, v in headers if not n.startswith(_OURS))]


def origin(topic: str, record: Record) -> str:
    return f"{topic}/{record.partition}/{record.offset}"


def forward(topic: str, record: Record, before: Forwarded | None) -> Headers:
    kept = [(n, v) for n, v in record.headers or () if n not in (ORIGIN, HOPS, APPEND_MS)]
    first = before or Forwarded(origin(topic, record), 0, record.append_ms)
    return [
        *kept,
        (ORIGIN, first.origin.encode()),
        (HOPS, b"%d" % (first.hops + 1)),
        (APPEND_MS, b"%d" % first.append_ms),
    ]


def size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Upper bound of a record's bytes on the wire, uncompressed."""
    total = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        # Kafka's header names are UTF-8: up to three bytes for a character of the basic plane.
        total += HEADER_OVERHEAD_BYTES + 3 * len(name) + len(content or b"")
    return total


def rejected(
    topic: str, record: Record, code: str, reason: str, bytes_max: int
) -> tuple[bytes | None, bytes | None, Headers]:
    """(key, value, headers) for the rejected topic: the original, as much of it as fits."""
    mine: list[tuple[str, bytes]] = [
        (CODE, code.encode()),
        (REASON, reason.encode(errors="replace")),
        (ORIGIN, origin(topic, record).encode()),
        (APPEND_MS, b"%d" % record.append_ms),
    ]
    names = {name for name, _ in mine}
    kept = [(n, v) for n, v in record.headers or () if n not in names]
    key, value = record.key, record.value
    if size(key, value, [*kept, *mine]) <= bytes_max:
        return key, value, [*kept, *mine]
    if value is not None and len(value) > VALUE_HEAD_BYTES:
        mine.append((VALUE_SHA256, hashlib.sha256(value).hexdigest().encode()))
        mine.append((VALUE_LENGTH, b"%d" % len(value)))
        value = value[:VALUE_HEAD_BYTES]
    if key is not None and len(key) > KEY_HEAD_BYTES:
        mine.append((KEY_LENGTH, b"%d" % len(key)))
        key = key[:KEY_HEAD_BYTES]
    if size(None, None, kept) > HEADERS_KEPT_BYTES:
        mine.append((DROPPED, b"%d" % len(kept)))
        kept = []
    return key, value, [*kept, *mine]
