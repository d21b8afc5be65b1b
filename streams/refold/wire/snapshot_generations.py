"""The generations of a snapshot: a field of schema version 2, after ``engine``.

The rows are kept encoded together until one of them changes: there are at most sixteen, and a generation
changes its row a few times in its life.
"""

from __future__ import annotations

from refold.core.session import Generation, GenerationState, Session
from refold.wire.pieces import Cursor, array, number, optional_number, optional_text, text

_STATES: tuple[GenerationState, ...] = ("started", "stopping", "finished", "failed")


def encode_generations(session: Session) -> bytes:
    enc = array([encode_generation(row) for row in session.generations.values()])
    session.enc_generations = enc
    return enc


def encode_generation(row: Generation) -> bytes:
    return b"".join(
        (
            text(row.generation_id),
            text(row.state),
            number(row.attempt),
            text(row.mode),
            optional_text(row.holder),
            optional_number(row.lease_until_ms),
            text(row.message_id),
            optional_text(row.reply_to),
            text(row.generator),
            optional_text(row.params_digest),
            optional_text(row.provider_response_id),
            text(row.durability),
            number(row.last_seq),
            number(row.length),
            optional_text(row.sha256),
            optional_text(row.finish_reason),
            optional_text(row.error_code),
            number(row.started_seq),
            number(row.updated_seq),
        )
    )


def read_generations(session: Session, cursor: Cursor) -> None:
    """Raises ValueError or IndexError where the bytes are no such rows."""
    start = cursor.at
    count = cursor.count()
    if not count:
        return
    for _ in range(count):
        row = Generation(cursor.text(), "", 0)
        row.state = _STATES[_STATES.index(cursor.text())]
        row.attempt = cursor.number()
        row.mode = cursor.text()
        row.holder = cursor.optional_text()
        row.lease_until_ms = cursor.optional_number()
        row.message_id = cursor.text()
        row.reply_to = cursor.optional_text()
        row.generator = cursor.text()
        row.params_digest = cursor.optional_text()
        row.provider_response_id = cursor.optional_text()
        row.durability = cursor.text()
        row.last_seq = cursor.number()
        row.length = cursor.number()
        row.sha256 = cursor.optional_text()
        row.finish_reason = cursor.optional_text()
        row.error_code = cursor.optional_text()
        row.started_seq = cursor.number()
        row.updated_seq = cursor.number()
        if row.generation_id in session.generations:
            raise ValueError("a generation stands twice")
        session.generations[row.generation_id] = row
    cursor.end(count)
    session.enc_generations = cursor.data[start : cursor.at]
