"""Records of timer rows: an armed deadline <-> bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

from refold.wire.codec import decode, encode

SUBJECT: Final = "refold.TimerRow"


class Armed(NamedTuple):
    """``deadline_ms``: session time at which it is due."""

    tenant: str
    session: str
    deadline_ms: int


def encode_timer(armed: Armed) -> bytes:
    """The framed record."""
    return encode(SUBJECT, armed._asdict())


def decode_timer(value: bytes | None) -> Armed:
    """The inverse of :func:`encode_timer`. Raises InvalidRecord."""
    record = decode(value, expect=SUBJECT).record
    return Armed(record["tenant"], record["session"], record["deadline_ms"])
