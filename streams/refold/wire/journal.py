"""Journal records: four numbers, then the envelope's own bytes.

Avro is concatenative, so the record is a join and not a re-encode; what the producer wrote is what the
journal holds. That needs the journal record's schema to nest the newest envelope schema, which
:func:`refold.wire.compat.check_splices` checks for every schema whose bytes are joined.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from refold.core.envelope import Envelope
from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode_body, undecodable
from refold.wire.envelope import SUBJECT as ENVELOPE
from refold.wire.envelope import envelope_body, from_record, newest
from refold.wire.readers import Reader
from refold.wire.schemas import registry
from refold.wire.varint import INT_MAX, read_zlong, zlong

SUBJECT: Final = "refold.JournalRecord"


class JournalEntry(NamedTuple):
    """An accepted event. ``partition``, ``offset``: the inbox's; ``time_ms``: session time since 1970 UTC."""

    seq: int
    time_ms: int
    partition: int
    offset: int
    env: Envelope


@cache
def _hot() -> tuple[bytes, Reader]:
    return registry().get(SUBJECT).frame, newest().read


def journal_frame() -> bytes:
    """What a journal record begins with."""
    return _hot()[0]


def journal_value(seq: int, time_ms: int, partition: int, offset: int, env: Envelope) -> bytes:
    """The framed journal record of an accepted event.

    Raises OverflowError outside the numbers' ranges, and what encoding an envelope without ``raw`` raises.
    """
    if not 0 <= partition <= INT_MAX:
        raise OverflowError(f"{partition} is no partition")
    body = env.raw or envelope_body(env)
    return b"".join((_hot()[0], zlong(seq), zlong(time_ms), zlong(partition), zlong(offset), body))


def decode_journal(value: bytes | None) -> JournalEntry:
    """The journal entry in ``value``. Raises InvalidRecord as ``decode_envelope`` does."""
    frame, read = _hot()
    if value is None or value[:5] != frame:
        return _decode_other(value)
    try:
        seq, at = read_zlong(value, 5)
        time_ms, at = read_zlong(value, at)
        partition, at = read_zlong(value, at)
        offset, at = read_zlong(value, at)
        if not -INT_MAX - 1 <= partition <= INT_MAX:
            raise ValueError("inbox_partition is no 32-bit int")
        record, end = read(value, at)
    except (ValueError, IndexError) as error:
        raise undecodable(SUBJECT, error) from None
    if end != len(value):
        raise undecodable(SUBJECT, ValueError("its length is not the record's"))
    return JournalEntry(seq, time_ms, partition, offset, from_record(record, value[at:]))


def _decode_other(value: bytes | None) -> JournalEntry:
    """An older version of the record, or a frame by GUID: the envelope is encoded anew."""
    decoded = decode(value)
    if decoded.subject != SUBJECT:
        raise InvalidRecord(
            "unknown_subject", f"the record is of subject {decoded.subject}, expected {SUBJECT}"
        )
    record = decoded.record
    env = from_record(record["event"], encode_body(ENVELOPE, record["event"]))
    return JournalEntry(
        record["seq"], record["time_ms"], record["inbox_partition"], record["inbox_offset"], env
    )
