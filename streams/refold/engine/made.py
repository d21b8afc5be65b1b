"""Events the worker makes itself. They are journalled like any other, so a fold of the journal sees them too.

Their event ids are derived from the inbox record they are about, so making one again makes the same bytes: a
transaction that is aborted and folded anew writes the same journal.
"""

from __future__ import annotations

from typing import Final

from refold import __version__
from refold.core.envelope import Actor, Envelope
from refold.core.events import Event, SessionDeleted, SessionEventParked, SessionQuarantined
from refold.core.policystate import Reduced
from refold.core.reducerevents import ReducerQuarantined
from refold.engine.chunks import Record
from refold.wire.codec import encode
from refold.wire.envelope import envelope_body

WORKER: Final = Actor("system", "refold-worker")

#: Characters of an exception's class kept as the code of a quarantine. Its text may quote payload: never
#: kept.
CODE_CHARS_MAX: Final = 80


def _envelope(
    word: str, kind: str, payload: bytes, record: Record, tenant: str, session: str, cause: str | None
) -> Envelope:
    env = Envelope(
        event_id=f"{word}/{record.partition}/{record.offset}",
        tenant=tenant,
        session=session,
        type=kind,
        event_time_ms=record.append_ms,
        actor=WORKER,
        causation_id=cause,
        payload=payload,
    )
    env.raw = envelope_body(env)
    return env


def deletion(record: Record, tenant: str, session: str) -> tuple[Envelope, Event]:
    """What a null value on the inbox says."""
    payload = encode("refold.event.SessionDeleted", {"reason": "null value", "extra": None})
    return _envelope("deleted", "SessionDeleted", payload, record, tenant, session, None), SessionDeleted()


def quarantine(
    record: Record, tenant: str, session: str, event_id: str | None, error: BaseException
) -> tuple[Envelope, Event]:
    payload = encode(
        "refold.event.SessionQuarantined",
        {
            "code": type(error).__name__[:CODE_CHARS_MAX],
            "reason": "the fold raised; the worker's log has the place",
            "event_id": event_id,
            "partition": record.partition,
            "offset": record.offset,
            "build": __version__,
        },
    )
    return _envelope(
        "quarantined", "SessionQuarantined", payload, record, tenant, session, event_id
    ), SessionQuarantined()


def parked(record: Record, tenant: str, session: str, event_id: str) -> tuple[Envelope, Event]:
    payload = encode(
        "refold.event.SessionEventParked",
        {"event_id": event_id, "partition": record.partition, "offset": record.offset},
    )
    return _envelope(
        "parked", "SessionEventParked", payload, record, tenant, session, event_id
    ), SessionEventParked()


def reducer_quarantined(record: Record, tenant: str, session: str, part: Reduced) -> tuple[Envelope, Event]:
    """A reducer's part as it was left standing at ``record``."""
    error = part.error or ""
    payload = encode(
        "refold.event.ReducerQuarantined",
        {
            "name": part.name,
            "version": part.version,
            "at_seq": part.seq,
            "error": error,
            "state": part.state,
            "partition": record.partition,
            "offset": record.offset,
        },
    )
    env = _envelope(f"reducer/{part.name}", "ReducerQuarantined", payload, record, tenant, session, None)
    return env, ReducerQuarantined(part.name, part.version, part.seq, part.state, error)


def is_deletion_by_null(env: Envelope, partition: int, offset: int) -> bool:
    """Whether the inbox record behind this journalled event had a null value."""
    return env.type == "SessionDeleted" and env.event_id == f"deleted/{partition}/{offset}"
