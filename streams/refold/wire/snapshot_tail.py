"""The end of a snapshot, fields of schema version 3: policy, armed deadline, runs, children, reducers' parts.

A session that has none of them ends in the same seven bytes always, and its encoder asks one question.
"""

from __future__ import annotations

from typing import Final

from refold.core.policystate import (
    CHILD_KINDS,
    ON_BUSY,
    REDUCED_STATUSES,
    TTL_ACTIONS,
    Child,
    Reduced,
    SessionPolicy,
)
from refold.core.session import Session
from refold.wire.pieces import END, NULL, SOME, Cursor, array, blob, number, optional_text, text
from refold.wire.snapshot_runs import encode_runs, read_runs

#: No policy, no deadline and no former one, no runs, children and parts.
NOTHING: Final = bytes(7)


def encode_tail(session: Session) -> bytes:
    policy = session.policy
    enc = b"".join(
        (
            NULL if policy is None else _policy(policy),
            number(session.timer_ms),
            number(session.timer_seq),
            number(session.idle_since_ms),
            (session.enc_runs or encode_runs(session)) if session.runs else END,
            array(
                [
                    text(child.session) + text(child.kind) + optional_text(child.call) + number(child.seq)
                    for child in session.children
                ]
            ),
            array([_reduced(part) for _, part in sorted(session.reduced.items())]),
        )
    )
    session.enc_tail = enc
    return enc


def _policy(policy: SessionPolicy) -> bytes:
    return b"".join(
        (
            SOME,
            text(policy.on_busy),
            number(policy.ttl_ms),
            text(policy.ttl_action),
            number(policy.summary_messages),
            number(policy.summary_bytes),
        )
    )


def _reduced(part: Reduced) -> bytes:
    return b"".join(
        (
            text(part.name),
            number(part.version),
            number(part.seq),
            text(part.status),
            blob(part.state),
            optional_text(part.error),
        )
    )


def read_tail(session: Session, cursor: Cursor) -> None:
    """Raises ValueError or IndexError where the bytes are no such tail."""
    start = cursor.at
    if cursor.data.startswith(NOTHING, start):
        cursor.at = start + len(NOTHING)
        session.enc_tail = NOTHING
        return
    if cursor.some():
        session.policy = SessionPolicy(
            ON_BUSY[ON_BUSY.index(cursor.text())],
            cursor.number(),
            TTL_ACTIONS[TTL_ACTIONS.index(cursor.text())],
            cursor.number(),
            cursor.number(),
        )
    session.timer_ms = cursor.number()
    session.timer_seq = cursor.number()
    session.idle_since_ms = cursor.number()
    read_runs(session, cursor)
    count = cursor.count()
    for _ in range(count):
        child = Child(
            cursor.text(),
            CHILD_KINDS[CHILD_KINDS.index(cursor.text())],
            cursor.optional_text(),
            cursor.number(),
        )
        session.children.append(child)
    cursor.end(count)
    count = cursor.count()
    for _ in range(count):
        _read_reduced(session, cursor)
    cursor.end(count)
    session.enc_tail = cursor.data[start : cursor.at]


def _read_reduced(session: Session, cursor: Cursor) -> None:
    name, version, seq, status = cursor.text(), cursor.number(), cursor.number(), cursor.text()
    part = Reduced(name, version, seq, cursor.blob())
    part.status = REDUCED_STATUSES[REDUCED_STATUSES.index(status)]
    part.error = cursor.optional_text()
    if name <= max(session.reduced, default=""):
        raise ValueError("reducers' parts are not in the order of their names")
    session.reduced[name] = part
