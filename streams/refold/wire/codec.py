"""Records of any subject: dict ↔ framed bytes, strict both ways.

:func:`encode` writes the newest version of a subject. :func:`decode` reads any pinned version as the newest
one. Whatever bytes come in, :func:`decode` raises nothing but InvalidRecord (a test throws random bytes at
it); a registry that does not answer is UnavailableError, because then the record may well be fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from refold.errors import InvalidRecord, NotFound, UsageError
from refold.wire.framing import split_frame
from refold.wire.readers import unknown_symbols
from refold.wire.schemas import SchemaEntry, registry

__all__ = [
    "Decoded",
    "decode",
    "decode_body",
    "encode",
    "encode_body",
    "resolve_frame",
    "undecodable",
    "unknown_symbols",
]


class Decoded(NamedTuple):
    """``version``: the one the bytes were written with; ``record``: in the shape of the newest version."""

    subject: str
    version: int
    record: dict[str, Any]


#: The first five bytes of a record → its schema: no registry call on the hot path. Bounded by the pinned ids.
_by_frame: Final[dict[bytes, SchemaEntry]] = {}

#: Subject → newest schema. Bounded by the subjects.
_newest: Final[dict[str, SchemaEntry]] = {}


def encode(subject: str, record: Mapping[str, Any]) -> bytes:
    """A record as framed bytes of the newest version of ``subject``.

    Raises UsageError naming the field (unknown key, wrong type, number out of range, missing), NotFound
    for an unknown subject, InvalidRecord("lone_surrogate").
    """
    entry = _newest.get(subject) or _load_newest(subject)
    pieces = [entry.frame]
    entry.write(pieces.append, record)
    return b"".join(pieces)


def encode_body(subject: str, record: Mapping[str, Any]) -> bytes:
    """As :func:`encode`, without the frame: what is spliced into other records."""
    entry = _newest.get(subject) or _load_newest(subject)
    pieces: list[bytes] = []
    entry.write(pieces.append, record)
    return b"".join(pieces)


def decode(value: bytes | None, expect: str | None = None) -> Decoded:
    """The record in ``value``; with ``expect``, only one of that subject.

    Raises InvalidRecord: empty_value, bad_frame, bad_magic, unknown_schema, unknown_subject, undecodable,
    bad_text, lone_surrogate.
    """
    at = 5
    entry = None if value is None else _by_frame.get(value[:5])
    if entry is None:
        entry, at = resolve_frame(value)
    if expect is not None and entry.subject != expect:
        raise InvalidRecord("unknown_subject", f"the record is of subject {entry.subject}, expected {expect}")
    return Decoded(entry.subject, entry.version, _read(entry, value, at))  # type: ignore[arg-type]


def decode_body(subject: str, body: bytes, version: int | None = None) -> dict[str, Any]:
    """A record without its frame, written with ``version`` (None = newest). Raises as :func:`decode`."""
    return _read(registry().get(subject, version), body, 0)


def undecodable(subject: str, error: Exception) -> InvalidRecord:
    """The rejection for what a compiled reader raised."""
    if isinstance(error, UnicodeDecodeError):
        bad = error.object[error.start : error.start + 2]
        # UTF-8 of U+D800 … U+DFFF begins with ED and A0 … BF: some encoders write half a pair that way.
        if len(bad) == 2 and bad[0] == 0xED and 0xA0 <= bad[1] <= 0xBF:
            return InvalidRecord(
                "lone_surrogate", f"a text in the {subject} record holds half of a surrogate pair"
            )
        return InvalidRecord("bad_text", f"a text in the {subject} record is not UTF-8")
    if isinstance(error, IndexError):
        return InvalidRecord("undecodable", f"the {subject} record ends early")
    return InvalidRecord("undecodable", f"the bytes are no {subject} record: {error}")


def _read(entry: SchemaEntry, data: bytes, at: int) -> dict[str, Any]:
    read = entry.read
    try:
        record, end = read(data, at)
    except (ValueError, IndexError, RecursionError) as error:
        raise undecodable(entry.subject, error) from None
    if end != len(data):
        extra = len(data) - end
        text = f"{extra} bytes follow the record" if extra > 0 else "the record ends early"
        raise InvalidRecord("undecodable", f"the bytes are no {entry.subject} record: {text}")
    return record


def resolve_frame(value: bytes | None) -> tuple[SchemaEntry, int]:
    """(the schema a value's frame names, where the record begins). Raises InvalidRecord as :func:`decode`."""
    ref, at = split_frame(value)
    entry = registry().resolve(ref)
    if ref == entry.id and registry().is_pinned(entry):
        _by_frame[entry.frame] = entry
    return entry, at


def _load_newest(subject: str) -> SchemaEntry:
    try:
        entry = registry().get(subject)
    except NotFound as error:
        raise UsageError(str(error)) from None
    _newest[subject] = entry
    return entry
