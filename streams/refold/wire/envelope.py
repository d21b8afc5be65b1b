"""Envelope ↔ bytes: read once per inbox record, so the reader is compiled and the bytes are kept.

``raw`` of a decoded envelope are its own bytes, in the newest schema: they go into the journal unchanged. The
compiled reader takes one encoding per value only, so ``raw`` is also what encoding the envelope would give.
An envelope written with an older schema version is re-encoded into the newest one.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from refold.core.envelope import Actor, Envelope, InboxOrigin, SessionLink
from refold.errors import InvalidRecord
from refold.wire.codec import encode_body, resolve_frame, undecodable
from refold.wire.readers import Reader
from refold.wire.schemas import SchemaEntry, registry

__all__ = [
    "Actor",
    "Envelope",
    "InboxOrigin",
    "SessionLink",
    "decode_envelope",
    "encode_envelope",
    "envelope_body",
]

SUBJECT: Final = "refold.Envelope"


@cache
def newest() -> SchemaEntry:
    """The schema envelopes are written with."""
    return registry().get(SUBJECT)


@cache
def _hot() -> tuple[bytes, Reader]:
    entry = newest()
    return entry.frame, entry.read


def decode_envelope(value: bytes | None) -> Envelope:
    """The envelope in an inbox record's value. The payload is not looked at.

    Raises InvalidRecord: empty_value, bad_frame, bad_magic, unknown_schema, unknown_subject, undecodable,
    bad_text, lone_surrogate.
    """
    frame, read = _hot()
    if value is not None and value[:5] == frame:
        at, current = 5, True
    else:
        entry, at = resolve_frame(value)
        if value is None or entry.subject != SUBJECT:
            raise InvalidRecord(
                "unknown_subject", f"the record is of subject {entry.subject}, expected {SUBJECT}"
            )
        read, current = entry.read, entry.is_newest
    try:
        record, end = read(value, at)
    except (ValueError, IndexError, RecursionError) as error:
        raise undecodable(SUBJECT, error) from None
    if end != len(value):
        raise undecodable(SUBJECT, ValueError("its length is not the record's"))
    return from_record(record, value[at:] if current else encode_body(SUBJECT, record))


def from_record(record: dict[str, Any], raw: bytes) -> Envelope:
    """An envelope from a decoded record of the newest shape."""
    producer, actor, origin, link = record["producer"], record["actor"], record["origin"], record["link"]
    if producer is None:
        producer_id, epoch, counter = None, 0, 0
    else:
        producer_id, epoch, counter = producer["id"], producer["epoch"], producer["counter"]
    return Envelope(
        record["event_id"],
        record["tenant"],
        record["session"],
        record["type"],
        record["type_version"],
        record["event_time_ms"],
        producer_id,
        epoch,
        counter,
        record["expected_seq"],
        record["subject"],
        None if actor is None else Actor(actor["kind"], actor["id"], actor["name"]),
        record["run"],
        record["step"],
        record["attempt"],
        record["causation_id"],
        record["correlation_id"],
        None if origin is None else InboxOrigin(**origin),
        None if link is None else SessionLink(**link),
        record["payload"],
        raw,
    )


def to_record(env: Envelope) -> dict[str, Any]:
    """The record :func:`refold.wire.codec.encode` writes for an envelope."""
    stamp = None
    if env.producer_id is not None:
        stamp = {"id": env.producer_id, "epoch": env.producer_epoch, "counter": env.producer_counter}
    return {
        "event_id": env.event_id,
        "tenant": env.tenant,
        "session": env.session,
        "type": env.type,
        "type_version": env.type_version,
        "event_time_ms": env.event_time_ms,
        "producer": stamp,
        "expected_seq": env.expected_seq,
        "subject": env.subject,
        "actor": None if env.actor is None else env.actor._asdict(),
        "run": env.run,
        "step": env.step,
        "attempt": env.attempt,
        "causation_id": env.causation_id,
        "correlation_id": env.correlation_id,
        "origin": None if env.origin is None else env.origin._asdict(),
        "link": None if env.link is None else env.link._asdict(),
        "payload": env.payload,
    }


def envelope_body(env: Envelope) -> bytes:
    """The envelope's bytes without a frame: ``raw`` where it is known. Raises as :func:`encode_envelope`."""
    return env.raw or encode_body(SUBJECT, to_record(env))


def encode_envelope(env: Envelope) -> bytes:
    """The framed bytes of an envelope, the value of an inbox record.

    Raises UsageError naming the field (wrong type, number out of range), InvalidRecord("lone_surrogate").
    """
    return _hot()[0] + (env.raw or encode_body(SUBJECT, to_record(env)))
